"""What the errors of other packages mean: one table, by package and name of the type, so that none is imported.

This module knows types and codes; it decides nothing about retries, and users' own entries are not here.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass

from agentrun.core.error_facts import attribute, name_of, package_of, sqlstate_of, status_of, words_of
from agentrun.core.words import FailureClass

CONNECTION, RATE_LIMIT, SERVER_ERROR = FailureClass.CONNECTION, FailureClass.RATE_LIMIT, FailureClass.SERVER_ERROR
CIRCUIT_OPEN, AUTH, UNKNOWN = FailureClass.CIRCUIT_OPEN, FailureClass.AUTH, FailureClass.UNKNOWN
CONFIGURATION, CLIENT_ERROR = FailureClass.CONFIGURATION, FailureClass.CLIENT_ERROR


@dataclass(frozen=True, slots=True)
class Wraps:
    """The error stands for the one inside it; `otherwise` where that one is missing or says nothing."""

    otherwise: FailureClass


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an error. `owner` is the type that stands in the table; None where only a status speaks."""

    owner: type | None
    verdict: FailureClass | Wraps


Verdict = FailureClass | Wraps | Callable[[BaseException], "FailureClass | Wraps | None"]
"""A function that returns None leaves the answer to the next type along the MRO."""


def known(error: BaseException) -> Known | None:
    """What is known of `error`, by the most special of its types that has an answer; None where nothing is.

    What it carries (an HTTP status) speaks before the builtin types that it derives from.
    """
    types = type(error).__mro__
    special = [of for of in types if package_of(of) != "builtins"]
    found = _in_table(error, special)
    if found is None and (said := by_answer(error)) is not None and status_of(error) is not None:
        return Known(None, said)
    return found or _in_table(error, [of for of in types if of not in special])


def is_from_outside(error: BaseException) -> bool:
    """Whether the error is of a package in the table, or carries an HTTP status: its text may quote what was said."""
    types = [of for of in type(error).__mro__ if package_of(of) != "builtins"]
    return status_of(error) is not None or any(name_of(of) in _TABLE or _by_name(of) for of in types)


def by_status(status: int) -> FailureClass:
    """The class of an HTTP error status."""
    return SERVER_ERROR if status >= 500 else _STATUSES.get(status, CLIENT_ERROR)


def by_answer(error: BaseException) -> FailureClass | None:
    """The class by HTTP status and the provider's words; None where there is neither."""
    status, words = status_of(error), words_of(error)
    if words & _QUOTA:
        # Comes as 429, but it is no rate limit: waiting does not help.
        return CLIENT_ERROR
    if status is None or (status == 400 and words & _THROTTLED):
        return next((_WORDS[word] for word in sorted(words) if word in _WORDS), None)
    return by_status(status)


def _in_table(error: BaseException, types: list[type]) -> Known | None:
    for of in types:
        verdict = _TABLE.get(name_of(of)) or _by_name(of)
        if callable(verdict):
            verdict = verdict(error)
        if verdict is not None:
            # A private subclass may have taken its base's name: the public type is the last one of that name.
            return Known(next(t for t in reversed(types) if name_of(t) == name_of(of)), verdict)
    return None


def _by_name(of: type) -> FailureClass | None:
    return CIRCUIT_OPEN if package_of(of) != "builtins" and _CIRCUIT.search(of.__name__) else None


_CIRCUIT = re.compile(r"^_?Circuit(Breaker)?(Is)?Open|^CircuitBreakerError$|^BreakerOpen")

_STATUSES = {401: AUTH, 403: AUTH, 408: CONNECTION, 425: SERVER_ERROR, 429: RATE_LIMIT}

_QUOTA = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_error"})
_THROTTLED = frozenset({"SlowDown", "Throttling", "ThrottlingException", "TooManyRequestsException"})
_WORDS = {
    **dict.fromkeys((*_THROTTLED, "rate_limit_error", "rate_limit_exceeded", "too_many_requests"), RATE_LIMIT),
    **dict.fromkeys(("api_error", "overloaded_error", "server_error", "service_unavailable"), SERVER_ERROR),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "permission_error"), AUTH),
    **dict.fromkeys(("context_length_exceeded", "invalid_request_error", "not_found_error"), CLIENT_ERROR),
    "timeout_error": CONNECTION,
}
UNDERSTOOD = _QUOTA.union(_WORDS)
"""The words of providers that mean something here, and that therefore may be repeated."""

