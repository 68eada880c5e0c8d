"""Where a run's time went is told from its story alone: no gap, nothing twice, and nobody's guess."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentrun.core.records import Event, Step, Usage
from agentrun.core.timeline import Doing, Timeline, timeline
from agentrun.core.words import EventType

MIDNIGHT = datetime(2030, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return MIDNIGHT + timedelta(seconds=second)


def story(*told: tuple[float, EventType] | tuple[float, EventType, dict[str, Any]]) -> list[Event]:
    return [Event(nth, each[1], at(each[0]), 1, each[2] if len(each) > 2 else {}) for nth, each in enumerate(told)]


def step(key: str, began: float | None, ended: float | None, *, name: str = "fetch") -> Step:
    moments = [None if second is None else at(second) for second in (began, ended)]
    status = "completed" if ended is not None else "started"
    return Step(key, "step", name, "read_only", status, 1, 1, None, None, None, None, *moments, Usage())


def told(line: Timeline) -> list[tuple[str, float]]:
    return [(str(phase.doing), phase.seconds) for phase in line.phases]


E = EventType
PLAIN = story((0, E.ENQUEUED), (2, E.CLAIMED, {"by": "worker:a"}), (3, E.STEP_COMPLETED), (5, E.SETTLED))
CASES: dict[str, tuple[Sequence[Event], list[tuple[str, float]]]] = {
    "a plain run": (PLAIN, [("queued", 2), ("executing", 3)]),
    "a run that goes on": (PLAIN[:2], [("queued", 2), ("executing", 98)]),
    "a run that nobody claims": (PLAIN[:1], [("queued", 100)]),
    "a run that waits, and is answered": (
        story((0, E.ENQUEUED), (1, E.CLAIMED), (2, E.PARKED, {"waiting_on": "approval: pay"}), (50, E.RESOLVED),
              (51, E.CLAIMED), (52, E.SETTLED)),
        [("queued", 1), ("executing", 1), ("waiting", 48), ("queued", 1), ("executing", 1)],
    ),
    "an answer that comes before the run has parked": (
        story((0, E.ENQUEUED), (1, E.CLAIMED), (2, E.RESOLVED), (5, E.SETTLED)),
        [("queued", 1), ("executing", 4)],
    ),
    "an error, a pause, and a worker that is late": (
        story((0, E.ENQUEUED), (1, E.CLAIMED), (2, E.REQUEUED, {"delay": 30.0}), (40, E.CLAIMED), (41, E.SETTLED)),
        [("queued", 1), ("executing", 1), ("pausing", 30), ("queued", 8), ("executing", 1)],
    ),
    "a pause that is not over": (
        story((0, E.ENQUEUED), (1, E.CLAIMED), (2, E.REQUEUED, {"delay": 3600.0})),
        [("queued", 1), ("executing", 1), ("pausing", 98)],
    ),
    "a worker that is killed after its last step": (
        story((0, E.ENQUEUED), (1, E.CLAIMED, {"by": "worker:a"}), (4, E.STEP_COMPLETED), (35, E.LEASE_LOST),
              (35, E.REAPED, {"to": "queued"}), (36, E.CLAIMED), (40, E.SETTLED)),
        [("queued", 1), ("executing", 3), ("silent", 31), ("queued", 1), ("executing", 4)],
    ),
    "a worker that is killed at once": (
        story((0, E.ENQUEUED), (1, E.CLAIMED), (35, E.LEASE_LOST), (35, E.REAPED, {"to": "failed"}), (35, E.SETTLED)),
        [("queued", 1), ("silent", 34)],
    ),
    "a deploy": (
        story((0, E.ENQUEUED), (1, E.CLAIMED), (5, E.HANDED_BACK), (6, E.CLAIMED), (7, E.SETTLED)),
        [("queued", 1), ("executing", 4), ("queued", 1), ("executing", 1)],
    ),
    "a failed run that is brought back": (
        story((0, E.ENQUEUED), (1, E.CLAIMED), (2, E.SETTLED), (60, E.REDRIVEN), (61, E.CLAIMED), (62, E.SETTLED)),
        [("queued", 1), ("executing", 1), ("ended", 58), ("queued", 1), ("executing", 1)],
    ),
    "times that go back against the order": (
        story((0, E.ENQUEUED), (5, E.CLAIMED), (4.5, E.PARKED), (4, E.RESOLVED), (6, E.CLAIMED), (7, E.SETTLED)),
        [("queued", 6), ("executing", 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "expected"), CASES.values(), ids=CASES.keys())
def test_the_phases_of_a_story(events: Sequence[Event], expected: list[tuple[str, float]]) -> None:
    line = timeline(events, [], now=at(100))
    merged: list[tuple[str, float]] = []
    for doing, seconds in told(line):
        if merged and merged[-1][0] == doing == "queued":
            merged[-1] = (doing, merged[-1][1] + seconds)
        else:
            merged.append((doing, seconds))
    assert merged == expected
    assert all(one.ended == other.began for one, other in zip(line.phases, line.phases[1:], strict=False)), "a gap"
    life = (line.phases[-1].ended - line.phases[0].began).total_seconds()
    assert sum(line.spent().values()) == pytest.approx(life)


def test_a_lost_worker_is_named_with_its_silence() -> None:
    events, _ = CASES["a worker that is killed after its last step"]
    silent = [phase for phase in timeline(events, [], now=at(100)).phases if phase.doing is Doing.SILENT]
    assert [(phase.by, phase.began, phase.ended) for phase in silent] == [("worker:a", at(4), at(35))]


def test_steps_are_in_the_order_of_their_beginnings_and_one_that_goes_on_ends_now() -> None:
    steps = [step("#1", 4, 5), step("#2", 2, None), step("wait", None, 9), step("#3", 2, 3)]
    line = timeline(PLAIN, steps, now=at(10))
    assert [(span.key, span.seconds) for span in line.spans] == [("#3", 1), ("#2", 8), ("#1", 1)]


def test_the_most_is_spent_first() -> None:
    events, _ = CASES["an error, a pause, and a worker that is late"]
    assert list(timeline(events, [], now=at(100)).spent()) == [Doing.PAUSING, Doing.QUEUED, Doing.EXECUTING]
