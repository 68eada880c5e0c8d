"""Where a run's time went: its phases, and its steps as spans. Pure: made of the story and the journal alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from agentrun.core.records import Event, Step
from agentrun.core.words import EventType


class Doing(StrEnum):
    """What a run did for a while."""

    QUEUED = "queued"
    """It was due, and no worker had claimed it."""

    PAUSING = "pausing"
    """It was not due yet, after an error."""

    EXECUTING = "executing"
    WAITING = "waiting"
    SILENT = "silent"
    """Its worker was lost: from the last that it told to the moment at which the run was taken from it."""

    ENDED = "ended"
    """It was final, and somebody brought it back."""


class Lasting:
    """What has a beginning and an end, or lasts until now."""

    __slots__ = ()
    began: datetime
    ended: datetime

    @property
    def seconds(self) -> float:
        """How long it took, so far."""
        return (self.ended - self.began).total_seconds()


@dataclass(frozen=True, slots=True)
class Phase(Lasting):
    """One thing that a run did, from one moment to another, by the database's clock."""

    doing: Doing
    began: datetime
    ended: datetime
    epoch: int
    by: str | None = None
    """Who executed it, or had it and was lost."""

    waiting_on: str | None = None


@dataclass(frozen=True, slots=True)
class Span(Lasting):
    """One step: from the beginning of its last attempt to its end, or to now."""

    key: str
    name: str
    kind: str
    status: str
    began: datetime
    ended: datetime
    by: str | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run's phases in their order, without gaps, and its steps by their beginnings."""

    phases: tuple[Phase, ...]
    spans: tuple[Span, ...]

    def spent(self) -> dict[Doing, float]:
        """Seconds by what was done, the most first. They add up to the run's life."""
        sums: dict[Doing, float] = {}
        for phase in self.phases:
            sums[phase.doing] = sums.get(phase.doing, 0.0) + phase.seconds
        return dict(sorted(sums.items(), key=lambda each: -each[1]))


def timeline(events: Iterable[Event], steps: Sequence[Step], *, now: datetime) -> Timeline:
    """The timeline of a run whose whole story and journal are given; what goes on still goes on until `now`."""
    phases = _Phases(now)
    for event in events:
        phases.hear(event)
    spans = [_span(step, now) for step in steps if step.started_at is not None]
    return Timeline(tuple(phases.all()), tuple(sorted(spans, key=lambda span: (span.began, span.ended))))


def _span(step: Step, now: datetime) -> Span:
    began = step.started_at or now
    ended = step.finished_at or max(now, began)
    return Span(step.key, step.name, step.kind, step.status, began, max(ended, began), step.by)


_BEGINS = {
    EventType.ENQUEUED: Doing.QUEUED,
    EventType.HANDED_BACK: Doing.QUEUED,
    EventType.CLAIMED: Doing.EXECUTING,
    EventType.PARKED: Doing.WAITING,
}


class _Phases:
    """Hears a story from its beginning; `at` may go back a little against the order, by what one waited for a lock."""

    def __init__(self, now: datetime) -> None:
        self._now, self._ended = now, list[Phase]()
        self._open: Phase | None = None
        self._last_sign: datetime | None = None
        self._final = False

    def all(self) -> list[Phase]:
        """What has ended, and what goes on."""
        if not self._final:
            self._close(self._now)
        return self._ended

    def hear(self, event: Event) -> None:
        match event.type:
            case EventType.REDRIVEN:
                self._brought_back(event)
            case EventType.REQUEUED:
                self._requeued(event)
            case EventType.REAPED:
                self._taken_from_the_lost(event)
            case EventType.RESOLVED if self._open is not None and self._open.doing is Doing.WAITING:
                self._begin(Doing.QUEUED, event)
            case EventType.SETTLED:
                self._close(event.at)
                self._final = True
            case EventType.STEP_STARTED | EventType.STEP_COMPLETED | EventType.STEP_FAILED:
                self._last_sign = event.at
            case _ if event.type in _BEGINS:
                doing = _BEGINS[event.type]
                by = event.data.get("by") if doing is Doing.EXECUTING else None
                self._begin(doing, event, by=by, waiting_on=event.data.get("waiting_on"))
            case _:
                pass

    def _brought_back(self, event: Event) -> None:
        if self._final and self._ended:
            ended = self._ended[-1].ended
            self._open = Phase(Doing.ENDED, ended, ended, event.epoch)
        self._begin(Doing.QUEUED, event)

    def _requeued(self, event: Event) -> None:
        delay = float(event.data.get("delay") or 0.0)
        if delay > 0:
            self._begin(Doing.PAUSING, event)
            due = event.at + timedelta(seconds=delay)
            if due < self._now:
                self._begin(Doing.QUEUED, event, at=due)
        else:
            self._begin(Doing.QUEUED, event)

    def _taken_from_the_lost(self, event: Event) -> None:
        """Of a segment that was lost, nobody knows when: what it told last is the last that is known of it."""
        lost = self._open
        if lost is not None and self._last_sign is not None:
            self._begin(Doing.SILENT, event, at=max(lost.began, self._last_sign), by=lost.by)
        self._begin(Doing.QUEUED, event)

    def _begin(
        self,
        doing: Doing,
        event: Event,
        *,
        at: datetime | None = None,
        by: str | None = None,
        waiting_on: str | None = None,
    ) -> None:
        moment = at or event.at
        if self._open is not None and self._open.doing is doing is Doing.QUEUED:
            return
        moment = self._close(moment)
        self._final, self._last_sign = False, moment
        self._open = Phase(doing, moment, moment, event.epoch, by, waiting_on)

    def _close(self, at: datetime) -> datetime:
        """End what goes on; returns the moment, which is never before its beginning."""
        if self._open is None:
            return at
        phase, self._open = self._open, None
        ended = max(at, phase.began)
        if ended > phase.began:
            self._ended.append(Phase(phase.doing, phase.began, ended, phase.epoch, phase.by, phase.waiting_on))
        return ended
