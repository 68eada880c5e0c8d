"""One run on one screen: how it stands and why, its story, its journal, its error. Payloads only where asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from agentrun.cli.asking import asked
from agentrun.cli.elsewhere import done_elsewhere
from agentrun.cli.screen import clean, facts, instant, pretty, shortened, span, status, table
from agentrun.cli.why import Standing
from agentrun.core.records import Event, Run, Step, Usage
from agentrun.core.words import StepKind

PRIVATE = ("request", "result", "progress")


def run_json(run: Run, *, payloads: bool) -> dict[str, Any]:
    """A run as JSON members; without what it was asked and answered unless `payloads`."""
    members = {field.name: getattr(run, field.name) for field in fields(run)}
    if not payloads:
        members = {name: value for name, value in members.items() if name not in PRIVATE}
        members["error"] = _without_arguments(run.error)
    return members


def step_json(step: Step, *, payloads: bool) -> dict[str, Any]:
    """A step as JSON members."""
    return {field.name: getattr(step, field.name) for field in fields(step) if payloads or field.name not in PRIVATE}


def event_json(event: Event, *, payloads: bool) -> dict[str, Any]:
    """An event as JSON members."""
    members = {field.name: getattr(event, field.name) for field in fields(event)}
    if not payloads:
        failures = {name: _without_arguments(event.data[name]) for name in ("error", "failure") if name in event.data}
        members["data"] = {**event.data, **failures}
    return members


def told(
    run: Run,
    standing: Standing,
    events: Sequence[Event],
    steps: Sequence[Step],
    waits: Sequence[Mapping[str, Any]],
    *,
    now: datetime,
    payloads: bool,
) -> Iterator[RenderableType]:
    """The screen, from top to bottom."""
    yield _header(run, now)
    if standing.why is not None:
        yield Text()
        yield Text("why  ", style="bold yellow") + Text(clean(standing.why))
    yield from asked(waits, payloads=payloads)
    yield Text()
    yield table("when", "after", "event", "what", title="Story", rows=shortened(_event_rows(run, events)))
    if steps:
        yield Text()
        yield table(
            "key", "step", "kind", "effect", "status", "attempt", "took", "tokens",
            title="Journal", rows=shortened([_step_row(step) for step in steps]),
        )  # fmt: skip
    yield from done_elsewhere(steps, now)
    yield from _error(run)
    if payloads:
        yield from _payloads(run, steps)
    if standing.heal is not None:
        yield Text()
        yield Text("next  ", style="bold green") + Text(clean(standing.heal))


def event_line(event: Event) -> Text:
    """One event as one line."""
    at = event.at.strftime("%H:%M:%S.%f")[:-3]
    return Text(f"{at}  ", style="dim") + Text(f"{event.type:<16}  ") + Text(clean(_what(event)), style="dim")


def outcome_line(run: Run) -> Text:
    """How a run stands, in one line; of one that goes on, without the error that stopped it once."""
    line = Text(f"run {run.id} is ") + status(run.status)
    if run.reason is not None and str(run.reason) != str(run.status):
        line += Text(f" ({run.reason})")
    message = run.error.get("message") if run.error and run.status.final else None
    return line + Text(clean(f": {message}")) if message else line


def usage_text(usage: Usage) -> str | None:
    """What was spent; None for nothing."""
    if not (usage.model_calls or usage.input_tokens or usage.output_tokens or usage.cost):
        return None
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    return f"{usage.model_calls} model calls, {tokens}, ${usage.cost:.4f}"


def _header(run: Run, now: datetime) -> RenderableType:
    state = status(run.status)
    if run.reason is not None and str(run.reason) != str(run.status):
        state += Text(f" ({run.reason})")
    return facts(
        [
            ("run", run.id),
            ("kind", run.kind),
            ("status", state),
            ("waiting on", run.waiting_on),
            ("in flight", run.pending_effect),
            ("owner", run.owner),
            ("executed by", f"{run.claimed_by}, epoch {run.epoch}" if run.claimed_by else None),
            ("lease until", run.lease_expires_at),
            ("due", run.due_at),
            ("deadline", run.deadline_at),
            ("queue", f"{run.queue}, priority {run.priority}"),
            ("counts", _counts(run)),
            ("usage", usage_text(run.usage)),
            ("tags", list(run.tags) or None),
            ("attributes", json.dumps(dict(run.attributes), ensure_ascii=False) if run.attributes else None),
            ("idempotency key", run.idempotency_key),
            ("parent", run.parent_id),
            ("enqueued", _ago(run.created_at, now)),
            ("finished", _ago(run.finished_at, now)),
        ]
    )


def _counts(run: Run) -> str:
    named = {
        "segments": run.epoch,
        "requeues": run.requeue_count,
        "crashes": run.crash_count,
        "errors": run.error_count,
        "hand-backs": run.handback_count,
    }
    return ", ".join(f"{name} {count}" for name, count in named.items())


def _ago(at: datetime | None, now: datetime) -> str | None:
    return f"{instant(at)} UTC, {span(now - at)} ago" if at else None


def _event_rows(run: Run, events: Sequence[Event]) -> list[tuple[Any, ...]]:
    return [
        (instant(event.at), f"+{span(event.at - run.created_at)}", str(event.type), _what(event)) for event in events
    ]


def _what(event: Event) -> str:
    """An event's data in words; what nobody reads at a glance (tokens, sizes) is left to --json."""
    data = dict(event.data)
    parts = [str(data[name]) for name in ("name", "reason", "to") if data.get(name) is not None]
    if "key" in data:
        parts.append(f"[{data['key']}]")
    if data.get("kind") == StepKind.TRANSACTION:
        parts.append("in one transaction with its record")
    if data.get("attempt", 1) > 1:
        parts.append(f"attempt {data['attempt']}")
    if data.get("redispatched"):
        parts.append("re-dispatched")
    if "trouble" in data:
        parts.append(_TROUBLES.get(data["trouble"]) or str(data["trouble"]))
    if "delay" in data:
        parts.append(f"again in {span(data['delay'])}")
    if "lost" in data:
        parts.append(f"lost: {data['lost']}")
    failure = data.get("error") or data.get("failure")
    if failure:
        parts.append(f"{failure.get('type')}: {failure.get('message')}")
    if data.get("by"):
        parts.append(f"by {data['by']}")
    return "  ".join(parts)


