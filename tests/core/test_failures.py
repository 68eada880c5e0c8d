"""From exceptions to failure classes: by what they are and what they carry, wherever they were wrapped."""

from __future__ import annotations

import asyncio
import errno
import socket
import sqlite3
import ssl
import subprocess
import urllib.error
from datetime import timedelta
from http.client import IncompleteRead, RemoteDisconnected
from typing import Any

import pytest

from agentrun.core.errors import ConfigurationError, Fatal, NotApplied, Retryable, SchemaMismatch, StepFailed
from agentrun.core.failures import classify, describe, qualified_name
from agentrun.core.words import FailureClass

CONNECTION, RATE_LIMIT, SERVER_ERROR = FailureClass.CONNECTION, FailureClass.RATE_LIMIT, FailureClass.SERVER_ERROR
CIRCUIT_OPEN, AUTH, UNKNOWN = FailureClass.CIRCUIT_OPEN, FailureClass.AUTH, FailureClass.UNKNOWN
CONFIGURATION, CLIENT_ERROR = FailureClass.CONFIGURATION, FailureClass.CLIENT_ERROR


def stranger(name: str, *bases: type[BaseException], **attributes: Any) -> BaseException:
    """An error of a package that need not be installed: its type claims to be `module.Name`."""
    module, _, own = name.rpartition(".")
    error = type(own, bases or (Exception,), {"__module__": module})()
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def raised_from(error: BaseException, cause: BaseException) -> BaseException:
    """What `raise error from cause` gives."""
    error.__cause__ = cause
    return error


def _step(failure_class: FailureClass = RATE_LIMIT, key: str = "#2") -> StepFailed:
    failed = StepFailed(key, "ask", "provider.TooMany", "slow down", str(failure_class))
    failed.retry_after = 4.0
    return failed


# ---- Python's own errors


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (ConnectionResetError("gone"), CONNECTION),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), CONNECTION),
        (BrokenPipeError(), CONNECTION),
        (TimeoutError(), CONNECTION),
        (asyncio.IncompleteReadError(b"", 1), CONNECTION),
        (OSError(errno.ENETUNREACH, "no route"), CONNECTION),
        (OSError(errno.EHOSTUNREACH, "no route"), CONNECTION),
        (socket.gaierror(socket.EAI_AGAIN, "not now"), CONNECTION),
        (ssl.SSLError("handshake"), CONNECTION),
        (RemoteDisconnected("gone"), CONNECTION),
        (IncompleteRead(b"half"), CONNECTION),
        (urllib.error.URLError(ConnectionRefusedError()), CONNECTION),
        (urllib.error.URLError("unknown url type"), UNKNOWN),
        (subprocess.TimeoutExpired("convert", 3), CONNECTION),
        (FileNotFoundError(errno.ENOENT, "no"), UNKNOWN),
        (PermissionError(errno.EACCES, "no"), UNKNOWN),
        (OSError(errno.ENOSPC, "full"), UNKNOWN),
        (OSError("something"), UNKNOWN),
        (ValueError("odd"), UNKNOWN),
        (TypeError("odd"), UNKNOWN),
        (EOFError(), UNKNOWN),
        (asyncio.CancelledError(), UNKNOWN),
        (KeyboardInterrupt(), UNKNOWN),
        (sqlite3.IntegrityError("UNIQUE"), CLIENT_ERROR),
    ],
    ids=repr,
)
def test_pythons_errors_have_a_class(error: BaseException, failure_class: FailureClass) -> None:
    assert classify(error) is failure_class


def test_an_unknown_error_is_not_retried() -> None:
    """The rule that keeps a bug in a body from running four times."""
    assert not classify(KeyError("x")).retryable


@pytest.mark.parametrize(
    ("statement", "failure_class"), [("SELECT * FROM nowhere", CLIENT_ERROR), ("CREATE TABLE t (x)", SERVER_ERROR)]
)
def test_a_locked_sqlite_database_is_retried_and_a_missing_table_is_not(
    tmp_path: Any, statement: str, failure_class: FailureClass
) -> None:
    holder, other = (sqlite3.connect(tmp_path / "a.db", timeout=0, isolation_level=None) for _ in range(2))
    holder.execute("BEGIN EXCLUSIVE" if failure_class is SERVER_ERROR else "SELECT 1")
    with pytest.raises(sqlite3.OperationalError) as raised:
        other.execute(statement)
    assert classify(raised.value) is failure_class
    holder.close()
    other.close()


