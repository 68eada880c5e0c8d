"""`agentrun doctor`: what is wrong now, why, what says so, and the one command that heals it. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

import typer
from rich.text import Text

from agentrun.cli import screen
from agentrun.cli.base import AllNamespaces, AsJson
from agentrun.cli.desk import database_of, found_settings
from agentrun.cli.unusable import read_only, unusable
from agentrun.core.errors import ConfigurationError, SchemaMismatch
from agentrun.core.records import Run, Step
from agentrun.core.words import Status, StepStatus
from agentrun.runtime import fleet, symptoms
from agentrun.runtime.deaf import deaf_workers
from agentrun.runtime.doctor import Broker, Facts, Finding, Row, Severity, examined, exit_code, gather, namespaces
from agentrun.settings import PREFIX, Settings
from agentrun.store.database import Database
from agentrun.store.diagnosis import READ_ONLY
from agentrun.store.schema import require_head
from agentrun.store.troubles import explained
from agentrun.store.watching import moment

group = typer.Typer()

MOST_NAMED = 5
"""Namespaces that one finding names."""

CHECKS = (*symptoms.CHECKS, deaf_workers, *fleet.CHECKS)


@group.command("doctor")
def doctor(all_namespaces: AllNamespaces = False, as_json: AsJson = False) -> None:
    """What is wrong now, and the command that heals it. Exit 0: nothing or notices; 1: warnings; 2: errors."""
    found = list(findings(all_namespaces=all_namespaces))
    found.sort(key=lambda finding: list(Severity).index(finding.severity))
    if as_json:
        screen.show_json({"healthy": exit_code(found) == 0, "findings": [asdict(each) for each in found]})
    elif found:
        screen.show(*(part for each in found for part in _told(each, namespace=all_namespaces)))
    else:
        screen.show("nothing is wrong")
    raise typer.Exit(exit_code(found))


def findings(*, all_namespaces: bool) -> Iterator[Finding]:
    """Everything; what cannot be looked at, because what it needs is broken, is left out."""
    try:
        settings = found_settings()
    except ConfigurationError as error:
        yield _broken("settings", str(error), "the environment of this command", "agentrun check")
        return
    unset = [name for name in ("database_url", "broker_url") if getattr(settings, name) is None]
    if unset:
        yield _not_set(unset)
    if "database_url" not in unset:
        yield from _looked_at(settings, all_namespaces=all_namespaces, broker="broker_url" not in unset)


def _looked_at(settings: Settings, *, all_namespaces: bool, broker: bool) -> Iterator[Finding]:
    every: list[Facts] = []
    try:
        with database_of(settings) as database:
            require_head(database.url)
            (writing,) = database.rows(READ_ONLY)
            if writing["read_only"]:
                # What else is found then follows from it: nobody can say that he is alive.
                yield read_only(writing)
                return
            every += _facts(database, settings, all_namespaces=all_namespaces)
            if not all_namespaces:
                yield from _nothing_here(database, every[0])
            yield from _own_clock(database, settings)
    except SchemaMismatch as error:
        yield _schema(error)
    except Exception as error:
        known = error if isinstance(error, ConfigurationError) else explained(error)
        if known is None:
            raise
        yield unusable(known)
    said = _broker(settings, every) if broker else None
    for facts in every:
        yield from examined(replace(facts, broker=said), CHECKS)
    if said is not None:
        yield from fleet.broker_findings(said, settings)


def _facts(database: Database, settings: Settings, *, all_namespaces: bool) -> Iterator[Facts]:
    for namespace in namespaces(database) if all_namespaces else [settings.namespace]:
        yield gather(database, settings.model_copy(update={"namespace": namespace}), namespace)


def _nothing_here(database: Database, facts: Facts) -> Iterator[Finding]:
    """A namespace that nobody has used looks as quiet as a healthy one."""
    if facts.processes or facts.sweep["age"] is not None:
        return
    used = namespaces(database)
    if used and facts.namespace not in used:
        more = f" and {len(used) - MOST_NAMED} more" if len(used) > MOST_NAMED else ""
        yield Finding(
            "empty_namespace",
            Severity.NOTICE,
            f"namespace `{facts.namespace}` has no runs and no workers, and never had a sweep; others have",
            "AGENTRUN_NAMESPACE is misspelt or not set here, or nothing has begun in it yet",
            f"there is something in: {', '.join(used[:MOST_NAMED])}{more}",
            "agentrun doctor --all-namespaces",
            namespace=facts.namespace,
        )


def _own_clock(database: Database, settings: Settings) -> Iterator[Finding]:
    # Compared, never used: every instant that counts is the database's.
    skew = (datetime.now(UTC) - moment(database, settings.namespace).now).total_seconds()  # noqa: TID251
    if abs(skew) > fleet.LARGEST_SKEW_SECONDS:
        yield fleet.skewed("this host", skew)


def _broker(settings: Settings, every: Sequence[Facts]) -> Broker:
    queues = {settings.queue, settings.system_queue}
    for facts in every:
        queues |= facts.queues | {row["queue"] for row in (*facts.due, *facts.offered)}
    # Celery and Redis come with it: 0.4 s that other commands do without.
    from agentrun.broker.look import look

    return look(settings, queues)


def nobody_took(settings: Settings, run: Run, steps: Sequence[Step], now: datetime) -> Finding | None:
    """What keeps a run from being taken that is due, or its remote steps: nobody listens, nobody knows it, or its
    worker lives and takes nothing.

    The database is asked only where something is due, and the broker only where somebody is suspected.
    """
    due, offered = _waiting(run, steps, now)
    if not due and not offered:
        return None
    with database_of(settings) as database:
        facts = replace(gather(database, settings, run.namespace), due=due, offered=offered)
    if found := examined(facts, symptoms.NOT_TAKEN):
        return found[0]
    if not any(True for _ in deaf_workers(facts)) or settings.broker_url is None:
        return None
    return next(iter(examined(replace(facts, broker=_broker(settings, [facts])), [deaf_workers])), None)


def _waiting(run: Run, steps: Sequence[Step], now: datetime) -> tuple[list[Row], list[Row]]:
    """What is due of this run and its steps, as the facts have it."""

    def row(name: str, called: str | None, queue: str | None, since: datetime) -> Row:
        return {name: called, "queue": queue, "count": 1, "oldest": (now - since).total_seconds()}

    due = [row("kind", run.kind, run.queue, run.due_at)] if run.status is Status.QUEUED and run.due_at else []
    offered = [
        row("name", each.name, each.queue, each.due_at or each.offered_at)
        for each in steps
        if run.status is Status.WAITING and each.status == StepStatus.OFFERED and each.queue and each.offered_at
    ]
    return [each for each in due if each["oldest"] >= 0], [each for each in offered if each["oldest"] >= 0]


def _schema(error: SchemaMismatch) -> Finding:
    if error.newer:
        cause = "a newer version of agentrun was here, and this one does not know its schema"
        return _broken("schema", str(error).partition("; run")[0], cause, "pip install --upgrade agentrun")
    cause = "nobody has made it yet" if error.missing else "an older version of agentrun was here"
    return _broken("schema", str(error), cause, "agentrun migrate")


def _broken(check: str, says: str, cause: str, heal: str) -> Finding:
    return Finding(check, Severity.ERROR, f"nothing works without the {check}", cause, says, heal)


_EXAMPLES = {"database_url": "postgresql://USER@HOST:5432/NAME", "broker_url": "redis://HOST:6379/0"}


def _not_set(names: Sequence[str]) -> Finding:
    variables = {f"{PREFIX}{name.upper()}": _EXAMPLES[name] for name in names}
    return Finding(
        "settings",
        Severity.ERROR,
        f"{' and '.join(variables)} {'is' if len(names) == 1 else 'are'} not set",
        "this command needs the environment of your workers and producers, or a `.env` here",
        "neither the environment nor a `.env` in this folder says so"
        + (", and no `agentrun up` of yours runs" if len(names) == len(_EXAMPLES) else ""),
        "export " + " ".join(f"{name}={example}" for name, example in variables.items()),
    )


def _told(finding: Finding, *, namespace: bool) -> Iterator[Text]:
    where = f"  [{finding.namespace}]" if namespace and finding.namespace else ""
    yield screen.status(str(finding.severity)) + Text(f"  {finding.check}{where}", style="bold")
    for name in ("symptom", "cause", "evidence", "heal", "needs"):
        if said := getattr(finding, name):
            yield Text(f"  {name:<9}", style="dim") + Text(screen.clean(said))
