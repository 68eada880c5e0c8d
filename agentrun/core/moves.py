"""The list of legal moves of a run, once.

The SQL guards, the CHECK constraints, the diagram in the docs and the status-by-move test matrix are derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrun.core.words import FINAL, EventType, Status


@dataclass(frozen=True, slots=True)
class Move:
    """One verb: from which statuses, to which, and the event that tells of it.

    `fenced` moves are made by a segment and name its epoch; the others are made from outside and are guarded by the
    status alone (and by what their statement adds: a due time, an expired lease).
    """

    verb: str
    sources: frozenset[Status]
    targets: frozenset[Status]
    event: EventType | None
    fenced: bool = False


def _move(
    verb: str,
    sources: set[Status] | frozenset[Status],
    targets: set[Status] | frozenset[Status],
    event: EventType | None,
    *,
    fenced: bool = False,
) -> Move:
    return Move(verb, frozenset(sources), frozenset(targets), event, fenced)


_RUNNING = {Status.RUNNING}
_NOT_RUNNING_YET = {Status.QUEUED, Status.WAITING}

CLAIM = _move("claim", {Status.QUEUED}, _RUNNING, EventType.CLAIMED)
RENEW = _move("renew", _RUNNING, _RUNNING, None, fenced=True)
PARK = _move("park", _RUNNING, {Status.WAITING}, EventType.PARKED, fenced=True)
REQUEUE = _move("requeue", _RUNNING, {Status.QUEUED}, EventType.REQUEUED, fenced=True)
HAND_BACK = _move("hand_back", _RUNNING, {Status.QUEUED}, EventType.HANDED_BACK, fenced=True)
SETTLE = _move("settle", _RUNNING, FINAL, EventType.SETTLED, fenced=True)
REAP = _move("reap", _RUNNING, {Status.QUEUED, Status.FAILED, Status.CANCELLED}, EventType.REAPED)
RESOLVE_WAIT = _move("resolve_wait", {Status.WAITING}, {Status.QUEUED}, EventType.REQUEUED)
CANCEL = _move("cancel", _NOT_RUNNING_YET, {Status.CANCELLED}, EventType.SETTLED)
EXPIRE = _move("expire", _NOT_RUNNING_YET, {Status.FAILED}, EventType.SETTLED)
REDRIVE = _move("redrive", {Status.FAILED}, {Status.QUEUED}, EventType.REDRIVEN)

MOVES: tuple[Move, ...] = (
    CLAIM,
    RENEW,
    PARK,
    REQUEUE,
    HAND_BACK,
    SETTLE,
    REAP,
    RESOLVE_WAIT,
    CANCEL,
    EXPIRE,
    REDRIVE,
)
BORN: frozenset[Status] = frozenset({Status.QUEUED, Status.RUNNING})
"""A run is enqueued, or claimed at birth (an interactive segment)."""


def legal(source: Status, target: Status) -> bool:
    """Whether any move leads from `source` to `target`."""
    return any(source in move.sources and target in move.targets for move in MOVES)
