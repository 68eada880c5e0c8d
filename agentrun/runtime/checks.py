"""What producers may wish for, checked before anything is stored: names, durations, priorities, attributes.

Everything here raises InvalidRequest, which says what was wrong with which wish.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TypeGuard, cast

from agentrun.core.codec import encode
from agentrun.core.errors import InvalidRequest

LEAST_URGENT = 9
LONGEST_NAME = 200
LONGEST_DELAY = timedelta(days=3650)
MOST_ATTEMPTS = 1_000_000

SHORTEST_LEASE = 1.0
"""Seconds. A lease is renewed at each quarter of its time, and one renewal may wait half a second for the run's row."""

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def checked_name(what: str, value: object) -> str:
    """A kind, queue, key, tag or owner: 1 to 200 printable characters."""
    if not _is_name(value):
        raise InvalidRequest(f"{what} must be 1 to {LONGEST_NAME} printable characters, not {shown(value)}")
    return value


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def _are_several(values: object) -> TypeGuard[Iterable[object]]:
    """Whether it is a list, or whatever else gives one thing after the other: no text, and no object with names."""
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)


def checked_names(what: str, values: object) -> list[str]:
    """Several of them. One text is no list of texts: its letters are not meant."""
    if not _are_several(values):
        raise InvalidRequest(f"{what}s must be a list of texts, not {shown(values)}")
    return [checked_name(what, value) for value in values]


def checked_requests(values: object) -> list[object]:
    """One for each run. A text or an object is one request, and not a list of its letters or names."""
    if not _are_several(values):
        raise InvalidRequest(f"requests must be a list, one for each run, not {type(values).__name__}")
    return list(values)


def checked_queue(value: object) -> str | None:
    """A queue's name, as `celery worker -Q` takes it: that takes names apart at commas; None stays None."""
    if value is None:
        return None
    if not _is_name(value) or "," in value or value != value.strip():
        raise InvalidRequest(
            f"queue must be 1 to {LONGEST_NAME} printable characters, without commas and blanks around it, as "
            f"`celery worker -Q` takes it, not {shown(value)}; leave it out for the usual queue"
        )
    return value


def checked_priority(value: object) -> int:
    """0, the most urgent, to 9."""
    if not is_whole(value, 0, LEAST_URGENT):
        raise InvalidRequest(f"priority must be 0 (most urgent) to {LEAST_URGENT}, not {shown(value)}")
    return value


def checked_seconds(what: str, value: object) -> float | None:
    """Seconds or a timedelta, 0 to ten years; None stays None."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not _bearable(seconds):
        raise InvalidRequest(f"{what} must be 0 seconds to 10 years, as seconds or a timedelta, not {shown(value)}")
    return float(seconds)


def checked_timeout(value: object) -> float | None:
    """Seconds or a timedelta, more than 0 to ten years; None stays None."""
    try:
        seconds = checked_seconds("timeout", value)
    except InvalidRequest:
        seconds = 0.0
    if seconds == 0:
        raise InvalidRequest(
            f"timeout must be more than 0 seconds and at most 10 years, as seconds or a timedelta, not {shown(value)}"
        )
    return seconds


def checked_attempts(value: object) -> int:
    """How often something is tried, the first time included: 1 to a million."""
    if not is_whole(value, 1, MOST_ATTEMPTS):
        raise InvalidRequest(f"retries must be 1 (tried once) to {MOST_ATTEMPTS:,} attempts, not {shown(value)}")
    return value


def checked_requeues(value: object) -> int | None:
    """How often a run goes back to the queue: 0 to a million; None stays None."""
    if value is None:
        return None
    if not is_whole(value, 0, MOST_ATTEMPTS):
        raise InvalidRequest(f"max_requeues must be 0 (never) to {MOST_ATTEMPTS:,} times, not {shown(value)}")
    return value


def checked_lease(value: object) -> float | None:
    """How long a claim is valid without renewal: seconds, one to ten years; None stays None."""
    if value is None:
        return None
    number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else value
    if number < SHORTEST_LEASE or not _bearable(number):
        raise InvalidRequest(f"lease_seconds must be {SHORTEST_LEASE:g} second to 10 years, not {shown(value)}")
    return float(number)


def checked_flag(what: str, value: object) -> bool:
    """Yes or no. A text is neither: "no" would count as a yes."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{what} must be True or False, not {shown(value)}")
    return value


def checked_attributes(value: object) -> str:
    """JSON text of an object. PostgreSQL searches attributes, and its searchable JSON knows no NUL character."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"attributes must be an object with names, not {shown(value)}")
    text = encode(dict(cast("Mapping[object, object]", value)), what="attributes")
    if _NUL.search(text):
        raise InvalidRequest("attributes cannot be stored as JSON: they hold a NUL character; leave it out")
    return text


def is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    """Whether it is a whole number within these bounds. A yes or no is none, though Python counts with it."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _bearable(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds <= LONGEST_DELAY.total_seconds()


def shown(value: object) -> str:
    """A refused value, in short."""
    try:
        return repr(value[:40] if isinstance(value, str) else value)[:80]
    except ValueError:  # of a number with thousands of digits Python makes no text
        return f"this {type(value).__name__}"
