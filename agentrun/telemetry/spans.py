"""Spans of segments and steps. All of a run's are one trace, whatever process or day they are from: its id is the
run's.

No payload, prompt or message of an error gets into a span; of an error, only the type does.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import UUID

from opentelemetry import context, trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, StatusCode, Tracer

from agentrun.core.failures import qualified_name
from agentrun.core.words import Outcome, StepKind
from agentrun.runtime.lease import Lease
from agentrun.runtime.observing import Seen
from agentrun.runtime.presence import own_version
from agentrun.runtime.settling import Report
from agentrun.runtime.stepspec import StepSpec
from agentrun.settings import Settings
from agentrun.telemetry.roots import root_of, with_ids_of

log = logging.getLogger("agentrun.telemetry")

Attributes = dict[str, str | int]

ENDS = (Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED)


class Spans:
    """Makes spans with the process's TracerProvider."""

    def __init__(self, settings: Settings) -> None:
        self._tracer, self._ratio = trace.get_tracer("agentrun", own_version()), settings.trace_ratio
        self._everywhere: Attributes = {"agentrun.namespace": settings.namespace}

    @contextmanager
    def segment(self, claimed: Mapping[str, Any], lease: Lease) -> Generator[Seen | None]:
        """A segment's span: the parent of its steps and of what its body does between them."""
        attributes: Attributes = {
            "agentrun.run.kind": claimed["kind"],
            "agentrun.run.epoch": lease.epoch,
            "agentrun.run.requeues": claimed["requeue_count"],
            "agentrun.queue": claimed["queue"],
            "agentrun.segment.kind": lease.owner.partition(":")[0],
        }
        seen = None
        with self._span("agentrun.segment", lease, attributes, list(self._links(claimed))) as span:
            if span.is_recording():
                seen = SeenSegment(self._tracer, span, lease.run_id)
            yield seen
        if seen is not None and seen.report is not None and seen.report.outcome in ENDS:
            self._whole(claimed, seen.report, getattr(span, "start_time", None))

    def remote_step(self, taken: Mapping[str, Any], lease: Lease) -> AbstractContextManager[object]:
        """The span of a remote step, in the process that has taken it and in the trace of its run."""
        attributes = {
            "agentrun.queue": taken["queue"],
            **_of_step(taken["key"], StepKind.REMOTE, taken["name"], taken["effect"], taken["attempt"]),
        }
        return self._span(f"{StepKind.REMOTE} {taken['name']}", lease, attributes, list(_around(lease.run_id)))

    def _whole(self, claimed: Mapping[str, Any], report: Report, began: int | None) -> None:
        """The span of the run, from its enqueueing until now: what its segments have named as their parent.

        `began` is when this segment did, by this host's clock, which may be behind the database's.
        """
        tracer = with_ids_of(root_of(report.run_id, self._ratio), self._tracer)
        if tracer is None:
            return
        attributes: Attributes = {
            "agentrun.run.id": str(report.run_id),
            "agentrun.run.kind": claimed["kind"],
            "agentrun.run.requeues": claimed["requeue_count"],
            "agentrun.run.reason": report.reason or "?",
            "agentrun.queue": claimed["queue"],
        }
        born = int(claimed["created_at"].timestamp() * 1e9)
        began = born if began is None else min(born, began)
        span = _begun(tracer, "agentrun.run", context.Context(), self._everywhere | attributes, start_time=began)
        if report.outcome == Outcome.FAILED:
            _failed(span, _type_of(report))
        _ended(span)

    def _span(self, name: str, lease: Lease, attributes: Attributes, links: list[Link]) -> _Current:
        root = NonRecordingSpan(root_of(lease.run_id, self._ratio))
        held: Attributes = {
            "agentrun.run.id": str(lease.run_id),
            "agentrun.claimed_by": lease.owner,
        }
        parent = trace.set_span_in_context(root)
        return _Current(_begun(self._tracer, name, parent, self._everywhere | held | attributes, links))

    def _links(self, claimed: Mapping[str, Any]) -> Iterator[Link]:
        """What else has to do with a run: the run whose child it is, and who called for it here."""
        if claimed["parent_id"] is not None:
            yield Link(root_of(claimed["parent_id"], self._ratio), {"agentrun.link": "parent"})
        yield from _around(claimed["id"])


