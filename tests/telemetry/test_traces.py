"""Traces: all of a run in one, only what was executed, and nothing that is private."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from uuid import UUID, uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode
from uuid_utils.compat import uuid7

from agentrun import Client, Context, Effect, Retryable, SyncContext, durable, remote_step
from agentrun.core.words import Segment, StepKind
from agentrun.runtime.engine import Engine
from agentrun.runtime.stepspec import StepSpec
from agentrun.settings import Settings
from agentrun.telemetry import observer
from agentrun.telemetry.roots import root_of
from agentrun.telemetry.spans import SeenSegment
from agentrun.testing import environment
from agentrun.testing.publishing import RecordingPublisher
from agentrun.testing.rows import Rows
from tests.telemetry.conftest import Exported, Traced, is_inside, trace_ids

SECRET = "4111-1111"  # what a body works on


async def look_up() -> str:
    return SECRET


def compute() -> str:
    with trace.get_tracer("a library of theirs").start_as_current_span("theirs"):
        return SECRET


async def fail() -> None:
    raise ValueError(f"cannot use {SECRET}")


def test_two_segments_on_two_engines_are_one_trace_of_the_runs_id(
    client: Client, traced: Traced, exported: Exported, rows: Rows
) -> None:
    tries: list[int] = []

    @durable("twice")
    async def twice(ctx: Context, request: Any) -> None:
        await ctx.step(look_up)
        tries.append(1)
        if len(tries) == 1:
            raise Retryable("the first time")
        await ctx.step(compute)

    run_id = client.enqueue("twice", queue="gpu", tags=["t"])
    first, second = traced(), traced()
    assert first.run(run_id).outcome == "requeued"
    rows.make_due(run_id)
    assert second.run(run_id).outcome == "completed"
    assert trace_ids(exported.spans) == {run_id}
    assert exported.names() == ["step look_up", "agentrun.segment", "theirs", "step compute", "agentrun.segment"]
    one, two = (dict(segment.attributes or {}) for segment in exported.segments())
    assert one == {
        "agentrun.namespace": "default",
        "agentrun.queue": "gpu",
        "agentrun.claimed_by": first.owner(Segment.WORKER),
        "agentrun.run.id": str(run_id),
        "agentrun.run.kind": "twice",
        "agentrun.run.epoch": 1,
        "agentrun.run.requeues": 0,
        "agentrun.segment.kind": "worker",
        "agentrun.segment.outcome": "requeued",
        "agentrun.steps.executed": 1,
        "agentrun.steps.replayed": 0,
        "error.type": "agentrun.core.errors.Retryable",
    }
    assert (two["agentrun.steps.executed"], two["agentrun.steps.replayed"]) == (1, 1)
    assert (two["agentrun.segment.outcome"], two["agentrun.run.reason"]) == ("completed", "completed")
    roots = {segment.parent.span_id for segment in exported.segments() if segment.parent is not None}
    assert len(roots) == 1, "both hang from the same place"


def test_a_run_that_a_client_executes_itself_is_traced_as_a_workers_is(client: Client, exported: Exported) -> None:
    @durable("here")
    async def here(ctx: Context, request: Any) -> None:
        await ctx.step(look_up)

    client.run("here")
    (run,) = client.list(kind="here")
    assert trace_ids(exported.spans) == {run.id}
    (segment,) = exported.segments()
    assert (segment.attributes or {})["agentrun.segment.kind"] == "interactive"
    assert is_inside(exported.one("step look_up"), segment)


def test_a_step_is_told_with_its_name_and_attempt_and_each_attempt_is_a_span(
    client: Client, traced: Traced, exported: Exported
) -> None:
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("once")
        return 1

    @durable("retries")
    async def retries(ctx: Context, request: Any) -> None:
        await ctx.options(key="mine", retries=3).step(flaky)

    run_id = client.enqueue("retries")
    assert traced().run(run_id).outcome == "completed"
    first, second, _ = exported.spans
    assert dict(second.attributes or {}) == {
        "agentrun.run.id": str(run_id),
        "agentrun.step.key": "mine",
        "agentrun.step.kind": "step",
        "agentrun.step.name": "flaky",
        "agentrun.step.effect": "read_only",
        "agentrun.step.attempt": 2,
    }
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "ConnectionError")
    assert second.status.status_code is StatusCode.UNSET


def test_what_runs_inside_a_step_is_told_inside_it_also_in_a_thread(
    client: Client, traced: Traced, exported: Exported
) -> None:
    async def here() -> str:
        return compute()

    @durable("asynchronous")
    async def asynchronous(ctx: Context, request: Any) -> None:
        await ctx.step(here)

    @durable("synchronous")
    def synchronous(ctx: SyncContext, request: Any) -> None:
        with trace.get_tracer("the body's").start_as_current_span("between"):
            ctx.step(compute)
        ctx.write(compute, effect=Effect.NON_IDEMPOTENT_WRITE)

    assert traced().run(client.enqueue("asynchronous")).outcome == "completed"
    theirs, step, segment = exported.spans
    assert is_inside(theirs, step)
    assert is_inside(step, segment)
    exported.exporter.clear()
    assert traced().run(client.enqueue("synchronous")).outcome == "completed"
    theirs, step, between, in_write, write, segment = exported.spans
    assert [is_inside(*pair) for pair in ((theirs, step), (step, between), (between, segment))] == [True] * 3
    assert [is_inside(*pair) for pair in ((in_write, write), (write, segment))] == [True] * 2
    assert (write.name, (write.attributes or {})["agentrun.step.effect"]) == ("write compute", "non_idempotent_write")


def test_steps_side_by_side_are_told_side_by_side(client: Client, traced: Traced, exported: Exported) -> None:
    @durable("fan")
    async def fan(ctx: Context, request: Any) -> None:
        await ctx.gather(*(ctx.step(compute) for _ in range(3)))

    assert traced().run(client.enqueue("fan")).outcome == "completed"
    (segment,) = exported.segments()
    steps = [span for span in exported.spans if span.name == "step compute"]
    theirs = [span for span in exported.spans if span.name == "theirs"]
    assert [is_inside(step, segment) for step in steps] == [True] * 3
    assert all(sum(is_inside(each, step) for step in steps) == 1 for each in theirs)


def test_of_an_error_only_its_type_is_told(client: Client, traced: Traced, exported: Exported) -> None:
    @durable("fails")
    async def fails(ctx: Context, request: Any) -> None:
        await ctx.step(fail)

    assert traced().run(client.enqueue("fails", SECRET)).outcome == "failed"
    step, segment = exported.spans
    for span in (step, segment):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert span.events == ()
        assert SECRET not in span.to_json()
    assert (segment.attributes or {})["agentrun.run.reason"] == "not_retryable"


def test_a_step_that_takes_too_long_has_failed(client: Client, traced: Traced, exported: Exported) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    @durable("slow")
    async def slow(ctx: Context, request: Any) -> None:
        await ctx.options(timeout=0.05).step(forever)

    traced().run(client.enqueue("slow"))
    assert exported.one("step forever").status.description == "TimeoutError"


@pytest.mark.parametrize(("error", "said"), [(KeyError, None), (asyncio.CancelledError, "CancelledError")])
def test_what_passes_through_a_step_or_ends_it_from_outside_is_no_failure_of_it(
    exported: Exported, error: type[BaseException], said: str | None
) -> None:
    spec = StepSpec("k", StepKind.TOOL, "tool", Effect.READ_ONLY, look_up, str, str, passes=(KeyError,))
    tracer = exported.provider.get_tracer("agentrun")
    with pytest.raises(error), SeenSegment(tracer, tracer.start_span("segment"), uuid4()).step(spec, 1):
        raise error
    (step,) = exported.spans
    assert step.status.status_code is StatusCode.UNSET
    assert (step.attributes or {}).get("agentrun.stopped_by") == said


def test_a_remote_step_is_in_the_trace_of_its_run(
    client: Client, traced: Traced, exported: Exported, publisher: RecordingPublisher
) -> None:
    @remote_step(effect=Effect.READ_ONLY, name="measure")
    def measure(value: int) -> str:
        return compute()

    @durable("asks")
    async def asks(ctx: Context, request: Any) -> None:
        await ctx.remote("measure", 1, effect=Effect.READ_ONLY)

    run_id = client.enqueue("asks")
    engine = traced()
    assert engine.run(run_id).outcome == "waiting"
    (step,) = client.steps(run_id)
    assert engine.run_step(run_id, step.key).outcome == "completed"
    assert engine.run(run_id).outcome == "completed"
    assert exported.names() == ["agentrun.segment", "theirs", "remote measure", "agentrun.segment"]
    assert trace_ids(exported.spans) == {run_id}
    assert is_inside(exported.one("theirs"), exported.one("remote measure"))


def test_the_line_that_ends_a_segment_is_written_inside_its_span(
    client: Client, traced: Traced, exported: Exported, caplog: pytest.LogCaptureFixture
) -> None:
    @durable("tells")
    async def tells(ctx: Context, request: Any) -> None:
        return None

    around: list[trace.SpanContext] = []

    def note(record: logging.LogRecord) -> bool:
        around.append(trace.get_current_span().get_span_context())
        return True

    run_id = client.enqueue("tells")
    caplog.handler.addFilter(note)
    with caplog.at_level(logging.INFO, "agentrun.runtime"):
        traced().run(run_id)
    caplog.handler.removeFilter(note)
    assert caplog.messages == [f"run {run_id}: completed"]
    assert around == [exported.segments()[0].context]


def test_who_called_and_whose_child_it_is_are_links(client: Client, traced: Traced, exported: Exported) -> None:
    @durable("child")
    async def child(ctx: Context, request: Any) -> None:
        return None

    @durable("parent")
    async def parent(ctx: Context, request: Any) -> None:
        await ctx.child("child")

    run_id = client.enqueue("parent")
    engine = traced()
    with exported.provider.get_tracer("a service").start_as_current_span("request") as request:
        engine.run(run_id)
    (born,) = client.list(parent=run_id)
    engine.run(born.id)
    first, second = exported.segments()
    assert [link.context for link in first.links] == [request.get_span_context()]
    assert [UUID(int=link.context.trace_id) for link in second.links] == [run_id]
    assert trace_ids([second]) == {born.id}


# ---- the run as a whole


def test_the_segment_that_ends_a_run_tells_the_whole_of_it_as_the_parent_of_all(
    client: Client, traced: Traced, exported: Exported, rows: Rows
) -> None:
    tries: list[int] = []

    @durable("twice")
    async def twice(ctx: Context, request: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Retryable("the first time")

    run_id = client.enqueue("twice", SECRET, queue="gpu")
    traced().run(run_id)
    assert exported.roots == [], "nobody knows yet when it ends"
    rows.make_due(run_id)
    traced().run(run_id)
    (root,), run = exported.roots, client.status(run_id)
    assert root.parent is None
    assert trace_ids([root]) == {run_id}
    assert [is_inside(segment, root) for segment in exported.segments()] == [True, True]
    assert dict(root.attributes or {}) == {
        "agentrun.namespace": "default",
        "agentrun.queue": "gpu",
        "agentrun.run.id": str(run_id),
        "agentrun.run.kind": "twice",
        "agentrun.run.reason": "completed",
        "agentrun.run.requeues": 1,
    }
    assert root.status.status_code is StatusCode.UNSET
    assert root.start_time == pytest.approx(run.created_at.timestamp() * 1e9, abs=1e6)
    assert root.end_time is not None
    assert all((each.end_time or 0) <= root.end_time for each in exported.spans)
    ids = [span.context.span_id for span in exported.spans if span.context is not None]
    assert len(set(ids)) == len(ids), "all others have ids of their own"


def test_of_a_failed_run_the_whole_has_failed_and_once_more_after_a_redrive(
    client: Client, traced: Traced, exported: Exported
) -> None:
    @durable("fails")
    async def fails(ctx: Context, request: Any) -> None:
        await ctx.step(fail)

    run_id = client.enqueue("fails", SECRET)
    traced().run(run_id)
    client.redrive(run_id)
    traced().run(run_id)
    first, second = exported.roots
    for root in (first, second):
        assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "ValueError")
        assert SECRET not in root.to_json()
    assert (first.context, first.start_time) == (second.context, second.start_time)
    assert (first.end_time or 0) < (second.end_time or 0)


def test_a_segment_that_does_not_end_its_run_tells_nothing_of_the_whole(
    client: Client, traced: Traced, exported: Exported
) -> None:
    @durable("waits")
    async def waits(ctx: Context, request: Any) -> None:
        await ctx.signal("go")

    assert traced().run(client.enqueue("waits")).outcome == "waiting"
    assert len(exported.segments()) == 1
    assert exported.roots == []


def test_the_whole_is_sampled_as_its_segments_are(
    client: Client, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a sampler takes no trace that begins by itself."""

    @durable("plain")
    async def plain(ctx: Context, request: Any) -> None:
        return None

    for sampler, count in ((ParentBased(ALWAYS_OFF), 1), (ALWAYS_OFF, 0)):
        made = Exported(sampler)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.provider)
        traced().run(client.enqueue("plain"))
        assert (len(made.segments()), len(made.roots)) == (count, count)


