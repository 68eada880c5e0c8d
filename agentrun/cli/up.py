"""`agentrun up`: everything on one machine. Servers (embedded unless set), schema, worker, beat and Flower.

Owns what is started and in which order it ends: the worker hands its runs back, then the servers stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import Annotated

import typer

from agentrun.broker.flower import CONFIG, FlowerSettings, generated_password
from agentrun.broker.flower import PREFIX as FLOWER_PREFIX
from agentrun.cli import screen
from agentrun.cli.base import AsJson
from agentrun.cli.children import Child, Children
from agentrun.cli.desk import load_kinds
from agentrun.cli.servers import Servers
from agentrun.cli.upscreen import Up, announced, found
from agentrun.core.errors import ConfigurationError
from agentrun.embedded import AlreadyRunning, default_state_dir
from agentrun.embedded.server import free_port, is_free
from agentrun.runtime.kinds import registry
from agentrun.settings import PREFIX, Settings
from agentrun.store.schema import migrate

group = typer.Typer()

APP = "agentrun.broker.default"
OVERTIME_SECONDS = 60.0
"""How much longer than the drain budget a worker may take, for a write in flight, before it is killed."""


class LogLevel(StrEnum):
    """The levels that Celery's commands take."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"
    FATAL = "FATAL"


Signalled = Callable[[int, FrameType | None], object]


@group.command("up")
def up(
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Runs at the same time.")] = 100,
    flower: Annotated[bool, typer.Option(help="Start Flower too.")] = True,
    loglevel: Annotated[
        LogLevel, typer.Option("--loglevel", "-l", case_sensitive=False, help="Of worker and beat.")
    ] = LogLevel.INFO,
    as_json: AsJson = False,
) -> None:
    """Everything on this machine: database and broker (embedded unless set), worker, beat, Flower. Ctrl-C ends it."""
    settings = Settings()
    view = FlowerSettings() if flower else None
    load_kinds(settings)
    _require_given_broker(settings)
    try:
        # Until there are children to end, a signal ends the start wherever it is.
        with _signals_to(signal.default_int_handler), Servers(settings, default_state_dir()) as servers:
            _run(_plan(settings, servers, view, concurrency), servers, loglevel, as_json=as_json)
    except AlreadyRunning as error:
        found(error, as_json=as_json)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        pass
    screen.remark("everything has stopped")


def _require_given_broker(settings: Settings) -> None:
    # Celery and Redis come with it: 0.4 s that other commands do without.
    from agentrun.broker.probe import probe

    problem = probe(settings).problem if settings.broker_url else None
    if problem:
        raise ConfigurationError(problem)


def _plan(settings: Settings, servers: Servers, view: FlowerSettings | None, concurrency: int) -> Up:
    queues = {settings.queue: None, settings.system_queue: None}
    for name in registry.names():
        kind = registry.get(name)
        if kind is not None and kind.options.queue:
            queues[settings.queue_of(kind.options.queue)] = None
    if view is not None:
        port = view.port if is_free(view.port) else free_port()
        view = view.model_copy(update={"password": view.password or generated_password(), "port": port})
    return Up(settings, servers, tuple(queues), registry.names(), concurrency, view)


def _run(plan: Up, servers: Servers, loglevel: LogLevel, *, as_json: bool) -> None:
    migrate(servers.database_url)
    children = Children(_children(plan, loglevel), say=screen.remark, lock=servers.lock)
    with contextlib.closing(children), _signals_to(children.signalled):
        try:
            announced(plan, as_json=as_json)
            children.start()
            children.keep(lambda: _revive(servers))
            drain = plan.settings.drain_seconds
            screen.remark(f"stopping: the worker hands its runs back (up to {drain:g} s); once more kills it")
        finally:
            children.stop(plan.settings.drain_seconds + OVERTIME_SECONDS)


def _children(plan: Up, loglevel: LogLevel) -> list[Child]:
    env = {
        **os.environ,
        f"{PREFIX}DATABASE_URL": plan.servers.database_url,
        f"{PREFIX}BROKER_URL": plan.servers.broker_url,
        "PYTHONUNBUFFERED": "1",
    }
    celery = (sys.executable, "-m", "celery", "-A", APP)
    threads = ("-P", "threads", "-c", str(plan.concurrency), "-Q", ",".join(plan.queues), "-n", "agentrun@%h")
    schedule = str(plan.servers.state_dir / "beat-schedule")
    children = [
        Child("worker", (*celery, "worker", "-E", *threads, "-l", loglevel), env),
        Child("beat", (*celery, "beat", "--schedule", schedule, "-l", loglevel), env),
    ]
    if plan.view is not None:
        # Not on the command line: there everybody could see the password. Ours is the one that was announced.
        secret = {f"{FLOWER_PREFIX}PASSWORD": plan.view.password or "", "FLOWER_BASIC_AUTH": ""}
        where = (f"--conf={CONFIG}", f"--port={plan.view.port}")
        children.append(Child("Flower", (*celery, "flower", *where), env | secret))
    return children


def _revive(servers: Servers) -> None:
    for name in servers.revive():
        screen.remark(f"the embedded {name} ended without being told to; it runs again")


@contextmanager
def _signals_to(signalled: Signalled) -> Generator[None]:
    """Let SIGINT, SIGTERM and a closed terminal end us in order; a hangup that is ignored (nohup) stays so.

    SIGINT is heard even where we were started with it ignored, as a shell script starts what it puts into the
    background: otherwise Ctrl-C would end the script, and leave servers and workers behind.
    """
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if number is not signal.SIGHUP or before[number] is not signal.SIG_IGN:
            signal.signal(number, signalled)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
