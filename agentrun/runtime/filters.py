"""What reads may be asked for, checked before the database is: words, names, attributes, pages, waiting times.

Everything here raises InvalidRequest, which says what was wrong with which filter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, cast

from agentrun.core.errors import InvalidRequest
from agentrun.core.words import Reason, Status, WaitKind
from agentrun.runtime.checks import checked_attributes, checked_name, is_whole, shown

LARGEST_PAGE = 1_000
"""Runs, or external steps."""

MOST_ROWS = 10_000
"""Of everything else."""

FARTHEST = 2**63 - 1
ASKED_OF_PEOPLE = (WaitKind.APPROVAL, WaitKind.INPUT, WaitKind.SIGNAL)


def checked_filters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """What `list` chooses runs by, as its statement takes it."""
    names = {what: checked_filter(what, filters[what]) for what in ("kind", "tag", "owner")}
    wanted = filters["attributes"]
    attributes = checked_attributes(wanted) if wanted is not None and wanted != {} else None
    chosen = {"status": _statuses(filters["status"]), "reason": checked_reason(filters["reason"])}
    return {**filters, **names, **chosen, "attributes": attributes}


def checked_filter(what: str, value: object) -> str | None:
    """A name to look for; None stays None."""
    return None if value is None else checked_name(what, value)


def checked_reason(value: object) -> str | None:
    """Why runs have ended; None stays None."""
    return _word("reason", value, Reason)


def checked_asked(value: object) -> str | None:
    """What people are asked for; None stays None."""
    return _word("kind", value, ASKED_OF_PEOPLE)


def checked_limit(value: object, *, most: int = MOST_ROWS) -> int:
    """How many at most: 1 to `most`."""
    if not is_whole(value, 1, most):
        raise InvalidRequest(f"limit must be 1 to {most}, not {shown(value)}")
    return value


def checked_after(value: object) -> int:
    """The number of an event; those after it are wanted."""
    if not is_whole(value, -FARTHEST, FARTHEST):
        raise InvalidRequest(f"after must be the `seq` of an event, or -1 for all of them, not {shown(value)}")
    return value


def checked_wait(value: object) -> float | None:
    """How long a caller waits: seconds or a timedelta, where less than 0 is 0; None, and infinity, have no end."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise InvalidRequest(f"timeout must be seconds or a timedelta, not {shown(value)}; None waits without end")
    return seconds


def checked_token(value: object) -> str:
    """A token as text. Whose it is, is another question."""
    if not isinstance(value, str):
        raise InvalidRequest(f"a token is the text that came with what it answers, not {shown(value)}")
    return value


def _statuses(value: object) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        return _statuses([value])
    given = cast("Iterable[object]", value)
    return [cast("str", _word("status", each, Status, none=False)) for each in given]


def _word(what: str, value: object, words: Iterable[StrEnum], *, none: bool = True) -> str | None:
    if none and value is None:
        return None
    there = [str(word) for word in words]
    if not isinstance(value, str) or value not in there:
        near = get_close_matches(value, there, n=1) if isinstance(value, str) else ()
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise InvalidRequest(f"{what} must be one of {', '.join(there)}, not {shown(value)}{hint}")
    return str(value)
