"""`agent-r1 serve`: a model or an agent behind the OpenAI API, on the local engine (docs/serving.md).

agent = load_agent("runs/quickstart")
app = create_app(ModelServer(agent, limits=ServingLimits(max_tokens=512)), make_access("127.0.0.1", key=None))
"""

from agent_r1.serving.app import create_app
from agent_r1.serving.limits import ServingLimits
from agent_r1.serving.service import ModelServer

__all__ = ["ModelServer", "ServingLimits", "create_app"]
