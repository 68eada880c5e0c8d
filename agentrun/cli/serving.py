"""`agentrun web`: external steps and webhooks over HTTP, for programs that are no workers of ours."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrun.cli import screen
from agentrun.cli.desk import found_settings
from agentrun.core.errors import ConfigurationError

group = typer.Typer()


@group.command("web")
def web(
    host: Annotated[str, typer.Option("--host", help="Loopback unless you say otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8766,
) -> None:
    """Serve external steps and webhooks over HTTP, until it is interrupted."""
    settings = found_settings()
    settings.require_database()
    settings.require_broker()
    try:
        import uvicorn

        from agentrun.web import application
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"`agentrun web` needs {error.name}; pip install 'agentrun[web]'") from None
    if settings.web_token is None:
        screen.remark("AGENTRUN_WEB_TOKEN is not set: steps can be answered, but neither listed nor taken here")
    # No access log: a webhook's path is its secret.
    uvicorn.run(application(settings=settings), host=host, port=port, access_log=False, log_level="info")
