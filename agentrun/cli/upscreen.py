"""What `agentrun up` says: what runs where, and what another shell needs to use it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agentrun.broker.flower import PREFIX as FLOWER_PREFIX
from agentrun.broker.flower import FlowerSettings
from agentrun.cli import screen
from agentrun.cli.servers import Servers
from agentrun.core.counting import counted
from agentrun.embedded import AlreadyRunning
from agentrun.settings import PREFIX, Settings


@dataclass(frozen=True, slots=True)
class Up:
    """What is to run. `view` is Flower's settings with its password; None leaves it out."""

    settings: Settings
    servers: Servers
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    concurrency: int
    view: FlowerSettings | None


def announced(plan: Up, *, as_json: bool) -> None:
    """Say it on stdout; the children's lines go to stderr."""
    if as_json:
        screen.show_json(_members(plan))
        return
    screen.show(f"agentrun is up (process {os.getpid()}), with its state in {plan.servers.state_dir}", "")
    screen.show(screen.facts(_where(plan)))
    if not plan.kinds:
        screen.show("", "No kinds are registered: name the modules that hold your bodies in AGENTRUN_IMPORTS.")
    screen.show("", "Your other `agentrun` commands find this by themselves; any other program needs")
    screen.show(*(f"  {line}" for line in _exports(_environment(plan))))
    screen.show("", "Ctrl-C stops everything.")


def found(error: AlreadyRunning, *, as_json: bool) -> None:
    """Another `up` has the state folder: say where its servers are."""
    running = error.running
    screen.refuse(str(error))
    said = {"database_url": running.database_url, "broker_url": running.broker_url, "namespace": running.namespace}
    if as_json:
        screen.show_json({"pid": running.pid, "state_dir": str(error.state_dir), **said})
        return
    if running.namespace == "default":
        del said["namespace"]
    screen.show(*_exports({f"{PREFIX}{name.upper()}": value for name, value in said.items()}))


def _where(plan: Up) -> Iterator[tuple[str, str]]:
    servers = plan.servers
    for name, server, url in (
        ("database", servers.postgres, servers.database_url),
        ("broker", servers.redis, servers.broker_url),
    ):
        address = urlsplit(url).netloc.rpartition("@")[2]
        told = f"embedded {server.name} on {address}, log in {server.log}" if server else f"yours, on {address}"
        yield name, told
    yield "worker", f"{counted(plan.concurrency, 'run')} at a time, queues {', '.join(plan.queues)}"
    yield "kinds", ", ".join(plan.kinds) or "none"
    yield "beat", f"a sweep every {screen.span(plan.settings.sweep_seconds)}"
    if plan.view is not None:
        chosen = f"{FLOWER_PREFIX}PASSWORD sets another"
        yield "Flower", f"{_flower_url(plan.view)}, user {plan.view.user}, password {plan.view.password} ({chosen})"


def _flower_url(view: FlowerSettings) -> str:
    return f"http://{view.address}:{view.port}"


def _environment(plan: Up) -> Mapping[str, str]:
    """What differs from the environment of who called us: the embedded servers."""
    said: dict[str, str] = {}
    if plan.servers.postgres is not None:
        said[f"{PREFIX}DATABASE_URL"] = plan.servers.database_url
    if plan.servers.redis is not None:
        said[f"{PREFIX}BROKER_URL"] = plan.servers.broker_url
    if plan.settings.namespace != "default":
        said[f"{PREFIX}NAMESPACE"] = plan.settings.namespace
    return said


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _members(plan: Up) -> dict[str, Any]:
    view = plan.view
    return {
        "pid": os.getpid(),
        "state_dir": str(plan.servers.state_dir),
        "database_url": plan.servers.database_url,
        "broker_url": plan.servers.broker_url,
        "namespace": plan.settings.namespace,
        "queues": plan.queues,
        "kinds": plan.kinds,
        "flower": {"url": _flower_url(view), "user": view.user, "password": view.password} if view else None,
    }
