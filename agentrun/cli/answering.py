"""`agentrun inbox|approve|reject|input|signal|signals|resume`: what waits for people, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from agentrun.cli import screen
from agentrun.cli.asking import inbox_json, inbox_row
from agentrun.cli.base import AllNamespaces, AsJson, By, RunId
from agentrun.cli.desk import client, found_settings, load_kinds, places, run_id_of, somebody
from agentrun.cli.form import filled
from agentrun.cli.story import outcome_line, run_json
from agentrun.cli.words import duration, json_value
from agentrun.client import Client
from agentrun.core.errors import AgentrunError, InvalidRequest, NotAllowed
from agentrun.core.records import Run

group = typer.Typer()

Key = Annotated[str | None, typer.Option("--key", help="Which wait, where the run has several open.")]
Digest = Annotated[str | None, typer.Option("--digest", help="Bind it to what was read (`inbox --json`).")]
Comment = Annotated[str | None, typer.Option("--comment", help="Kept with the decision.")]
Here = Annotated[bool, typer.Option("--here", help="Go on with the run in this process.")]


@group.command("inbox")
def inbox(
    role: Annotated[str | None, typer.Option("--role", help="Only what is addressed to this role.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="approval, input or signal.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 100,
    payloads: Annotated[bool, typer.Option("--payloads", help="Show what is asked in full.")] = False,
    all_namespaces: AllNamespaces = False,
    as_json: AsJson = False,
) -> None:
    """What waits for people, oldest first, with the command that answers it."""
    rows: list[Mapping[str, Any]] = []
    for place in places(found_settings(), all_namespaces=all_namespaces):
        with client(place) as reader:
            found = reader.inbox(role=role, kind=kind, limit=limit)
            rows += [{**row, "namespace": place.namespace} for row in found]
    rows = sorted(rows, key=lambda row: row["created_at"])[:limit]
    if as_json:
        screen.show_json([inbox_json(row, payloads=payloads) for row in rows])
        return
    if not rows:
        screen.remark("nothing waits for anybody")
        return
    columns = ("waits for", "run", "kind", "asks", "of", "answer with")
    shown = [inbox_row(row, payloads=payloads) for row in rows]
    if all_namespaces:
        columns = ("namespace", *columns)
        shown = [[row["namespace"], *each] for row, each in zip(rows, shown, strict=True)]
    screen.show(screen.table(*columns, rows=shown))


@group.command("approve")
def approve(
    run: RunId,
    key: Key = None,
    digest: Digest = None,
    comment: Comment = None,
    edits: Annotated[str | None, typer.Option("--edits", help="Approve this JSON in place of what was asked.")] = None,
    by: By = None,
    here: Here = False,
    as_json: AsJson = False,
) -> None:
    """Approve what a run asks. Single-use: of two decisions one wins, and the other is told."""
    changed = json_value(edits) if edits is not None else None
    _answered(
        run,
        as_json,
        lambda desk, run_id: desk.approve(
            run_id, by=somebody(by), key=key, digest=digest, comment=comment, edits=changed, here=here
        ),
        here=here,
    )


@group.command("reject")
def reject(
    run: RunId,
    key: Key = None,
    digest: Digest = None,
    comment: Comment = None,
    by: By = None,
    here: Here = False,
    as_json: AsJson = False,
) -> None:
    """Deny what a run asks: a result for its body or model, not the run's end."""
    _answered(
        run,
        as_json,
        lambda desk, run_id: desk.reject(run_id, by=somebody(by), key=key, digest=digest, comment=comment, here=here),
        here=here,
    )


@group.command("input")
def submit_input(
    run: RunId,
    data: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The data, - for stdin; else you are asked.")
    ] = None,
    key: Key = None,
    by: By = None,
    here: Here = False,
    as_json: AsJson = False,
) -> None:
    """Give the data that a run waits for: as JSON, or by a form made from its schema."""

    def submit(desk: Client, run_id: UUID) -> Run:
        value = json_value(data) if data is not None else filled(_asked(desk, run_id, key))
        return desk.submit_input(run_id, value, by=somebody(by), key=key, here=here)

    _answered(run, as_json, submit, here=here)