class Wrapped(trace.Tracer):
    """Somebody's own, which lets nobody choose an id."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def start_span(self, *args: Any, **options: Any) -> trace.Span:
        return self._tracer.start_span(*args, **options)

    def start_as_current_span(self, *args: Any, **options: Any) -> Any:
        return self._tracer.start_as_current_span(*args, **options)


def test_where_no_id_can_be_chosen_there_is_no_whole_and_the_rest_is_as_ever(
    client: Client, traced: Traced, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    @durable("plain")
    async def plain(ctx: Context, request: Any) -> None:
        return None

    tracer = Wrapped(exported.provider.get_tracer("agentrun"))
    monkeypatch.setattr(exported.provider, "get_tracer", lambda *_: tracer)
    assert traced().run(client.enqueue("plain")).outcome == "completed"
    assert (len(exported.segments()), exported.roots) == (1, [])


# ---- whether


@pytest.mark.settings(trace_ratio=0.0)
def test_with_a_ratio_of_zero_there_is_nobody_who_looks_on(settings: Settings) -> None:
    assert observer(settings) is None


@pytest.mark.usefixtures("nothing_set_up")
def test_without_a_provider_nobody_sees_the_steps(client: Client, traced: Traced) -> None:
    contexts: list[trace.SpanContext] = []

    @durable("quiet")
    async def quiet(ctx: Context, request: Any) -> None:
        contexts.append(trace.get_current_span().get_span_context())

    engine = traced()
    assert engine.run(client.enqueue("quiet")).outcome == "completed"
    assert not contexts[0].is_valid, "nothing is handed on to whom it is none of their business"
    assert engine.observer is not None
    assert isinstance(engine.observer.segment({}, None), nullcontext)  # type: ignore[arg-type]


@pytest.mark.usefixtures("nothing_set_up")
def test_a_provider_that_is_set_up_after_the_engine_counts(
    client: Client, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    @durable("later")
    async def later(ctx: Context, request: Any) -> None:
        return None

    engine = traced()
    engine.run(client.enqueue("later"))
    made = Exported()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.provider)
    engine.run(client.enqueue("later"))
    assert made.names() == ["agentrun.segment"]


def test_what_is_not_sampled_is_told_nowhere_not_even_what_is_inside(
    client: Client, make_engine: Callable[..., Engine], settings: Settings, exported: Exported
) -> None:
    @durable("inside")
    async def inside(ctx: Context, request: Any) -> None:
        await ctx.step(compute)

    engine = make_engine(observer=observer(settings.model_copy(update={"trace_ratio": 1e-12})))
    assert engine.run(client.enqueue("inside")).outcome == "completed"
    assert exported.spans == []


@pytest.mark.parametrize("make", [uuid4, uuid7])
def test_the_runs_id_decides_whether_it_is_sampled(make: Callable[[], UUID]) -> None:
    ids = [make() for _ in range(2000)]
    few, more = ({each for each in ids if root_of(each, ratio).trace_flags.sampled} for ratio in (0.25, 0.5))
    assert few < more, "who is sampled at a small ratio is at a larger one"
    assert 0.15 < len(few) / len(ids) < 0.35
    assert 0.4 < len(more) / len(ids) < 0.6
    assert all(root_of(each, 1.0).trace_flags.sampled and root_of(each, 1.0).is_valid for each in ids)


WORKER = """
import sys
sys.modules.update(dict.fromkeys(ABSENT))
from agentrun import Client, durable
from agentrun.broker.worker import Process
from agentrun.settings import Settings

