"""A process that has OpenTelemetry set up, and engines whose segments are traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from agentrun.runtime.engine import Engine
from agentrun.settings import Settings
from agentrun.telemetry import observer
from tests.cli.conftest import Cli, cli, known
from tests.doctor.conftest import Past, Worker, healthy, no_hooks, past, run_sql, seen_worker

__all__ = ["Cli", "Past", "Worker", "cli", "healthy", "known", "no_hooks", "past", "run_sql", "seen_worker"]


class Exported:
    """What a collector would have got."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """Segments and what is inside of them, in the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if span.name != "agentrun.run"]

    @property
    def roots(self) -> list[ReadableSpan]:
        """Of runs that have ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name == "agentrun.run"]

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def segments(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == "agentrun.segment"]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Exported:
    """The process has set up a TracerProvider."""
    made = Exported()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.provider)
    return made


@pytest.fixture
def nothing_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has OpenTelemetry, and no TracerProvider."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)


Traced = Callable[..., Engine]


@pytest.fixture
def traced(make_engine: Callable[..., Engine], settings: Settings) -> Traced:
    """Makes engines that are looked at, as those of workers are."""
    return lambda: make_engine(observer=observer(settings))


def trace_ids(spans: Iterable[ReadableSpan]) -> set[UUID]:
    """Of which runs the traces are."""
    return {UUID(int=span.context.trace_id) for span in spans if span.context is not None}


def is_inside(inner: ReadableSpan, outer: ReadableSpan) -> bool:
    """Whether the one is the other's child."""
    assert outer.context is not None
    return inner.parent is not None and inner.parent.span_id == outer.context.span_id
