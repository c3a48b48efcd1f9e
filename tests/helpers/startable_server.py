"""Stands for a server that a run started: `engine_server.startable_servers` has it forked, and it ends when that ends.

python -S startable_server.py SOCKET -m vllm... --model FOLDER --port 8000
"""

import json
import os
import signal
import socket
import sys
import time

arguments = sys.argv[2:]
order = {name: arguments[arguments.index(f"--{name}") + 1] for name in ("model", "port")}
with socket.socket() as taken:
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(("127.0.0.1", int(order["port"])))
    except OSError as error:
        sys.exit(str(error))
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect(sys.argv[1])
    asking.sendall(json.dumps({"model": order["model"], "port": int(order["port"])}).encode() + b"\n")
    server = int(asking.makefile().readline())


def end(number: int, frame: object) -> None:
    """End the server with this process."""
    os.kill(server, signal.SIGKILL)
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
print(f"serving as process {server}", flush=True)
while True:
    try:
        os.kill(server, 0)
    except ProcessLookupError:
        sys.exit(137)
    time.sleep(0.02)