# ---- errors of other packages, by name


@pytest.mark.parametrize(
    ("name", "failure_class"),
    [
        *(
            (f"httpx.{name}", CONNECTION)
            for name in ("TimeoutException", "NetworkError", "ProtocolError", "ProxyError")
        ),
        ("httpx.UnsupportedProtocol", CONFIGURATION),
        ("httpx.DecodingError", UNKNOWN),
        ("httpcore._exceptions.NetworkError", CONNECTION),
        ("aiohttp.client_exceptions.ClientConnectionError", CONNECTION),
        ("aiohttp.client_exceptions.ClientPayloadError", CONNECTION),
        ("requests.exceptions.ChunkedEncodingError", CONNECTION),
        ("urllib3.exceptions.TimeoutError", CONNECTION),
        ("openai.APIConnectionError", CONNECTION),
        ("openai.APIResponseValidationError", UNKNOWN),
        ("openai.OpenAIError", CONFIGURATION),
        ("anthropic.APITimeoutError", CONNECTION),
        ("groq.APIConnectionError", CONNECTION),
        ("botocore.exceptions.NoCredentialsError", CONFIGURATION),
        ("pybreaker.CircuitBreakerError", CIRCUIT_OPEN),
        ("circuitbreaker.CircuitBreakerError", CIRCUIT_OPEN),
        ("shop.breakers.CircuitOpenError", CIRCUIT_OPEN),
        ("shop.breakers.CircuitBreakerOpen", CIRCUIT_OPEN),
        ("shop.CircuitDiagramError", UNKNOWN),
        ("psycopg2.OperationalError", CONNECTION),
        ("asyncpg.exceptions._base.InterfaceError", CONNECTION),
        ("django.db.utils.OperationalError", CONNECTION),
        ("django.db.utils.IntegrityError", CLIENT_ERROR),
        ("redis.exceptions.TimeoutError", CONNECTION),
        ("valkey.exceptions.ConnectionError", CONNECTION),
        ("redis.exceptions.AuthenticationError", AUTH),
        ("redis.exceptions.ResponseError", UNKNOWN),
        ("kombu.exceptions.OperationalError", CONNECTION),
        ("celery.exceptions.TimeoutError", CONNECTION),
        ("httpx_like.ReadTimeout", UNKNOWN),
    ],
)
def test_a_package_is_recognised_by_name_and_need_not_be_installed(name: str, failure_class: FailureClass) -> None:
    assert classify(stranger(name)) is failure_class


def test_a_subclass_has_the_class_of_the_type_that_is_known() -> None:
    known = type(stranger("httpx.TimeoutException"))
    assert classify(type("SlowShop", (known,), {"__module__": "shop"})()) is CONNECTION


def test_a_segment_beyond_celerys_soft_time_limit_is_retried_like_a_timeout() -> None:
    """What it finished is in the journal, so the next segment starts behind that; the budget bounds the rest."""
    from celery.exceptions import SoftTimeLimitExceeded

    assert classify(SoftTimeLimitExceeded(30)) is CONNECTION


def test_agentruns_own_configuration_errors_are_configuration() -> None:
    assert classify(ConfigurationError("AGENTRUN_DATABASE_URL is missing")) is CONFIGURATION
    assert classify(SchemaMismatch("run `agentrun migrate`")) is CONFIGURATION


# ---- by HTTP status, wherever it hangs

STATUSES = {
    400: CLIENT_ERROR, 401: AUTH, 402: CLIENT_ERROR, 403: AUTH, 404: CLIENT_ERROR, 408: CONNECTION, 409: CLIENT_ERROR,
    422: CLIENT_ERROR, 425: SERVER_ERROR, 429: RATE_LIMIT, 500: SERVER_ERROR, 502: SERVER_ERROR, 503: SERVER_ERROR,
    504: SERVER_ERROR, 529: SERVER_ERROR,
}  # fmt: skip


class _Response:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.mark.parametrize(("status", "failure_class"), STATUSES.items())
def test_a_status_has_the_same_class_wherever_the_error_carries_it(status: int, failure_class: FailureClass) -> None:
    botos = {"ResponseMetadata": {"HTTPStatusCode": status}}
    carriers = [
        stranger("shop.ApiError", status_code=status),
        stranger("shop.ApiError", http_status=status),
        stranger("shop.ApiError", response=_Response(status_code=status)),
        stranger("shop.ApiError", response=_Response(status=status)),
        stranger("aiohttp.client_exceptions.ClientResponseError", status=status),
        stranger("google.genai.errors.APIError", code=status),
        stranger("botocore.exceptions.ClientError", response=botos),
        urllib.error.HTTPError("http://shop", status, "no", None, None),  # pyright: ignore[reportArgumentType]
    ]
    assert [classify(error) for error in carriers] == [failure_class] * len(carriers)


