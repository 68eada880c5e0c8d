"""`agentrun check|kinds|migrate|sweep`: whether an installation is sound, and what keeps it so."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import asdict
from typing import Annotated, Any

import typer

from agentrun.broker import CeleryPublisher
from agentrun.cli import screen
from agentrun.cli.base import AsJson
from agentrun.cli.checks import Finding, Level, findings
from agentrun.cli.desk import database_of, found_settings, load_kinds
from agentrun.core.counting import counted
from agentrun.core.errors import NotAllowed
from agentrun.runtime.effects import UNDECLARED
from agentrun.runtime.kinds import Kind, registry
from agentrun.runtime.remotesteps import RemoteStep, remote_steps
from agentrun.runtime.upkeep import Sweep
from agentrun.settings import Settings
from agentrun.store import schema

group = typer.Typer()


@group.command("check")
def check(as_json: AsJson = False) -> None:
    """Look at settings, database, schema, clock, sweep, workers, broker and kinds; errors apart from warnings."""
    found = list(findings())
    if as_json:
        screen.show_json({"ok": not _of(found, Level.ERROR), "findings": found})
    else:
        rows = [(each.about, screen.status(each.level), each.says) for each in found]
        screen.show(screen.table("what", "", "", rows=rows))
    errors, warnings = _of(found, Level.ERROR), _of(found, Level.WARNING)
    said = f"{counted(len(errors), 'error')}, {counted(len(warnings), 'warning')}"
    if errors:
        screen.refuse(f"{said}; the first error: {errors[0].says}")
        raise typer.Exit(errors[0].exit_code)
    screen.remark(said)


@group.command("kinds")
def kinds(as_json: AsJson = False) -> None:
    """The kinds and remote steps that AGENTRUN_IMPORTS registers, with their requests and options."""
    settings = found_settings()
    load_kinds(settings)
    known = [registry.require(name) for name in registry.names()]
    steps = [remote_steps.require(name) for name in remote_steps.names()]
    if as_json:
        told = [_as_json(kind, settings.queue_of(kind.options.queue)) for kind in known]
        screen.show_json({"kinds": told, "remote_steps": [_step_json(step, settings) for step in steps]})
        return
    if not known:
        screen.remark("no kinds; name the modules that hold your bodies in AGENTRUN_IMPORTS")
    if known or steps:
        rows = [(kind.name, _members(kind), settings.queue_of(kind.options.queue), _body(kind)) for kind in known]
        rows += [
            (step.name, _members(step), settings.queue_of(step.queue), f"remote step {_source(step.function)}")
            for step in steps
        ]
        screen.show(screen.table("kind", "request", "queue", "body", rows=rows))


@group.command("migrate")
def migrate(
    to: Annotated[str, typer.Option(metavar="REVISION", help="Another revision than the newest; `base` is none.")] = (
        "head"
    ),
    yes: Annotated[bool, typer.Option("--yes", help="Yes, drop what an older revision has no place for.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the database's schema to the revision that this version needs. Safe to run from several places at once."""
    settings = found_settings()
    url = settings.direct_database_url or settings.require_database()
    before = schema.current(url)
    if before is not None and not yes and schema.leads_down(url, to):
        raise NotAllowed(
            f"`--to {to}` is older than {before}, where the database is: it drops what came since (`base`: every run); "
            "add --yes if that is meant"
        )
    after = schema.migrate(url, to)
    if as_json:
        screen.show_json({"from": before, "to": after})
    elif before == after:
        screen.show(f"the schema is at revision {after or 'none'} already")
    else:
        screen.show(f"the schema went from revision {before or 'none'} to {after or 'none'}")


@group.command("sweep")
def sweep(as_json: AsJson = False) -> None:
    """One sweep, now: requeue what lost its worker, end what is past its deadline, wake what no message will wake."""
    settings = found_settings()
    settings.require_broker()
    by = f"sweep:{socket.gethostname()}:{os.getpid()}"
    with database_of(settings) as database, contextlib.closing(CeleryPublisher(settings)) as publisher:
        found = asdict(Sweep(settings, database, publisher, by=by).run())
    if as_json:
        screen.show_json(found)
    else:
        told = [f"{name.replace('_', '-')} {count}" for name, count in found.items() if count]
        screen.show(", ".join(told) or "nothing to do")


def _of(found: list[Finding], level: Level) -> list[Finding]:
    return [each for each in found if each.level is level]


def _as_json(kind: Kind, queue: str) -> dict[str, Any]:
    options = kind.options
    return {
        "name": kind.name,
        "body": _source(kind.body),
        "agent": _agent(kind),
        "async": kind.is_async,
        "queue": queue,
        "max_requeues": options.max_requeues,
        "timeout": options.timeout.total_seconds() if options.timeout else None,
        "lease_seconds": options.lease_seconds,
        "attempts": options.retries.attempts,
        "request": kind.request.json_schema(),
    }


def _step_json(step: RemoteStep, settings: Settings) -> dict[str, Any]:
    return {
        "name": step.name,
        "function": _source(step.function),
        "async": step.is_async,
        "queue": settings.queue_of(step.queue),
        "effect": None if step.declares is UNDECLARED else str(step.declares.effect),
        "input": step.input.json_schema(),
    }


def _members(registered: Kind | RemoteStep) -> str:
    return ", ".join(registered.takes) or "nothing"


def _body(kind: Kind) -> str:
    agent = _agent(kind)
    return _source(kind.body) if agent is None else f"agent {agent}"


def _agent(kind: Kind) -> str | None:
    """The agent's name, else its kind's: every agent has the same body."""
    if "agent" not in kind.about:
        return None
    return getattr(kind.about["agent"], "name", None) or kind.name


def _source(function: object) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
