"""What a failure says is safe to store and to show: nothing that was sent or answered, no credential, one line."""

from __future__ import annotations

import json

import httpx2
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior, UsageLimitExceeded, UserError

from agentrun import Fatal, InvalidResult, Retryable
from agentrun.core.failures import describe
from agentrun.core.safe_text import LONGEST_TEXT
from tests.failures.misbehaving import SECRET


def said(error: BaseException) -> str:
    return describe(error).message


# ---- a user's own errors speak


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, Retryable, Fatal, type("OrderRefused", (Exception,), {})])
def test_an_error_of_the_users_own_says_its_first_line(kind: type[Exception]) -> None:
    assert said(kind("order 12 is closed\nits lines: ...")) == "order 12 is closed"
    assert said(kind("\n\n  order 12 is closed")) == "order 12 is closed"


def test_a_long_line_is_cut() -> None:
    message = said(ValueError("x" * 5_000))
    assert (len(message), message[-1]) == (LONGEST_TEXT, "…")


@given(st.text() | st.text("ab\x00\n\r\x1b\x85\u2028\ud800\N{FACE WITH TEARS OF JOY}"))
def test_a_message_is_one_printable_line_that_a_database_takes(text: str) -> None:
    message = said(ValueError(text))
    assert len(message) <= LONGEST_TEXT
    assert message.isprintable()
    json.dumps(message).encode()
    message.encode()


def test_of_a_validation_error_only_the_count_is_told() -> None:
    class Order(pydantic.BaseModel):
        cents: int

    with pytest.raises(pydantic.ValidationError) as raised:
        Order.model_validate({"cents": SECRET})
    assert said(raised.value) == "1 validation error for Order"


def test_an_error_without_words_that_is_retried_says_why() -> None:
    assert said(ConnectionResetError()) == "connection failed"
    assert said(ValueError()) == ""


def test_agentruns_own_errors_are_told_whole() -> None:
    told = "the result of step `ask` cannot be stored as JSON; " + "return JSON values. " * 20
    assert said(InvalidResult(told)) == told.strip()


# ---- credentials are starred out of what speaks


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("no postgresql://shop:hunter2@db/shop", "no postgresql://***@db/shop"),
        ("no redis://:hunter2@cache:6379/0", "no redis://***@cache:6379/0"),
        ("GET https://api/v1?key=hunter2&x=1 failed", "GET https://api/v1?*** failed"),
        ("Authorization: Bearer hunter2hunter2", "Authorization: *** ***"),
        ("bearer hunter2hunter2 refused", "bearer *** refused"),
        ("key sk-hunter2hunter2 refused", "key sk-*** refused"),
        ("api_key=hunter2, model=m", "api_key=***, model=m"),
        ("{'password': 'hunter2', 'user': 'me'}", "{'password': ***', 'user': 'me'}"),
        ("the password is too short", "the password is too short"),
        ("see https://docs/orders for more", "see https://docs/orders for more"),
        ("Set the `OPENAI_API_KEY` environment variable", "Set the `OPENAI_API_KEY` environment variable"),
    ],
)
def test_what_looks_like_a_credential_is_starred_out(text: str, left: str) -> None:
    assert said(ValueError(text)) == left


# ---- errors of packages that talk to the outside do not speak


def _request() -> httpx2.Request:
    return httpx2.Request("POST", f"https://me:{SECRET}@shop.example:8443/{SECRET}?key={SECRET}")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModelHTTPError(429, "gpt-9", {"error": SECRET}), "HTTP 429 from model gpt-9"),
        (ModelHTTPError(500, SECRET + " " * 3, SECRET), "HTTP 500 from shop.example"),
        (ModelAPIError("gpt-9", f"Expected a JSON response, got: {SECRET!r}"), "the answer could not be used: gpt-9"),
        (UnexpectedModelBehavior("odd part: " + SECRET, SECRET), "the answer could not be used"),
        (httpx2.LocalProtocolError(f"Illegal header value b'Bearer {SECRET}'"), "connection failed: shop.example"),
        (httpx2.ReadTimeout(SECRET), "timed out: shop.example"),
        (
            httpx2.HTTPStatusError(SECRET, request=_request(), response=httpx2.Response(503, text=SECRET)),
            "HTTP 503 from shop.example",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_from_outside_is_described_by_what_it_is(error: Exception, message: str) -> None:
    assert SECRET in str(error)
    if isinstance(error, ModelHTTPError | httpx2.HTTPError):
        error.request = _request()  # pyright: ignore[reportAttributeAccessIssue]
    assert said(error) == message


@pytest.mark.parametrize(
    "url",
    [f"https://me:{SECRET}@shop.example:8443/{SECRET}", f"http://shop.example?key={SECRET}", "HTTP://shop.example"],
)
def test_of_a_url_that_is_text_only_the_host_is_told(url: str) -> None:
    request = type("Request", (), {"url": url})()
    error = type("ConnectionError", (OSError,), {"__module__": "requests.exceptions"})(SECRET)
    error.request = request
    assert said(error) == "connection failed: shop.example"


def test_a_status_on_an_error_of_the_users_own_makes_it_one_from_outside() -> None:
    error = ValueError(SECRET)
    error.status_code = 404  # pyright: ignore[reportAttributeAccessIssue]
    assert said(error) == "HTTP 404"


@pytest.mark.parametrize(
    "error",
    [
        UserError("Set the `OPENAI_API_KEY` environment variable"),
        UnexpectedModelBehavior("Exceeded maximum output retries (1)"),
        UnexpectedModelBehavior("Tool 'refund' exceeded max retries count of 2"),
    ],
    ids=str,
)
def test_what_pydantic_ai_says_of_settings_and_counts_is_told(error: Exception) -> None:
    assert said(error) == str(error)


def test_which_limit_was_reached_is_told() -> None:
    assert said(UsageLimitExceeded("Exceeded the request_limit of 5 (requests=6)")).startswith(
        "Exceeded the request_limit of 5"
    )


def test_a_circuit_breaker_does_not_quote_the_failure_that_opened_it() -> None:
    breaker = type("CircuitBreakerError", (Exception,), {"__module__": "circuitbreaker"})
    assert said(breaker(f"open, last failure: {SECRET}")) == "circuit open"


def test_a_wrapper_is_described_by_what_it_wraps() -> None:
    error = type("RetryError", (Exception,), {"__module__": "tenacity"})(SECRET)
    error.__cause__ = httpx2.ReadTimeout(SECRET)
    assert said(error) == "timed out"
    error.__cause__ = ModelHTTPError(503, "m", SECRET)
    assert said(error) == "HTTP 503"


def test_the_operating_systems_word_is_told() -> None:
    error = httpx2.ConnectError(SECRET, request=_request())
    error.__cause__ = ConnectionRefusedError(111, SECRET)
    assert said(error) == "connection failed: shop.example (ECONNREFUSED)"


def test_a_group_tells_no_more_than_its_members() -> None:
    group = ExceptionGroup(SECRET, [ModelHTTPError(401, "m", SECRET), TimeoutError()])
    assert said(group) == "2 errors, the gravest: pydantic_ai.exceptions.ModelHTTPError: HTTP 401 from model m"