@group.command("signal")
def signal(
    run: Annotated[str, typer.Argument(metavar="RUN[,RUN…]", help="The run's id or its start; or several of them.")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="The payload, or - for stdin.")] = "null",
    expires: Annotated[str | None, typer.Option("--expires", help="Kept this long for a later wait: 1h, 2d.")] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Send a signal, to one run or to each of several; it is kept in order until the run waits for it."""
    value, kept = json_value(payload), duration(expires).total_seconds() if expires is not None else None
    who = somebody(by)
    if "," in run:
        _all_told(run, as_json, lambda desk, ids: desk.signal_many(ids, name, value, by=who, expires=kept))
    else:
        _answered(run, as_json, lambda desk, run_id: desk.signal(run_id, name, value, by=who, expires=kept), here=False)


@group.command("signals")
def signals(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Only those of this run.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 100,
    payloads: Annotated[bool, typer.Option("--payloads", help="Show what was sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Signals that came early: kept until their run waits for them, or until they expire."""
    settings = found_settings()
    run_id = run_id_of(settings, run) if run is not None else None
    with client(settings) as reader:
        rows = reader.signals(run_id, limit=limit)
    if as_json:
        screen.show_json([_signal_json(row, payloads=payloads) for row in rows])
    elif not rows:
        screen.remark("no signal is kept")
    else:
        columns = ("kept for", "run", "kind", "run is", "signal", "of", "expires")
        screen.show(screen.table(*columns, rows=[_signal_row(row, payloads=payloads) for row in rows]))


@group.command("resume")
def resume(run: RunId, as_json: AsJson = False) -> None:
    """Go on with a queued run in this process, under a lease of its own."""
    _answered(run, as_json, lambda desk, run_id: desk.resume(run_id), here=True)


def _answered(run: str, as_json: bool, verb: Callable[[Client, UUID], Run], *, here: bool) -> None:
    settings = found_settings()
    run_id = run_id_of(settings, run)
    if here:
        load_kinds(settings)
    with client(settings) as desk:
        moved = verb(desk, run_id)
    if as_json:
        screen.show_json(run_json(moved, payloads=False))
    else:
        screen.show(outcome_line(moved))


def _all_told(runs: str, as_json: bool, verb: Callable[[Client, list[UUID]], list[Run | AgentrunError]]) -> None:
    """Of each what became of it. Ends with the exit code of the first that was refused; the others have theirs."""
    settings = found_settings()
    ids = [run_id_of(settings, run) for run in _each_of(runs)]
    with client(settings) as desk:
        answers = verb(desk, ids)
    if as_json:
        screen.show_json([_answer_json(*each) for each in zip(ids, answers, strict=True)])
    for answer in answers:
        if isinstance(answer, AgentrunError):
            screen.refuse(str(answer))
        elif not as_json:
            screen.show(outcome_line(answer))
    raise typer.Exit(next((answer.exit_code for answer in answers if isinstance(answer, AgentrunError)), 0))


def _each_of(runs: str) -> list[str]:
    """The runs between the commas. Raises InvalidRequest where there is none between two of them, or at an end."""
    named = [run.strip() for run in runs.split(",")]
    if "" in named:
        raise InvalidRequest(
            f"RUN,RUN… names no run in place {named.index('') + 1} of {len(named)}; write one comma between two runs"
        )
    return named


def _answer_json(run_id: UUID, answer: Run | AgentrunError) -> dict[str, Any]:
    if isinstance(answer, Run):
        return run_json(answer, payloads=False)
    return {"id": run_id, "refused": str(answer), "exit_code": answer.exit_code}


def _asked(desk: Client, run_id: UUID, key: str | None) -> Mapping[str, Any]:
    rows = [row for row in desk.waits(run_id) if row["kind"] == "input" and key in (None, row["step_key"])]
    if not rows:
        raise NotAllowed(f"run `{run_id}` waits for no input{f' under key {key}' if key else ''}")
    if len(rows) > 1:
        keys = ", ".join(row["step_key"] for row in rows)
        raise InvalidRequest(f"run `{run_id}` waits for several inputs; name one with --key: {keys}")
    return rows[0]["asks"]


def _signal_row(row: Mapping[str, Any], *, payloads: bool) -> list[Any]:
    sent = Text(screen.clean(row["name"]))
    if payloads:
        sent.append("\n").append(screen.pretty(row["payload"]))
    expires = row["expires_at"] or "with its run"
    age = screen.span(float(row["age"]))
    return [age, row["run_id"], row["run_kind"], row["run_status"], sent, row["sent_by"] or "", expires]


def _signal_json(row: Mapping[str, Any], *, payloads: bool) -> dict[str, Any]:
    names = ("run_id", "run_kind", "run_status", "name", "sent_by", "sent_at", "expires_at")
    return {name: row[name] for name in names} | ({"payload": row["payload"]} if payloads else {})