@durable("plain")
async def plain(ctx, request):
    await ctx.step(fetch)

async def fetch():
    return 1

settings = Settings()
with Client(settings=settings) as client:
    run_id = client.enqueue("plain")
process = Process(settings)
assert process.engine().observer is not None
print(process.engine().run(run_id).outcome)
process._on_end()
print("agentrun.telemetry.spans" in sys.modules)
"""


@pytest.mark.parametrize("absent", [("opentelemetry",), ()], ids=["not installed", "not set up"])
def test_a_worker_works_without_opentelemetry_and_makes_nothing_for_it(settings: Settings, absent: Any) -> None:
    said = subprocess.run(
        [sys.executable, "-c", WORKER.replace("ABSENT", repr(absent))],
        env={**os.environ, **environment.variables(settings)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert said.stdout.split() == ["completed", "False"]


@pytest.mark.usefixtures("nothing_set_up")
def test_a_provider_that_cannot_be_loaded_breaks_no_run(
    client: Client, traced: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @durable("untraced")
    async def untraced(ctx: Context, request: Any) -> None:
        await ctx.step(look_up)

    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "of nobody")
    with caplog.at_level(logging.WARNING, "agentrun.telemetry"):
        assert traced().run(client.enqueue("untraced")).outcome == "completed"
    assert "OpenTelemetry cannot be used" in caplog.text


class Raises(SpanProcessor):
    """What a process has set up does not work."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise OSError(SECRET)


class RaisesAtTheEnd(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise OSError(SECRET)


@pytest.mark.parametrize("processor", [Raises, RaisesAtTheEnd])
def test_traces_that_do_not_work_break_no_run(
    client: Client,
    traced: Traced,
    exported: Exported,
    processor: type[SpanProcessor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    @durable("goes on")
    async def goes_on(ctx: Context, request: Any) -> None:
        await ctx.step(look_up)

    exported.provider.add_span_processor(processor())
    with caplog.at_level(logging.WARNING, "agentrun.telemetry"):
        assert traced().run(client.enqueue("goes on")).outcome == "completed"
    assert "OSError" in caplog.text
    assert SECRET not in caplog.text