_TROUBLES = {
    "lost": "its taker died",
    "silent": "its taker was silent for too long",
    "unclaimed": "nobody took it in time",
    "by hand": "sent again by hand",
}


def _step_row(step: Step) -> tuple[Any, ...]:
    took = span(step.finished_at - step.started_at) if step.finished_at and step.started_at else None
    spent = step.usage.input_tokens + step.usage.output_tokens
    state = status(step.status)
    # To its run a transaction is as safe to begin again as a read, and to whoever looks it is none.
    effect = "exactly once" if step.kind == StepKind.TRANSACTION else step.effect
    return step.key, step.name, step.kind, effect, state, step.attempt, took, f"{spent:,}" if spent else None


def _error(run: Run) -> Iterator[RenderableType]:
    if run.error is None:
        return
    error = run.error
    yield Text()
    yield Text("error  ", style="bold red") + Text(clean(f"{error.get('type')}: {error.get('message')}"))
    yield facts([("class", error.get("class")), ("step", error.get("step"))])
    for write in error.get("in_flight") or ():
        yield facts(
            [
                ("write in flight", f"{write.get('name')} [{write.get('key')}], {write.get('effect')}"),
                ("idempotency key", write.get("idempotency_key")),
                ("started", f"{write.get('started_at')} by {write.get('by')}"),
            ]
        )


def _payloads(run: Run, steps: Sequence[Step]) -> Iterator[RenderableType]:
    named = [("request", run.request), ("result", run.result)]
    named += [(f"result of {step.name} [{step.key}]", step.result) for step in steps]
    for name, value in named:
        if value is not None:
            yield Text()
            yield Text(clean(name), style="bold")
            yield pretty(value)
    for write in (run.error or {}).get("in_flight") or ():
        if write.get("args") is not None:
            yield Text()
            yield Text(clean(f"arguments of {write.get('name')} [{write.get('key')}]"), style="bold")
            yield pretty(write["args"])


def _without_arguments(error: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if error is None or not error.get("in_flight"):
        return error
    writes = [{name: value for name, value in write.items() if name != "args"} for write in error["in_flight"]]
    return {**error, "in_flight": writes}
