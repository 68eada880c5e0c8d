"""The words of telling people: on which occasion, of which shape of standing still, and how a notice ended."""

from __future__ import annotations

from enum import StrEnum


class Occasion(StrEnum):
    """What a hook can be told of."""

    WAITING = "waiting"
    STALLED = "stalled"
    DEAD = "dead"


class Shape(StrEnum):
    """The ways in which a run stands still although nobody is asked.

    `never_resolved`: it waits, and nothing will ever resolve what it waits for. `silent_step`: a remote or external
    step is pending, and nothing was heard of it. `unclaimed`: queued and due, and no live worker would take it.
    `no_progress`: running under a lease that is renewed, and no step ends.
    """

    NEVER_RESOLVED = "never_resolved"
    SILENT_STEP = "silent_step"
    UNCLAIMED = "unclaimed"
    NO_PROGRESS = "no_progress"


class NoticeEnding(StrEnum):
    """How a notice ended: told; never told, although it was tried often; or no longer worth telling."""

    DELIVERED = "delivered"
    GIVEN_UP = "given_up"
    OUTDATED = "outdated"
