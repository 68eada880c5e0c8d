"""The list of legal moves: what it must allow, and what it must never allow."""

from __future__ import annotations

import pytest

from agentrun.core.moves import BORN, MOVES, REDRIVE, Move, legal
from agentrun.core.words import FINAL, EventType, Status


def _reachable(start: frozenset[Status], moves: tuple[Move, ...]) -> set[Status]:
    seen = set(start)
    while True:
        more = {target for move in moves if move.sources & seen for target in move.targets} - seen
        if not more:
            return seen
        seen |= more


def test_every_status_can_be_reached() -> None:
    assert _reachable(BORN, MOVES) == set(Status)


@pytest.mark.parametrize("status", sorted(set(Status) - FINAL))
def test_every_open_status_leads_to_every_end(status: Status) -> None:
    assert _reachable(frozenset({status}), MOVES) >= FINAL


def test_a_final_status_is_only_left_by_redrive() -> None:
    assert [move for move in MOVES if move.sources & FINAL] == [REDRIVE]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED])
def test_what_is_completed_or_cancelled_stays_so(status: Status) -> None:
    assert not any(legal(status, target) for target in Status)


def test_running_is_only_entered_by_a_claim_and_kept_by_its_owner() -> None:
    into = {move.verb for move in MOVES if Status.RUNNING in move.targets}
    assert into == {"claim", "renew"}


def test_every_move_of_a_segment_starts_at_running_and_is_fenced() -> None:
    """The reaper is the exception: it is not the owner, and re-checks the lease instead."""
    assert {move.verb for move in MOVES if Status.RUNNING in move.sources and not move.fenced} == {"reap"}
    assert all(move.sources == {Status.RUNNING} for move in MOVES if move.fenced)


def test_every_move_that_changes_the_status_tells_an_event() -> None:
    silent = {move.verb for move in MOVES if move.event is None}
    assert silent == {"renew"}
    assert {move.event for move in MOVES} - {None} <= set(EventType)


def test_whatever_settles_a_run_tells_so() -> None:
    for move in MOVES:
        if move.targets <= FINAL:
            assert move.event is EventType.SETTLED, move.verb


def test_verbs_are_unique() -> None:
    assert len({move.verb for move in MOVES}) == len(MOVES)


def test_legal_is_derived_from_the_list() -> None:
    pairs = {(source, target) for move in MOVES for source in move.sources for target in move.targets}
    assert {(source, target) for source in Status for target in Status if legal(source, target)} == pairs
