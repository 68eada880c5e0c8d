"""When the failing side wants to be asked again, by the error and the headers of its answer: at most a day from now.

A date needs a now. It is the Date header of the same answer: the failing side's own clock, not this host's.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from agentrun.core.error_facts import attribute, headers_of
from agentrun.core.errors import Retryable

LONGEST_RETRY_AFTER = 86_400.0
"""Seconds; who asks for more is not believed."""

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


def wait_named_by(error: BaseException) -> float | None:
    """Seconds that this very error names: `Retryable.after`, its headers, or its `retry_after` attribute."""
    if isinstance(error, Retryable):
        return _seconds(attribute(error, "after"))
    # Headers first: they hold the other side's clock, while an attribute may come from this host's.
    waits = (retry_after_in(headers) for headers in headers_of(error))
    named = next((wait for wait in waits if wait is not None), None)
    return named if named is not None else _seconds(attribute(error, "retry_after"))


def retry_after_in(headers: Any) -> float | None:
    """Seconds by `retry-after-ms` or `Retry-After`, from 0 to LONGEST_RETRY_AFTER; None where neither makes sense.

    `headers` is any mapping of names to values, in any spelling of the names; what is no mapping has no answer.
    A date without a readable Date header beside it is ignored, one that has passed means at once.
    """
    told = _lowered(headers)
    milliseconds = _number(told.get("retry-after-ms"))
    if milliseconds is not None:
        return believed(milliseconds / 1_000)
    seconds = _number(told.get("retry-after"))
    if seconds is not None:
        return believed(seconds)
    at, now = _date(told.get("retry-after")), _date(told.get("date"))
    return believed((at - now).total_seconds()) if at is not None and now is not None else None


def believed(seconds: float) -> float:
    """`seconds`, brought into what a retry can wait."""
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


def _seconds(wait: Any) -> float | None:
    if isinstance(wait, timedelta):
        return believed(wait.total_seconds())
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait < float("inf"):
        return believed(float(wait))
    return None


def _lowered(headers: Any) -> dict[str, str]:
    try:
        pairs = list(headers.items())
        return {name.lower(): value.strip() for name, value in pairs if _are_text(name, value)}
    except Exception:
        # Somebody else's object, asked for something that it need not have.
        return {}


def _are_text(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