_SQLSTATES = {
    "08": CONNECTION,
    "57P": CONNECTION,  # the server shuts down, has crashed, or ended an idle session
    "57014": CONNECTION,  # a timeout of the statement
    "25P": CONNECTION,  # a timeout of the transaction
    "25006": CONNECTION,  # read-only: a standby, until the failover is through
    "40": SERVER_ERROR,  # serialization failure, deadlock
    "40002": CLIENT_ERROR,  # ... but a constraint at commit stays violated
    "53": SERVER_ERROR,  # out of connections, memory, disk
    "55P03": SERVER_ERROR,  # a lock is not to be had
    "58": SERVER_ERROR,
    "28": AUTH,
    "42501": AUTH,
    "3D": CONFIGURATION,
    **dict.fromkeys(("0A", "21", "22", "23", "42", "44"), CLIENT_ERROR),
}

_NETWORK_ERRNOS = frozenset(
    {errno.EADDRNOTAVAIL, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH}
)


def _by_sqlstate(otherwise: FailureClass) -> Callable[[BaseException], FailureClass]:
    def read(error: BaseException) -> FailureClass:
        state = sqlstate_of(error) or ""
        return next((_SQLSTATES[state[:n]] for n in (5, 3, 2) if state[:n] in _SQLSTATES), otherwise)

    return read


