"""What every HTTP server of the project shares: who may ask, how much and how fast, and how a server starts and stops;
and what every client shares, which reads answers up to a size and in their charset.

    app.add_middleware(AccessControl, access=make_access(host, key=key))         # Host, Origin, key
    body = read_object(await read_body(request, max_bytes=1 << 20, seconds=30))  # or a RefusedError with a 4xx status
    serve_forever(app, listen(host, port), announce=print)                       # until Ctrl-C or SIGTERM
    async with running_server(app, listen(host, 0)) as url: ...                  # inside an event loop

The package imports without the extra `serve`: Starlette and uvicorn are imported by the functions that use them.
"""

from agent_r1.web.access import Access, AccessControl, is_loopback, key_from_env, make_access
from agent_r1.web.answers import (
    AnswerEncodingError,
    AnswerTooLargeError,
    UnknownCharsetError,
    decode_answer,
    read_answer,
    read_lines,
    redirection,
)
from agent_r1.web.bodies import CLIENT_DISCONNECTED, has_disconnected, read_body, read_object, while_connected
from agent_r1.web.compressed import ACCEPTED, unpacked
from agent_r1.web.refusals import RefusedError
from agent_r1.web.servers import address_of, listen, running_server, serve_forever

__all__ = [
    "ACCEPTED",
    "CLIENT_DISCONNECTED",
    "Access",
    "AccessControl",
    "AnswerEncodingError",
    "AnswerTooLargeError",
    "RefusedError",
    "UnknownCharsetError",
    "address_of",
    "decode_answer",
    "has_disconnected",
    "is_loopback",
    "key_from_env",
    "listen",
    "make_access",
    "read_answer",
    "read_body",
    "read_lines",
    "read_object",
    "redirection",
    "running_server",
    "serve_forever",
    "unpacked",
    "while_connected",
]
