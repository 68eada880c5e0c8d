"""The one retry decision: every row of the table, their order, and bounds that hold for any facts."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrun.core.failures import Failure
from agentrun.core.policy import LONGEST_RETRY_AFTER, Backoff, Crash, Facts, GiveUp, RetryIn, decide
from agentrun.core.words import RETRYABLE, FailureClass, Reason, Status

FRESH = Facts(has_request=True, requeue_count=0, max_requeues=3)
BACKOFF = Backoff(base=30, cap=600, jitter=0.1)
PASSING = Failure(FailureClass.CONNECTION, "ConnectionError", "away")
LASTING = Failure(FailureClass.AUTH, "Denied", "no")

ROWS: list[tuple[str, dict[str, Any], Failure | Crash | None, GiveUp]] = [
    ("cancel", {"cancel_requested": True}, None, GiveUp(Status.CANCELLED, Reason.CANCELLED)),
    ("deadline", {"deadline_passed": True}, None, GiveUp(Status.FAILED, Reason.DEADLINE_EXCEEDED)),
    ("write in flight", {"write_in_flight": True}, None, GiveUp(Status.FAILED, Reason.NOT_RETRYABLE)),
    ("lasting failure", {}, LASTING, GiveUp(Status.FAILED, Reason.NOT_RETRYABLE)),
    ("somebody waits", {"surfaces": True}, PASSING, GiveUp(Status.FAILED, Reason.PROVIDER_FAILED)),
    ("no request", {"has_request": False}, None, GiveUp(Status.FAILED, Reason.NOT_RETRYABLE)),
    ("budget spent", {"requeue_count": 3}, None, GiveUp(Status.FAILED, Reason.RETRIES_EXHAUSTED)),
]
NAMES = [row[0] for row in ROWS]


@pytest.mark.parametrize("ending", [PASSING, Crash()], ids=["failure", "crash"])
@pytest.mark.parametrize(("facts", "own", "expected"), [row[1:] for row in ROWS], ids=NAMES)
def test_every_row_of_the_table_decides(
    facts: dict[str, Any], own: Failure | None, expected: GiveUp, ending: Failure | Crash
) -> None:
    assert decide(replace(FRESH, **facts), own or ending, BACKOFF, luck=0.5) == expected


@pytest.mark.parametrize(
    ("earlier", "later"), list(combinations(ROWS, 2)), ids=[f"{a} before {b}" for a, b in combinations(NAMES, 2)]
)
def test_where_two_rows_apply_the_earlier_one_decides(earlier: Any, later: Any) -> None:
    facts = replace(FRESH, **earlier[1], **later[1])
    ending = earlier[2] or later[2] or PASSING
    assert decide(facts, ending, BACKOFF, luck=0) == earlier[3]


@pytest.mark.parametrize("failure_class", list(FailureClass))
def test_a_failure_is_retried_exactly_where_its_class_is_retryable(failure_class: FailureClass) -> None:
    decision = decide(FRESH, Failure(failure_class, "Error", ""), BACKOFF, luck=0)
    assert isinstance(decision, RetryIn) == (failure_class in RETRYABLE)


def test_a_crash_is_retried_at_once_and_from_the_same_budget() -> None:
    assert decide(FRESH, Crash(), BACKOFF, luck=0.9) == RetryIn(0.0)
    assert decide(replace(FRESH, requeue_count=2), Crash(), BACKOFF, luck=0) == RetryIn(0.0)
    assert isinstance(decide(replace(FRESH, requeue_count=3), Crash(), BACKOFF, luck=0), GiveUp)


def test_a_crash_of_an_interactive_segment_is_retried_all_the_same() -> None:
    """Whoever waited for it is gone with it."""
    assert decide(replace(FRESH, surfaces=True), Crash(), BACKOFF, luck=0) == RetryIn(0.0)


@pytest.mark.parametrize(
    ("count", "delay"), [(0, 30), (1, 60), (2, 120), (3, 240), (4, 480), (5, 600), (6, 600), (10_000, 600)]
)
def test_backoff_doubles_up_to_its_cap(count: int, delay: float) -> None:
    facts = replace(FRESH, requeue_count=count, max_requeues=count + 1)
    assert decide(facts, PASSING, BACKOFF, luck=0) == RetryIn(delay)


def test_a_retry_after_replaces_the_backoff() -> None:
    asked = replace(PASSING, retry_after=7.0)
    assert decide(FRESH, asked, BACKOFF, luck=0) == RetryIn(7.0)


facts = st.builds(
    Facts,
    has_request=st.booleans(),
    requeue_count=st.integers(0, 10**6),
    max_requeues=st.integers(0, 10**6),
    write_in_flight=st.booleans(),
    deadline_passed=st.booleans(),
    cancel_requested=st.booleans(),
    surfaces=st.booleans(),
)
backoffs = st.builds(Backoff, base=st.floats(1e-3, 1e5), cap=st.floats(1e-3, 1e6), jitter=st.floats(0, 1))
failures = st.builds(
    Failure,
    failure_class=st.sampled_from(FailureClass),
    error_type=st.just("Error"),
    message=st.just(""),
    retry_after=st.none() | st.floats() | st.integers(),
)
luck = st.floats(0, 1, exclude_max=True)


@given(facts, st.just(Crash()) | failures, backoffs, luck)
@example(FRESH, replace(PASSING, retry_after=float("nan")), BACKOFF, 0.5)
@example(FRESH, replace(PASSING, retry_after=float("inf")), BACKOFF, 0.5)
@example(FRESH, replace(PASSING, retry_after=-1.0), BACKOFF, 0.5)
@example(FRESH, replace(PASSING, retry_after=10**400), BACKOFF, 0.5)
def test_no_decision_is_due_in_the_past_or_beyond_its_cap(
    facts: Facts, ending: Failure | Crash, backoff: Backoff, luck: float
) -> None:
    match decide(facts, ending, backoff, luck=luck):
        case RetryIn(delay):
            asked = isinstance(ending, Failure) and ending.retry_after is not None
            cap = LONGEST_RETRY_AFTER if asked else backoff.cap
            assert 0 <= delay <= cap * (1 + backoff.jitter)
        case GiveUp(status, reason):
            assert status.final
            assert (reason is Reason.CANCELLED) == (status is Status.CANCELLED)


@given(facts, st.just(Crash()) | failures, luck)
def test_the_same_facts_are_always_decided_the_same(facts: Facts, ending: Failure | Crash, luck: float) -> None:
    assert repr(decide(facts, ending, BACKOFF, luck=luck)) == repr(decide(facts, ending, BACKOFF, luck=luck))
    assert asdict(facts)


@given(st.integers(0, 64), backoffs, luck, luck)
def test_backoff_never_shrinks_from_one_attempt_to_the_next(
    count: int, backoff: Backoff, first: float, second: float
) -> None:
    plain = replace(backoff, jitter=0.0)
    assert plain.delay(count, first) <= plain.delay(count + 1, second)


@given(facts)
def test_nobody_gets_more_attempts_than_the_budget(facts: Facts) -> None:
    if facts.requeue_count >= facts.max_requeues:
        assert isinstance(decide(facts, Crash(), BACKOFF, luck=0), GiveUp)