def _by_sqlite_name(error: BaseException) -> FailureClass:
    # sqlite3's OperationalError is a locked database as well as a table that does not exist.
    locked = str(attribute(error, "sqlite_errorname")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    return SERVER_ERROR if locked else CLIENT_ERROR


def _by_errno(error: BaseException) -> FailureClass | None:
    return CONNECTION if attribute(error, "errno") in _NETWORK_ERRNOS else None


def _model_api_error(error: BaseException) -> FailureClass | Wraps:
    # pydantic-ai's base: a provider's report without a status, or an answer that is no JSON.
    if isinstance(error.__cause__, ValueError) or str(attribute(error, "message")).startswith("Expected a JSON"):
        return UNKNOWN
    return by_answer(error) or Wraps(SERVER_ERROR)


def _openai_error(error: BaseException) -> FailureClass | None:
    # The base of the package's errors, raised bare where no API key is set.
    return CONFIGURATION if name_of(type(error)) == "openai.OpenAIError" else None


def _type_error(error: BaseException) -> FailureClass | None:
    # What Anthropic's client raises where no API key is set.
    return CONFIGURATION if "Could not resolve authentication method" in str(error.args[:1]) else None


def _each(packages: str, names: str, verdict: Verdict) -> dict[str, Verdict]:
    return {f"{package}.{name}": verdict for package in packages.split() for name in names.split()}


_STAINLESS = "anthropic cerebras groq openai together"

_TABLE: dict[str, Verdict] = {
    # Python
    "ConnectionError": CONNECTION,
    "TimeoutError": CONNECTION,
    "OSError": _by_errno,
    "TypeError": _type_error,
    **_each("socket", "gaierror herror", CONNECTION),
    **_each("ssl", "SSLError", CONNECTION),
    **_each("http", "BadStatusLine IncompleteRead", CONNECTION),
    **_each("urllib", "HTTPError", by_answer),
    **_each("urllib", "URLError", Wraps(UNKNOWN)),
    **_each("asyncio", "IncompleteReadError", CONNECTION),
    **_each("subprocess", "TimeoutExpired", CONNECTION),
    **_each("smtplib", "SMTPConnectError SMTPServerDisconnected", CONNECTION),
    **_each("smtplib", "SMTPAuthenticationError", AUTH),
    **_each("sqlite3", "OperationalError", _by_sqlite_name),
    **_each("sqlite3", "DataError IntegrityError NotSupportedError ProgrammingError", CLIENT_ERROR),
    # HTTP clients
    **_each("httpx httpx2 httpcore httpcore2", "NetworkError ProtocolError ProxyError TimeoutException", CONNECTION),
    **_each("httpx httpx2 httpcore httpcore2", "InvalidURL UnsupportedProtocol", CONFIGURATION),
    **_each("httpx httpx2", "HTTPError HTTPStatusError", by_answer),
    **_each("h11 h2", "RemoteProtocolError ConnectionClosedError", CONNECTION),
    **_each("anyio", "BrokenResourceError ClosedResourceError EndOfStream", CONNECTION),
    **_each("requests", "ChunkedEncodingError ConnectionError Timeout", CONNECTION),
    **_each("requests", "HTTPError RequestException", by_answer),
    **_each("requests", "RetryError", SERVER_ERROR),
    **_each("urllib3", "EmptyPoolError ProtocolError ProxyError SSLError TimeoutError", CONNECTION),
    **_each("urllib3", "MaxRetryError", Wraps(CONNECTION)),
    **_each("urllib3", "ResponseError", SERVER_ERROR),
    **_each("aiohttp", "ClientConnectionError ClientPayloadError", CONNECTION),
    **_each("aiohttp", "ClientError ClientResponseError", by_answer),
    **_each("websockets", "ConnectionClosed", CONNECTION),
    **_each("purgatory", "OpenedState", CIRCUIT_OPEN),
    **_each("tenacity", "RetryError", Wraps(UNKNOWN)),
    # Model providers
    **_each(_STAINLESS, "APIConnectionError APITimeoutError", Wraps(CONNECTION)),
    **_each(_STAINLESS, "APIResponseValidationError", UNKNOWN),
    **_each(_STAINLESS, "APIError APIStatusError", by_answer),
    **_each("anthropic", "ContractSpendLimitReachedError EnforcedSpendLimitReachedError", CLIENT_ERROR),
    **_each("anthropic", "CredentialsError", CONFIGURATION),
    **_each("anthropic", "RetryableError", Wraps(SERVER_ERROR)),
    "openai.OpenAIError": _openai_error,
    **_each("google", "APIError GoogleAPICallError", by_answer),
    **_each("google", "DefaultCredentialsError", CONFIGURATION),
    **_each("google", "TransportError", CONNECTION),
    **_each("botocore", "ConnectionClosedError ConnectionError HTTPClientError", CONNECTION),
    **_each("botocore", "NoCredentialsError NoRegionError", CONFIGURATION),
    **_each("botocore", "ClientError", by_answer),
    **_each("pydantic_ai", "ModelAPIError", _model_api_error),
    **_each("pydantic_ai", "ModelHTTPError", by_answer),
    **_each("pydantic_ai", "ModelRateLimitError ConcurrencyLimitExceeded", RATE_LIMIT),
    **_each("pydantic_ai", "ModelServerError ModelUnavailableError", SERVER_ERROR),
    **_each("pydantic_ai", "ModelConnectionError", Wraps(CONNECTION)),
    **_each("pydantic_ai", "ModelRequestTimeout RunTimedOut", CONNECTION),
    **_each("pydantic_ai", "ModelAuthenticationError", AUTH),
    **_each("pydantic_ai", "ModelQuotaExceededError ModelRequestRejectedError", CLIENT_ERROR),
    **_each("pydantic_ai", "UserError", CONFIGURATION),
    **_each("pydantic_ai", "AgentRunError", UNKNOWN),
    # Databases
    **_each("psycopg psycopg2", "InterfaceError", CONNECTION),
    **_each("psycopg psycopg2", "OperationalError", _by_sqlstate(CONNECTION)),
    **_each(
        "psycopg psycopg2", "DataError IntegrityError NotSupportedError ProgrammingError", _by_sqlstate(CLIENT_ERROR)
    ),
    **_each("psycopg psycopg2", "Error", _by_sqlstate(UNKNOWN)),
    **_each("asyncpg", "InterfaceError", CONNECTION),
    **_each("asyncpg", "PostgresError", _by_sqlstate(UNKNOWN)),
    **_each("sqlalchemy django", "InterfaceError OperationalError", Wraps(CONNECTION)),
    **_each("sqlalchemy django", "DataError IntegrityError NotSupportedError ProgrammingError", Wraps(CLIENT_ERROR)),
    **_each("sqlalchemy", "DisconnectionError TimeoutError", CONNECTION),
    **_each("sqlalchemy", "StatementError", Wraps(UNKNOWN)),
    # Redis and Celery
    **_each("redis valkey", "ClusterDownError ConnectionError ReadOnlyError TimeoutError TryAgainError", CONNECTION),
    **_each("redis valkey", "AuthenticationError AuthorizationError NoPermissionError", AUTH),
    **_each("kombu", "ConnectionLimitExceeded OperationalError", CONNECTION),
    **_each("amqp", "ConnectionForced RecoverableConnectionError", CONNECTION),
    **_each("celery multiprocessing", "TimeoutError", CONNECTION),
    **_each("celery", "ImproperlyConfigured", CONFIGURATION),
    # A segment that took too long is a timeout like any other: what it finished is in the journal, the next one
    # starts behind that. Where it is too long every time, the budget of requeues ends it.
    **_each("billiard", "SoftTimeLimitExceeded TimeLimitExceeded", CONNECTION),
}
