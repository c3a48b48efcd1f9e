"""Images in prompts for servers: what is sent of them, and the image of the probe."""

from agent_r1.engines.http.images.probe_image import probe_picture
from agent_r1.engines.http.images.prompt import ServerImages, ServerPrompt

__all__ = ["ServerImages", "ServerPrompt", "probe_picture"]
