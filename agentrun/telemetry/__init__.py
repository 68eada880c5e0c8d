"""What a fleet shows of itself: segments and steps as traces, rows as metrics. It decides nothing and stores nothing.

Traces go to the TracerProvider that a process has set up; agentrun sets up none. Nothing of OpenTelemetry is imported
here: where nobody else has imported it, a segment costs one look for it, and a step nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from agentrun.runtime.lease import Lease
from agentrun.runtime.observing import Observer, Seen
from agentrun.settings import Settings

if TYPE_CHECKING:
    from agentrun.telemetry.spans import Spans

__all__ = ["observer"]

log = logging.getLogger("agentrun.telemetry")


def observer(settings: Settings) -> Observer | None:
    """Who makes traces of what an engine executes; None where AGENTRUN_TRACE_RATIO is 0."""
    return _Traces(settings) if settings.trace_ratio > 0 else None


class _Traces:
    """Makes spans as soon as the process has a TracerProvider: it may be set up later than the engine is made."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spans: Spans | None = None

    def segment(self, claimed: Mapping[str, Any], lease: Lease) -> AbstractContextManager[Seen | None]:
        """A span, current until the segment ends."""
        spans = self._spans or self._set_up()
        return nullcontext() if spans is None else spans.segment(claimed, lease)

    def remote_step(self, taken: Mapping[str, Any], lease: Lease) -> AbstractContextManager[object]:
        """A span, current while the step's function runs."""
        spans = self._spans or self._set_up()
        return nullcontext() if spans is None else spans.remote_step(taken, lease)

    def _set_up(self) -> Spans | None:
        # Whoever has set up a TracerProvider in this process has imported it.
        there = sys.modules.get("opentelemetry.trace")
        if there is None:
            return None
        try:
            if isinstance(there.get_tracer_provider(), there.ProxyTracerProvider):
                return None
            from agentrun.telemetry.spans import Spans

            self._spans = Spans(self._settings)
        except Exception as error:
            # Only half imported yet, too old, or OTEL_PYTHON_TRACER_PROVIDER names what is not there.
            log.warning("OpenTelemetry cannot be used for this segment (%s)", type(error).__name__)
        return self._spans