@pytest.mark.parametrize("status", [200, 302, 399, 600, True, "503", None, 503.0, [503]], ids=repr)
def test_what_is_no_error_status_says_nothing(status: Any) -> None:
    assert classify(stranger("shop.ApiError", status_code=status)) is UNKNOWN


def test_the_code_of_a_stranger_is_no_status() -> None:
    assert classify(stranger("shop.ApiError", code=503)) is UNKNOWN


@pytest.mark.parametrize(
    ("name", "attributes", "failure_class"),
    [
        ("openai.APIStatusError", {"status_code": 429, "code": "insufficient_quota"}, CLIENT_ERROR),
        ("openai.APIStatusError", {"status_code": 429, "type": "invalid_request_error"}, RATE_LIMIT),
        ("openai.APIError", {"code": "rate_limit_exceeded"}, RATE_LIMIT),
        ("openai.APIError", {"type": "server_error"}, SERVER_ERROR),
        ("openai.APIError", {"type": "what_is_that"}, UNKNOWN),
        ("anthropic.APIStatusError", {"status_code": 200, "type": "overloaded_error"}, SERVER_ERROR),
        (
            "botocore.exceptions.ClientError",
            {"response": {"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400}}},
            RATE_LIMIT,
        ),
    ],
)
def test_a_providers_words_tell_a_spent_quota_from_a_rate_limit_and_speak_where_there_is_no_status(
    name: str, attributes: dict[str, Any], failure_class: FailureClass
) -> None:
    assert classify(stranger(name, **attributes)) is failure_class


# ---- steering by hand


def test_retryable_is_retried_whatever_its_cause() -> None:
    assert classify(Retryable("later")) is SERVER_ERROR
    assert classify(raised_from(Retryable("later"), ValueError("odd"))) is SERVER_ERROR
    assert classify(raised_from(Retryable("later"), stranger("shop.ApiError", status_code=401))) is SERVER_ERROR
    assert classify(raised_from(Retryable("later"), _step(CLIENT_ERROR))) is SERVER_ERROR


def test_retryable_keeps_the_class_of_a_cause_that_is_retried_anyway() -> None:
    assert classify(raised_from(Retryable(), stranger("shop.ApiError", status_code=429))) is RATE_LIMIT


def test_fatal_is_never_retried_whatever_its_cause() -> None:
    assert classify(Fatal("never")) is UNKNOWN
    assert classify(raised_from(Fatal("never"), TimeoutError())) is UNKNOWN
    assert classify(raised_from(Fatal("never"), _step(CONNECTION))) is UNKNOWN
    assert classify(raised_from(Fatal("never"), stranger("shop.ApiError", status_code=401))) is AUTH


def test_a_step_that_failed_carries_its_class() -> None:
    assert classify(_step()) is RATE_LIMIT


def test_a_retryable_error_carries_its_delay() -> None:
    assert describe(Retryable("later", after=timedelta(minutes=2))).retry_after == 120
    assert describe(Retryable("later", after=timedelta(minutes=-2))).retry_after == 0
    assert describe(Retryable("later", after=timedelta(days=30))).retry_after == 86_400


def test_a_retryable_error_without_a_delay_has_its_causes() -> None:
    cause = stranger("shop.ApiError", status_code=429, headers={"retry-after": "7"})
    assert describe(raised_from(Retryable("later"), cause)).retry_after == 7
    assert describe(raised_from(Retryable("later", after=timedelta(seconds=2)), cause)).retry_after == 2


def test_a_retryable_error_out_of_a_failed_step_has_that_step_done_again() -> None:
    failure = describe(raised_from(Retryable("later"), _step(CLIENT_ERROR)))
    assert (failure.step_key, failure.message) == ("#2", "later")
    assert failure.error_type == "agentrun.core.errors.Retryable"


# ---- wrappers


def test_an_error_of_the_users_own_is_not_judged_by_its_cause() -> None:
    """Only wrappers that are known to mean nothing of their own are: who raises something else says something else."""
    for outer in (RuntimeError("no"), stranger("shop.OrderRefused"), ValueError("no")):
        assert classify(raised_from(outer, TimeoutError())) is UNKNOWN


@pytest.mark.parametrize(
    ("name", "otherwise"),
    [
        ("openai.APIConnectionError", CONNECTION),
        ("pydantic_ai.exceptions.ModelConnectionError", CONNECTION),
        ("pydantic_ai.exceptions.ModelAPIError", SERVER_ERROR),
        ("sqlalchemy.exc.OperationalError", CONNECTION),
        ("sqlalchemy.exc.StatementError", UNKNOWN),
        ("tenacity.RetryError", UNKNOWN),
        ("urllib3.exceptions.MaxRetryError", CONNECTION),
    ],
)
def test_a_known_wrapper_has_the_class_of_what_it_wraps(name: str, otherwise: FailureClass) -> None:
    assert classify(stranger(name)) is otherwise
    assert classify(raised_from(stranger(name), ArithmeticError("says nothing"))) is otherwise
    assert classify(raised_from(stranger(name), stranger("shop.ApiError", status_code=429))) is RATE_LIMIT
    assert classify(raised_from(stranger(name), Fatal("never"))) is UNKNOWN


def test_wrappers_are_followed_through_several_layers() -> None:
    refused = stranger("httpx.UnsupportedProtocol")
    wrapped = raised_from(stranger("openai.APIConnectionError"), refused)
    assert classify(raised_from(stranger("pydantic_ai.exceptions.ModelConnectionError"), wrapped)) is CONFIGURATION


def test_the_step_that_failed_is_found_however_the_body_wrapped_it() -> None:
    try:
        try:
            raise _step()
        except StepFailed as error:
            raise RuntimeError("the digest failed") from error
    except RuntimeError as error:
        failure = describe(error)
    assert (failure.step_key, failure.error_type, failure.retry_after) == ("#2", "provider.TooMany", 4.0)
    assert failure.failure_class is RATE_LIMIT
    assert failure.message == "slow down"


def test_steering_is_heard_through_what_was_raised_from_it() -> None:
    assert classify(raised_from(RuntimeError("no"), Retryable("later"))).retryable
    assert not classify(raised_from(stranger("openai.APIConnectionError"), Fatal("never"))).retryable


# ---- several at once


def test_of_several_failures_one_that_is_not_retried_decides() -> None:
    assert classify(ExceptionGroup("two", [TimeoutError(), ValueError("odd")])) is UNKNOWN
    assert classify(ExceptionGroup("two", [_step(AUTH), ValueError("odd"), TimeoutError()])) is AUTH
    assert classify(ExceptionGroup("two", [TimeoutError(), ExceptionGroup("in", [Fatal("never")])])) is UNKNOWN


def test_several_failures_that_are_all_retried_are_retried() -> None:
    group = ExceptionGroup("two", [TimeoutError(), ExceptionGroup("in", [_step(), ConnectionResetError()])])
    assert classify(group) is RATE_LIMIT
    assert describe(group).retry_after == 4.0


def test_of_several_named_waits_the_longest_counts() -> None:
    waits = [Retryable("a", after=timedelta(seconds=each)) for each in (2, 9, 4)]
    assert describe(ExceptionGroup("three", [TimeoutError(), *waits])).retry_after == 9


def test_the_class_of_a_group_does_not_depend_on_the_order_of_its_members() -> None:
    members: list[Exception] = [TimeoutError(), _step(SERVER_ERROR), _step(RATE_LIMIT)]
    assert classify(ExceptionGroup("a", members)) is classify(ExceptionGroup("b", members[::-1]))


def test_the_step_that_failed_is_found_in_a_group() -> None:
    group = ExceptionGroup("two", [ValueError("other"), ExceptionGroup("in", [_step()])])
    assert describe(group).step_key == "#2"


def test_a_group_names_all_its_failed_steps_and_first_the_one_that_decides() -> None:
    failure = describe(ExceptionGroup("two", [_step(CONNECTION, "#1"), _step(AUTH, "#2"), TimeoutError()]))
    assert (failure.failure_class, failure.step_key, failure.step_keys) == (AUTH, "#2", ("#1", "#2"))
    assert failure.as_json()["steps"] == ["#1", "#2"]


def test_a_group_says_how_many_and_which_decided() -> None:
    failure = describe(ExceptionGroup("two", [TimeoutError(), ValueError("odd")]))
    assert (failure.error_type, failure.message) == ("ExceptionGroup", "2 errors, the gravest: ValueError: odd")


def test_a_fallback_chain_has_the_class_of_its_last_attempt() -> None:
    from pydantic_ai.exceptions import FallbackExceptionGroup, ModelHTTPError

    def failed(status: int) -> ModelHTTPError:
        return ModelHTTPError(status, f"m{status}", headers={"Retry-After": str(status)})

    def chain(*errors: Exception) -> FallbackExceptionGroup:
        return FallbackExceptionGroup("all failed", errors)

    assert classify(chain(failed(401), failed(503))) is SERVER_ERROR
    assert classify(chain(failed(503), failed(401))) is AUTH
    assert classify(chain(failed(401), chain(failed(400), failed(429)))) is RATE_LIMIT
    assert classify(ExceptionGroup("turn", [TimeoutError(), chain(failed(401), failed(503))])) is SERVER_ERROR
    failure = describe(chain(failed(429), failed(503)))
    assert failure.retry_after == 503
    assert failure.message == "2 errors, the last: pydantic_ai.exceptions.ModelHTTPError: HTTP 503 from model m503"


def test_an_empty_fallback_chain_is_unknown() -> None:
    empty = type(
        "FallbackExceptionGroup", (ExceptionGroup,), {"__module__": "pydantic_ai.exceptions", "exceptions": ()}
    )
    assert classify(empty("none", [TimeoutError()])) is UNKNOWN


# ---- pydantic-ai


def test_pydantic_ais_errors_have_a_class() -> None:
    from pydantic_ai import exceptions as of

    expected = {
        of.ModelHTTPError(418, "m"): CLIENT_ERROR,
        of.ModelHTTPError.for_category(of.ModelUnavailableError, status_code=403, model_name="m"): SERVER_ERROR,
        of.ModelHTTPError.for_category(of.ModelQuotaExceededError, status_code=429, model_name="m"): CLIENT_ERROR,
        of.ModelRateLimitError("m", "slow"): RATE_LIMIT,
        of.ModelOverloadedError("m", "busy"): SERVER_ERROR,
        of.ModelServerError("m", "broken"): SERVER_ERROR,
        of.ModelTimeoutError("m", "slow"): CONNECTION,
        of.ModelRequestTimeout("m", 3): CONNECTION,
        of.ModelAuthenticationError("m", "no"): AUTH,
        of.ModelContextWindowExceededError("m", "long"): CLIENT_ERROR,
        of.UserError("wrong"): CONFIGURATION,
        of.UnexpectedModelBehavior("odd"): UNKNOWN,
        of.ContentFilterError("no"): UNKNOWN,
        of.UsageLimitExceeded("enough"): UNKNOWN,
        of.RunTimedOut("slow"): CONNECTION,
        of.ModelRetry("again"): UNKNOWN,
    }
    assert {repr(error): classify(error) for error in expected} == {
        repr(error): failure_class for error, failure_class in expected.items()
    }


# ---- the description


def test_an_error_of_the_bodys_own_names_no_step() -> None:
    failure = describe(KeyError("x"))
    assert (failure.step_key, failure.error_type, failure.message) == (None, "KeyError", "'x'")
    assert "steps" not in failure.as_json()


def test_what_a_tool_tells_its_model_is_kept_whole() -> None:
    told = "no such order.\nAsk the customer for its number: " + "x" * 400
    assert describe(NotApplied(told)).message == told


def test_names_are_qualified_except_for_builtins() -> None:
    assert qualified_name(ValueError) == "ValueError"
    assert qualified_name(StepFailed) == "agentrun.core.errors.StepFailed"


# ---- whatever it is given


class _Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_an_error_whose_attributes_and_text_raise_is_described() -> None:
    failure = describe(_Hostile())
    assert (failure.failure_class, failure.message, failure.retry_after) == (UNKNOWN, "", None)


def test_a_circle_of_causes_ends() -> None:
    one, two = stranger("openai.APIConnectionError"), stranger("openai.APIConnectionError")
    raised_from(one, raised_from(two, one))
    assert classify(one) is CONNECTION
    own = ValueError("odd")
    assert describe(raised_from(own, own)).failure_class is UNKNOWN


def test_groups_within_groups_are_described() -> None:
    group: Exception = TimeoutError()
    for _ in range(30):
        group = ExceptionGroup("in", [group])
    assert describe(group).failure_class is CONNECTION
