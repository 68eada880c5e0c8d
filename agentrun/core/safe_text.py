"""What an error may say in a row that people read: never what another service answered, never a credential.

An error of the user's own code, or of Python, speaks for itself: its first line, cut. An error of a package that talks
to the outside does not, for its text may hold a request, an answer, a URL or a key: it is described by what it carries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentrun.core.error_facts import (
    host_of,
    inner_of,
    model_of,
    package_of,
    refusal_of,
    sqlstate_of,
    status_of,
    words_of,
)
from agentrun.core.errors import AgentrunError, Fatal, NotApplied, Retryable
from agentrun.core.known_errors import UNDERSTOOD, is_from_outside
from agentrun.core.words import FailureClass

LONGEST_TEXT = 200
LONGEST_OWN_TEXT = 1_000
LONGEST_ANSWER = 2_000
"""Characters that are kept: of others' texts, of agentrun's own, of what NotApplied tells a model."""

_PHRASES = {
    FailureClass.CONNECTION: "connection failed",
    FailureClass.RATE_LIMIT: "too many requests",
    FailureClass.SERVER_ERROR: "the server failed",
    FailureClass.CIRCUIT_OPEN: "circuit open",
    FailureClass.AUTH: "credentials refused",
    FailureClass.CLIENT_ERROR: "the request was refused",
    FailureClass.UNKNOWN: "the answer could not be used",
}

_SPEAK_FOR_THEMSELVES = frozenset({"ConcurrencyLimitExceeded", "RunTimedOut", "UsageLimitExceeded", "UserError"})
_LIMITS = re.compile(
    r"(Tool '[\w-]+' )?[Ee]xceeded max(imum)? (output )?retries( count of \d+| \(\d+\))?( for .{0,40})?"
)

_LINE_ENDS = re.compile(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_NAMES = r"api[-_ ]?key|access[-_ ]?key|authorization|password|passwd|secret|token"
_SECRETS = (
    (re.compile(r"([a-z][a-z0-9+.-]*:/?/)[^/\s@'\"]+@", re.IGNORECASE), r"\1***@"),
    (re.compile(r"(https?://[^\s?#'\"]+)[?#][^\s'\"]+", re.IGNORECASE), r"\1?***"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), r"\1 ***"),
    (re.compile(r"\b(sk|pk|rk|ghp|gho|xox[abp])[-_][\w-]{6,}"), r"\1-***"),
    (re.compile(rf"((?:{_NAMES})['\"]?\s*[:=]\s*)['\"]?[^\s,;'\"]+", re.IGNORECASE), r"\1***"),
)
"""Patterns of what looks like a credential, and what is left of it."""


def safe_text(error: BaseException, failure_class: FailureClass) -> str:
    """One line about `error` that may be stored and shown. Empty where there is nothing to say beside its type."""
    if isinstance(error, NotApplied):
        # A tool's answer to its model, given again at every replay: whole.
        return cut(_text_of(error), LONGEST_ANSWER, keep="\n\t")
    if isinstance(error, AgentrunError) and not isinstance(error, Retryable | Fatal):
        return first_line(error, LONGEST_OWN_TEXT)
    if not is_from_outside(error) or _may_speak(error, failure_class):
        return first_line(error, LONGEST_TEXT) or (_phrase(error, failure_class) if failure_class.retryable else "")
    return _composed(error, failure_class)


def first_line(error: BaseException, limit: int) -> str:
    """The first line of what the error says, at most `limit` characters, without credentials and control characters."""
    return cut(_LINE_ENDS.split(_text_of(error).strip(), maxsplit=1)[0], limit)


def cut(text: str, limit: int, *, keep: str = "") -> str:
    """`text` as it may be stored: credentials starred out, what is not printable replaced, at most `limit` long.

    Characters of `keep` count as printable.
    """
    # Starred out before it is cut, so that no half of a secret is left unrecognised; but not a megabyte of it.
    text = text[: limit * 10]
    for pattern, stars in _SECRETS:
        text = pattern.sub(stars, text)
    text = "".join(letter if letter.isprintable() or letter in keep else "�" for letter in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _may_speak(error: BaseException, failure_class: FailureClass) -> bool:
    """What names a missing setting, and the texts that pydantic-ai makes of its own counts.

    Not a circuit breaker: some quote the failure that opened them.
    """
    if failure_class is FailureClass.CONFIGURATION and status_of(error) is None:
        return True
    if not any(package_of(of) == "pydantic_ai" for of in type(error).__mro__):
        return False
    names = {of.__name__ for of in type(error).__mro__}
    return bool(names & _SPEAK_FOR_THEMSELVES) or _LIMITS.fullmatch(first_line(error, LONGEST_TEXT)) is not None


def _composed(error: BaseException, failure_class: FailureClass) -> str:
    """What an error from outside is said to be: by its status, its SQLSTATE, or its class."""
    about = model_of(error) or host_of(error)
    links = list(_unwrapped(error))
    for link in links:
        if (status := status_of(link)) is not None:
            whence = f" from {'model ' if model_of(error) else ''}{about}" if about else ""
            word = min(words_of(link) & UNDERSTOOD, default=None)
            return f"HTTP {status}{whence}{f' ({word})' if word else ''}"
        if (state := sqlstate_of(link)) is not None:
            return f"SQLSTATE {state}"
    refused = refusal_of(error)
    return _phrase(links[-1], failure_class) + (f": {about}" if about else "") + (f" ({refused})" if refused else "")


def _phrase(error: BaseException, failure_class: FailureClass) -> str:
    if failure_class is FailureClass.CONNECTION and "time" in type(error).__name__.lower():
        return "timed out"
    return _PHRASES.get(failure_class, "")


def _unwrapped(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it wraps as far as that is from outside too."""
    link: BaseException | None = error
    for _ in range(10):
        if link is None or not is_from_outside(link):
            return
        yield link
        link = inner_of(link)
