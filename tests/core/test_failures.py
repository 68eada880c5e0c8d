"""From exceptions to failure classes: by what they are and what they carry, wherever they were wrapped."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agentrun.core.errors import Fatal, Retryable, StepFailed
from agentrun.core.failures import classify, describe, qualified_name
from agentrun.core.words import FailureClass


def _step(failure_class: FailureClass = FailureClass.RATE_LIMIT) -> StepFailed:
    failed = StepFailed("#2", "ask", "provider.TooMany", "slow down", str(failure_class))
    failed.retry_after = 4.0
    return failed


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (Retryable("later"), FailureClass.SERVER_ERROR),
        (ConnectionResetError("gone"), FailureClass.CONNECTION),
        (TimeoutError(), FailureClass.CONNECTION),
        (Fatal("never"), FailureClass.UNKNOWN),
        (ValueError("odd"), FailureClass.UNKNOWN),
        (_step(), FailureClass.RATE_LIMIT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_the_class_of_what_it_is(error: BaseException, failure_class: FailureClass) -> None:
    assert classify(error) is failure_class


def test_an_unknown_error_is_not_retried() -> None:
    """The rule that keeps a bug in a body from running four times."""
    assert not classify(KeyError("x")).retryable


def test_a_retryable_error_carries_its_delay() -> None:
    assert describe(Retryable("later", after=timedelta(minutes=2))).retry_after == 120


def test_the_step_that_failed_is_found_however_the_body_wrapped_it() -> None:
    try:
        try:
            raise _step()
        except StepFailed as error:
            raise RuntimeError("the digest failed") from error
    except RuntimeError as error:
        failure = describe(error)
    assert (failure.step_key, failure.error_type, failure.retry_after) == ("#2", "provider.TooMany", 4.0)
    assert failure.failure_class is FailureClass.RATE_LIMIT


def test_the_step_that_failed_is_found_in_a_group() -> None:
    group = ExceptionGroup("two", [ValueError("other"), ExceptionGroup("in", [_step()])])
    assert describe(group).step_key == "#2"


def test_an_error_of_the_bodys_own_names_no_step() -> None:
    failure = describe(KeyError("x"))
    assert (failure.step_key, failure.error_type, failure.message) == (None, "KeyError", "'x'")


def test_names_are_qualified_except_for_builtins() -> None:
    assert qualified_name(ValueError) == "ValueError"
    assert qualified_name(StepFailed) == "agentrun.core.errors.StepFailed"
