"""What an error may say in a row that people read: never what another service answered, never a credential.

An error of the user's own code, or of Python, speaks for itself: its first line, cut. An error of a package that talks
to the outside does not, for its text may hold a request, an answer, a URL or a key: it is described by what it carries.
"""

from __future__ import annotations

import re

from agentrun.core.error_facts import (
    errno_of,
    host_of,
    inner_of,
    model_of,
    package_of,
    sqlstate_of,
    status_of,
    words_of,
)
from agentrun.core.errors import AgentrunError, Fatal, NotApplied, Retryable
from agentrun.core.known_errors import UNDERSTOOD, Known, known
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
    found = known(error)
    if isinstance(error, NotApplied):
        # A tool's answer to its model, given again at every replay: whole.
        return cut(_text_of(error), LONGEST_ANSWER, keep="\n\t")
    if isinstance(error, AgentrunError) and not isinstance(error, Retryable | Fatal):
        return first_line(error, LONGEST_OWN_TEXT)
    if found is None or _is_pythons(found) or _may_speak(error, failure_class):
        return first_line(error, LONGEST_TEXT) or (_PHRASES[failure_class] if failure_class.retryable else "")
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


def _is_pythons(found: Known) -> bool:
    return found.owner is not None and package_of(found.owner) == "builtins"


def _may_speak(error: BaseException, failure_class: FailureClass) -> bool:
    """What names a missing setting, and the texts that pydantic-ai makes of its own counts."""
    if failure_class in (FailureClass.CONFIGURATION, FailureClass.CIRCUIT_OPEN) and status_of(error) is None:
        return True
    if not any(package_of(of) == "pydantic_ai" for of in type(error).__mro__):
        return False
    names = {of.__name__ for of in type(error).__mro__}
    return bool(names & _SPEAK_FOR_THEMSELVES) or _LIMITS.fullmatch(first_line(error, LONGEST_TEXT)) is not None


def _composed(error: BaseException, failure_class: FailureClass) -> str:
    """What an error of another package is said to be: by its status, its SQLSTATE, or its class."""
    about = model_of(error) or host_of(error)
    inner: BaseException | None = error
    for _ in range(10):
        if inner is None:
            break
        if (status := status_of(inner)) is not None:
            from_where = f" from {'model ' if model_of(error) else ''}{about}" if about else ""
            word = min(words_of(inner) & UNDERSTOOD, default=None)
            return f"HTTP {status}{from_where}{f' ({word})' if word else ''}"
        if (state := sqlstate_of(inner)) is not None:
            return f"SQLSTATE {state}"
        inner = inner_of(inner)
    refused = errno_of(error)
    what = "timed out" if "timeout" in type(error).__name__.lower() else _PHRASES.get(failure_class, "")
    return what + (f": {about}" if about else "") + (f" ({refused})" if refused else "")
