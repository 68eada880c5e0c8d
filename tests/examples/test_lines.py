"""What the demo's table says of a run's events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agentrun import Event, EventType
from examples.support_desk.lines import taken_over_after

KILLED_AT = datetime(2026, 11, 30, 12, tzinfo=UTC)


def story(*told: tuple[EventType, float]) -> list[Event]:
    """Events, each so many seconds after the kill."""
    return [Event(seq, kind, KILLED_AT + timedelta(seconds=at), seq) for seq, (kind, at) in enumerate(told)]


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ([(EventType.CLAIMED, -5.0)], None),
        ([(EventType.CLAIMED, -5.0), (EventType.REAPED, 3.0), (EventType.CLAIMED, 3.2)], 3.2),
        ([(EventType.CLAIMED, -5.0), (EventType.REAPED, -0.4), (EventType.CLAIMED, -0.3)], None),
        ([(EventType.REAPED, -0.4), (EventType.CLAIMED, -0.3), (EventType.REAPED, 3.0), (EventType.CLAIMED, 4.0)], 4.0),
        ([(EventType.CLAIMED, -5.0), (EventType.REAPED, 3.0)], None),
    ],
    ids=["not lost", "lost by the kill", "lost before it", "lost before it and by it", "not taken up again"],
)
def test_a_take_over_is_counted_from_the_kill_that_brought_it_about(
    told: list[tuple[EventType, float]], seconds: float | None
) -> None:
    assert taken_over_after(story(*told), KILLED_AT) == (pytest.approx(seconds) if seconds is not None else None)
