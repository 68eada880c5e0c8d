"""The root of a run's trace: its ids are made of the run's, so that everybody knows them before it is recorded."""

from __future__ import annotations

import copy
import hashlib
import logging
import sys
from typing import Any
from uuid import UUID

from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

log = logging.getLogger("agentrun.telemetry")

_LOW = (1 << 64) - 1


def root_of(run_id: UUID, ratio: float) -> SpanContext:
    """What all segments of a run have as their parent: the span that is recorded when a segment ends the run.

    Whether the run is sampled is decided from its id, so all processes with the same ratio decide the same. Samplers
    that go by their parent, as the SDK's own does, take it over.
    """
    # Its bits themselves would not do: ids that were made in the same millisecond have most of them in common.
    drawn = int.from_bytes(hashlib.blake2b(run_id.bytes, digest_size=8).digest())
    flags = TraceFlags(TraceFlags.SAMPLED if drawn <= ratio * _LOW else TraceFlags.DEFAULT)
    return SpanContext(run_id.int, run_id.int & _LOW or 1, is_remote=True, trace_flags=flags)


def with_ids_of(root: SpanContext, tracer: Any) -> Any:
    """A tracer for this one span; None where it is not the SDK's own: OpenTelemetry's API lets nobody choose an id."""
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is None or not isinstance(tracer, sdk.Tracer):
        return None
    try:
        # Its own: the provider gives one tracer to all who ask by this name.
        own = copy.copy(tracer)
        own.id_generator, own.sampler = _Ids(root), _AsOfSegments(tracer.sampler, root)
    except Exception as error:
        log.warning("a run's span could not be begun (%s)", type(error).__name__)
        return None
    return own


class _Ids:
    """Of a run's root, in place of what a TracerProvider draws."""

    def __init__(self, root: SpanContext) -> None:
        self._root = root

    def generate_trace_id(self) -> int:
        return self._root.trace_id

    def generate_span_id(self) -> int:
        return self._root.span_id

    def is_trace_id_random(self) -> bool:
        return False


class _AsOfSegments:
    """Asks the process's sampler as it is asked of the root's segments: the whole trace is kept, or nothing of it."""

    def __init__(self, sampler: Any, root: SpanContext) -> None:
        self._sampler, self._parent = sampler, trace.set_span_in_context(NonRecordingSpan(root), context.Context())

    def should_sample(self, _: object, *args: Any, **named: Any) -> Any:
        return self._sampler.should_sample(self._parent, *args, **named)
