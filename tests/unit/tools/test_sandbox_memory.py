"""Every way we know to hold memory beyond a sandbox's limits, tried from inside with real processes.

The bound of a session is `processes * memory_mb + disk_mb`, and what kernel buffers hold for its descriptors.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from agent_r1.tools.sandbox.sandbox import Sandbox
from tests.helpers.sandboxes import KINDS, SMALL, attempt, needs, shown, small_sandbox

MB = 1 << 20

CTYPES = """
import ctypes, mmap, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def failed(result):
    return os.strerror(ctypes.get_errno()) if result == -1 else "worked"
"""


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    chosen = small_sandbox(request.param)
    needs(chosen.describe().calls_filtered, "system calls")
    return chosen


def segments() -> list[str]:
    """The SysV segments of this machine's namespace."""
    return Path("/proc/sysvipc/shm").read_text().splitlines()


def test_sysv_shared_memory_cannot_be_made_and_none_is_left(sandbox: Sandbox) -> None:
    before = segments()
    hold = f"{CTYPES}\n[failed(libc.shmget(0, ctypes.c_size_t({64 * MB}), 0o1600)) for _ in range(25)]"
    assert set(eval(shown(sandbox, hold))) == {"Operation not permitted"}
    assert segments() == before


@pytest.mark.parametrize(
    "call",
    [
        "libc.msgget(0, 0o1600)",
        "libc.semget(0, 1, 0o1600)",
        "libc.mq_open(b'/q', 0o102, 0o600, None)",
        "libc.memfd_create(b'm', 0)",
        "libc.vmsplice(os.pipe()[1], ctypes.create_string_buffer(16), 1, 0)",
        "libc.syscall(447, 0)",  # memfd_secret
        "libc.syscall(425, 8, ctypes.create_string_buffer(120))",  # io_uring_setup
        "libc.syscall({'x86_64': 323, 'aarch64': 282}[os.uname().machine], 1)",  # userfaultfd
        "libc.syscall({'x86_64': 248, 'aarch64': 217}[os.uname().machine], b'user', b'k', b'v', 1, -4)",  # add_key
    ],
)
def test_memory_that_belongs_to_no_process_cannot_be_made(sandbox: Sandbox, call: str) -> None:
    assert eval(shown(sandbox, f"{CTYPES}\nfailed({call})")) == "Operation not permitted"


@pytest.mark.parametrize(
    "call",
    [
        "libc.unshare(0x10000000)",
        "libc.unshare(0x10020000)",
        "libc.setns(0, 0)",
        "libc.mount(b'tmpfs', b'.', b'tmpfs', 0, None)",
        "libc.syscall(430, b'tmpfs', 0)",  # fsopen
        "libc.syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], 0x10000000 | 17, 0, 0, 0, 0)",  # clone
    ],
)
def test_namespaces_and_mounts_of_its_own_are_refused(sandbox: Sandbox, call: str) -> None:
    # A child made by mistake must not answer the cell a second time.
    cell = f"{CTYPES}\nme = os.getpid()\nr = {call}\nif os.getpid() != me: os._exit(0)\nfailed(r)"
    assert eval(shown(sandbox, cell)) == "Operation not permitted"


def test_clone3_and_newer_calls_do_not_exist(sandbox: Sandbox) -> None:
    cell = f"{CTYPES}\n[failed(libc.syscall(n, 0, 0, 0, 0, 0, 0)) for n in (435, 470, 999, 0x40000027)]"
    assert set(eval(shown(sandbox, cell))) == {"Function not implemented"}


def test_threads_and_processes_still_start(sandbox: Sandbox) -> None:
    cell = """
        import subprocess, threading
        said = []
        thread = threading.Thread(target=said.append, args=("thread",))
        thread.start(); thread.join()
        said.append(subprocess.run(["/bin/echo", "process"], capture_output=True, text=True).stdout.strip())
        said
    """
    assert eval(shown(sandbox, cell)) == ["thread", "process"]


def test_only_ordinary_address_families_are_left(sandbox: Sandbox) -> None:
    cell = """
        import socket
        left = []
        for family in range(1, 50):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                try: socket.socket(family, kind).close(); left.append(family)
                except OSError: pass
        sorted(set(left))
    """
    assert eval(shown(sandbox, cell)) == [1, 2, 10]
    assert "Error" in shown(sandbox, "import socket; socket.socketpair(socket.AF_INET)")
    assert shown(sandbox, "import socket; a, b = socket.socketpair(); a.send(b'x'); b.recv(1)") == "b'x'"


