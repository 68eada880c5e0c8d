"""`agentrun metrics`: the fleet in Prometheus's text format, once or for a scraper. Changes nothing."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from agentrun.cli import screen
from agentrun.cli.base import AllNamespaces
from agentrun.cli.desk import found_settings
from agentrun.core.errors import ConfigurationError

if TYPE_CHECKING:
    from agentrun.telemetry.metrics import Fleet

group = typer.Typer()


@group.command("metrics")
def metrics(
    serve: Annotated[
        str | None, typer.Option("--serve", metavar="HOST:PORT", help="Answer at /metrics until Ctrl-C instead.")
    ] = None,
    all_namespaces: AllNamespaces = False,
) -> None:
    """Runs, queues, workers and what is in trouble, for Prometheus."""
    address = None if serve is None else _address(serve)
    settings = found_settings()
    settings.require_database()
    # Celery comes with it: 0.4 s that other commands do without.
    from agentrun.telemetry.metrics import Fleet

    with contextlib.closing(Fleet(settings, all_namespaces=all_namespaces)) as fleet:
        if address is None:
            typer.echo(fleet.text(), nl=False)
        else:
            _serve(fleet, *address)


def _serve(fleet: Fleet, host: str, port: int) -> None:
    named = f"[{host}]" if ":" in host else host
    try:
        server, thread = fleet.serve(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"nothing can listen at {named}:{port} ({error.strerror or error}); give --serve another HOST:PORT"
        ) from None
    for each in (signal.SIGINT, signal.SIGTERM):
        # What a shell starts in the background ignores the one, and the first process of a container the other.
        signal.signal(each, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        screen.remark(f"metrics at http://{named}:{server.server_port}/metrics, until Ctrl-C")
        thread.join()
    server.shutdown()
    server.server_close()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise typer.BadParameter(f"{text!r} is no HOST:PORT, as in 127.0.0.1:9464", param_hint="--serve")
    return host, int(port)
