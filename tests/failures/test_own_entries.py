"""`classify_as`: what a user knows about an error, agentrun believes, as long as it is about the most special type."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRateLimitError

from agentrun import FailureClass, Fatal, Retryable, StepFailed, classify_as
from agentrun.core.failures import classifies, classify, describe


class ShopError(Exception):
    """A user's own."""


class ShopBusy(ShopError):
    """A more special one."""


class ShopAnswer(ShopError):
    """One that carries a status."""

    status_code = 503


def _http(status: int) -> httpx2.HTTPStatusError:
    request = httpx2.Request("GET", "http://shop")
    return httpx2.HTTPStatusError("no", request=request, response=httpx2.Response(status, request=request))


def test_it_is_exported_under_the_name_that_reads_well() -> None:
    assert classify_as is classifies


def test_an_entry_holds_for_a_type_and_what_derives_from_it() -> None:
    assert classify(ShopBusy()) is FailureClass.UNKNOWN
    classify_as(ShopError, FailureClass.RATE_LIMIT)
    assert classify(ShopError()) is classify(ShopBusy()) is FailureClass.RATE_LIMIT
    assert describe(ShopBusy("come back later")).failure_class is FailureClass.RATE_LIMIT


def test_entries_do_not_outlive_a_test() -> None:
    """The control of the fixture that the other tests here rely on."""
    assert classify(ShopError()) is FailureClass.UNKNOWN


@pytest.mark.parametrize("failure_class", [FailureClass.CONNECTION, "connection"])
def test_it_decorates_a_class_and_leaves_it_as_it_is(failure_class: Any) -> None:
    @classify_as(failure_class)
    class Hiccup(Exception):
        pass

    assert isinstance(Hiccup, type)
    assert classify(Hiccup()) is FailureClass.CONNECTION


def test_the_most_special_entry_wins_in_whatever_order_they_were_made() -> None:
    classify_as(ShopBusy, FailureClass.RATE_LIMIT)
    classify_as(ShopError, FailureClass.CLIENT_ERROR)
    assert classify(ShopBusy()) is FailureClass.RATE_LIMIT
    assert classify(ShopError()) is FailureClass.CLIENT_ERROR


def test_the_last_entry_for_one_type_holds() -> None:
    classify_as(ShopError, FailureClass.CLIENT_ERROR)
    classify_as(ShopError, FailureClass.CONNECTION)
    assert classify(ShopError()) is FailureClass.CONNECTION


def test_an_entry_wins_over_what_agentrun_knows_of_the_same_type_or_a_wider_one() -> None:
    classify_as(httpx2.ReadTimeout, FailureClass.UNKNOWN)
    classify_as(ModelRateLimitError, FailureClass.CIRCUIT_OPEN)
    assert classify(httpx2.ReadTimeout("slow")) is FailureClass.UNKNOWN
    assert classify(httpx2.ConnectTimeout("slow")) is FailureClass.CONNECTION
    limited = ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="m")
    assert classify(limited) is FailureClass.CIRCUIT_OPEN


def test_what_agentrun_knows_of_a_more_special_type_wins_over_an_entry() -> None:
    classify_as(httpx2.HTTPError, FailureClass.UNKNOWN)
    classify_as(Exception, FailureClass.SERVER_ERROR)
    classify_as(ModelAPIError, FailureClass.SERVER_ERROR)
    assert classify(httpx2.ReadTimeout("slow")) is FailureClass.CONNECTION
    assert classify(_http(401)) is FailureClass.AUTH
    assert classify(ModelHTTPError(401, "m")) is FailureClass.AUTH
    assert classify(ConnectionResetError()) is FailureClass.CONNECTION
    assert classify(ValueError("odd")) is FailureClass.SERVER_ERROR


def test_a_garbled_answer_can_be_made_retryable() -> None:
    garbled = ModelAPIError("m", "Failed to decode response as JSON")
    garbled.__cause__ = ValueError("odd")
    assert classify(garbled) is FailureClass.UNKNOWN
    classify_as(ModelAPIError, FailureClass.SERVER_ERROR)
    assert classify(garbled) is FailureClass.SERVER_ERROR


def test_an_entry_wins_over_a_status_that_the_error_carries_unless_it_is_about_any_error() -> None:
    classify_as(Exception, FailureClass.UNKNOWN)
    assert classify(ShopAnswer()) is FailureClass.SERVER_ERROR
    classify_as(ShopError, FailureClass.CLIENT_ERROR)
    assert classify(ShopAnswer()) is FailureClass.CLIENT_ERROR


def test_an_entry_wins_over_the_step_that_the_error_was_raised_from() -> None:
    step = StepFailed("#1", "ask", "httpx2.ReadTimeout", "timed out", "connection")
    error = ShopError("out of stock")
    error.__cause__ = step
    assert classify(error) is FailureClass.CONNECTION
    classify_as(ShopError, FailureClass.CLIENT_ERROR)
    failure = describe(error)
    assert (failure.failure_class, failure.message, failure.step_key) == (
        FailureClass.CLIENT_ERROR,
        "out of stock",
        "#1",
    )


@pytest.mark.parametrize(
    "wrong", [Fatal, Retryable, type("Mine", (Retryable,), {}), BaseException, KeyboardInterrupt, int, "x"]
)
def test_what_is_not_the_users_to_classify_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        classify_as(wrong, FailureClass.CONNECTION)


def test_a_class_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="'sometimes' is no failure class; take one of connection, rate_limit"):
        classify_as(ShopError, "sometimes")
    with pytest.raises(ValueError, match="is no failure class"):
        classify_as(ShopError)  # pyright: ignore[reportCallIssue, reportArgumentType]
