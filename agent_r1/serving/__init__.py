"""`agent-r1 serve`: a model or an agent behind the OpenAI API, on the local engine (docs/serving.md).

agent = load_agent("runs/quickstart")
app = create_app(ModelServer(agent, limits=ServingLimits(max_tokens=512)), make_access("127.0.0.1", key=None))
"""

from __future__ import annotations

from agent_r1.serving.limits import ServingLimits
from agent_r1.serving.service import ModelServer
from agent_r1.web import Access, AccessControl

__all__ = ["ModelServer", "ServingLimits", "create_app"]


def create_app(server: ModelServer, access: Access | None = None) -> AccessControl:
    """The ASGI application of a server (extra `serve`, imported here). Without `access` it serves requests to localhost
    and IP addresses, without a key."""
    from agent_r1.serving.app import create_app as create

    return create(server, access)
