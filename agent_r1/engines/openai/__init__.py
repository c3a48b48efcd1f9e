"""`engine=openai`: any OpenAI-compatible server, which renders and parses itself. For inference, not for training."""

from agent_r1.engines.openai.engine import OpenAIEngine
from agent_r1.engines.openai.factory import make_openai_engine
from agent_r1.engines.openai.servers import ServerSettings

__all__ = ["OpenAIEngine", "ServerSettings", "make_openai_engine"]
