"""HTTP for programs that are no workers of ours: external steps and webhooks. Needs the extra `web`.

`agentrun web` serves it; `application()` is an ASGI application to mount in one of your own.
"""

from agentrun.web.app import application

__all__ = ["application"]