def test_files_in_memory_stay_within_the_disk_limit(sandbox: Sandbox) -> None:
    needs(sandbox.describe().files_hidden, "files in the host's /dev/shm")
    fill = """
        import os
        total = 0
        for folder in ("/dev/shm", "/tmp", "/run", "/var/tmp", "/"):
            for number in range(20):
                try:
                    with open(f"{folder}/f{number}", "wb", buffering=0) as file:
                        os.unlink(f"{folder}/f{number}") if number % 2 else None
                        while True: total += file.write(bytes(1 << 20))
                except OSError: pass
        total
    """
    # Each removed file gives its room back.
    held = "import os\nsum(os.stat('/tmp/' + n).st_blocks * 512 for n in os.listdir('/tmp'))"
    _, reply = attempt(sandbox, textwrap.dedent(fill), held)
    assert int(reply.report["shown"]) <= SMALL.disk_mb * MB


def test_number_of_empty_files_is_limited(sandbox: Sandbox) -> None:
    needs(sandbox.describe().kind == "namespaces", "the number of empty files")
    fill = "for n in range(20_000):\n    open(f'f{n}', 'w').close()"
    assert "No space left" in shown(sandbox, fill)


@pytest.mark.whole
def test_buffers_of_pipes_and_sockets_are_bounded(sandbox: Sandbox) -> None:
    fill = """
        import fcntl, os, socket
        total, held = 0, []
        def stuff(descriptor):
            global total
            os.set_blocking(descriptor, False)
            try:
                while True: total += os.write(descriptor, bytes(65536))
            except OSError: pass
        def fill(make):
            try:
                while True:
                    ends = make(); held.append(ends)
                    stuff(ends[1] if isinstance(ends[1], int) else ends[1].fileno())
            except OSError: pass
        def big_pipe():
            ends = os.pipe()
            try: fcntl.fcntl(ends[1], 1031, 1 << 20)
            except OSError: pass
            return ends
        def big_socket():
            ends = socket.socketpair()
            for option in (socket.SO_SNDBUF, 32):
                try: ends[1].setsockopt(socket.SOL_SOCKET, option, 1 << 30)
                except OSError: pass
            return ends
        for _ in range(5):
            if os.fork() == 0:
                break
        spare = os.open("/dev/null", os.O_RDONLY)
        fill(big_pipe if os.getpid() % 2 else big_socket)
        import glob, time
        os.close(spare)
        with open(f"total{os.getpid()}", "w") as file: file.write(str(total))
        time.sleep(2)
        sum(int(open(name).read() or 0) for name in glob.glob("total*"))
    """
    assert int(shown(sandbox, fill)) < 96 * MB


@pytest.mark.whole
def test_processes_together_hold_at_most_their_number_times_the_limit(sandbox: Sandbox) -> None:
    """Shared mappings are made, handed to a child and unmapped again; only address space is taken, not memory."""
    needs(sandbox.describe().processes_limited == "by the kernel", "processes for half a second")
    hold = """
        import mmap, os, time
        for _ in range(60):
            try: block = mmap.mmap(-1, 64 << 20)
            except (OSError, MemoryError): break
            try: child = os.fork()
            except OSError: break
            if child: block.close()
            else: continue
            break
        mine = sum(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
        open(f"mine{os.getpid()}", "w").write(str(mine))
        time.sleep(1)
        [int(open(name).read() or 0) for name in __import__("glob").glob("mine*")]
    """
    sizes = eval(shown(sandbox, hold))
    assert len(sizes) <= SMALL.processes
    assert all(size <= SMALL.memory_mb * MB for size in sizes)


@pytest.mark.parametrize("flags", [0x22, 0x21, 0x40022, 0x4022])  # private, shared, huge pages, not reserved
def test_mapping_more_than_the_limit_fails(sandbox: Sandbox, flags: int) -> None:
    cell = f"{CTYPES}\nlibc.mmap(None, ctypes.c_size_t({1 << 30}), 3, {flags}, -1, 0) == ctypes.c_void_p(-1).value"
    assert shown(sandbox, cell) == "True"


def test_pending_signals_and_locked_memory_are_limited(sandbox: Sandbox) -> None:
    cell = (
        "import resource as r; [r.getrlimit(k)[1] for k in (r.RLIMIT_MEMLOCK, r.RLIMIT_MSGQUEUE, r.RLIMIT_SIGPENDING)]"
    )
    locked, queued, pending = eval(shown(sandbox, cell))
    assert locked <= MB
    assert queued == 0
    assert pending <= 1024