class SeenSegment:
    """A segment whose span is recorded."""

    def __init__(self, tracer: Tracer, span: Span, run_id: UUID) -> None:
        self._tracer, self._span, self._run_id = tracer, span, str(run_id)
        self.report: Report | None = None

    def step(self, spec: StepSpec, attempt: int) -> AbstractContextManager[object]:
        """The span of one attempt, current while the step's function runs, in its thread too."""
        attributes = _of_step(spec.key, spec.kind, spec.name, spec.effect, attempt)
        attributes["agentrun.run.id"] = self._run_id
        return _Current(_begun(self._tracer, f"{spec.kind} {spec.name}", None, attributes), spec.passes)

    def ended(self, report: Report) -> None:
        """How it ended, and after how many steps."""
        self.report = report
        self._span.set_attribute("agentrun.segment.outcome", str(report.outcome))
        self._span.set_attribute("agentrun.steps.executed", report.executed)
        self._span.set_attribute("agentrun.steps.replayed", report.replayed)
        if report.reason is not None:
            self._span.set_attribute("agentrun.run.reason", report.reason)
        if report.outcome in (Outcome.FAILED, Outcome.REQUEUED):
            _failed(self._span, _type_of(report))


def _type_of(report: Report) -> str:
    return str((report.error or {}).get("type", "?"))


def _of_step(key: str, kind: str, name: str, effect: str, attempt: int) -> Attributes:
    return {
        "agentrun.step.key": key,
        "agentrun.step.kind": str(kind),
        "agentrun.step.name": name,
        "agentrun.step.effect": str(effect),
        "agentrun.step.attempt": attempt,
    }


def _around(run_id: UUID) -> Iterator[Link]:
    """The span of somebody else that is current: whoever runs it here and now, or Celery's, which may know who sent
    the message."""
    there = trace.get_current_span().get_span_context()
    if there.is_valid and there.trace_id != run_id.int:
        yield Link(there, {"agentrun.link": "caller"})


def _begun(
    tracer: Tracer,
    name: str,
    parent: context.Context | None,
    attributes: Attributes,
    links: Sequence[Link] = (),
    *,
    start_time: int | None = None,
) -> Span:
    """Traces never break what they look at: samplers and processors are the process's own, and may raise."""
    try:
        return tracer.start_span(name, parent, attributes=attributes, links=links, start_time=start_time)
    except Exception as error:
        log.warning("a span could not be begun (%s)", type(error).__name__)
        return trace.INVALID_SPAN


def _ended(span: Span) -> None:
    try:
        span.end()
    except Exception as error:
        log.warning("a span could not be ended (%s)", type(error).__name__)


class _Current:
    """The span is current, and ends. OpenTelemetry's own way would write the messages of errors into it."""

    __slots__ = ("_passes", "_span", "_token")

    def __init__(self, span: Span, passes: tuple[type[Exception], ...] = ()) -> None:
        self._span, self._passes = span, passes

    def __enter__(self) -> Span:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        context.detach(self._token)
        if kind is not None and not issubclass(kind, Exception):
            # A cancel, or what ends the segment: nothing that went wrong here.
            self._span.set_attribute("agentrun.stopped_by", kind.__name__)
        elif kind is not None and not issubclass(kind, self._passes):
            # What passes is control flow of the body's framework.
            _failed(self._span, qualified_name(kind))
        _ended(self._span)


def _failed(span: Span, error_type: str) -> None:
    span.set_status(StatusCode.ERROR, error_type)
    span.set_attribute("error.type", error_type)
