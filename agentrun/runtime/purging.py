"""Removing the history of runs that ended long ago: asked for by an operator, or by AGENTRUN_RETENTION_DAYS.

Batch by batch, each a transaction of its own with a pause after it, so that it may be stopped anywhere and never holds
much. What may go is the statement's to say; nothing here decides it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from agentrun.core.actors import Actor, may_operate
from agentrun.core.codec import decode
from agentrun.core.errors import InvalidRequest
from agentrun.core.records import Purged
from agentrun.core.words import FINAL, Status
from agentrun.runtime.checks import checked_name, checked_seconds
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.store.purge import CLAIM_RETENTION, FORGET_SPEND, MARK_RETENTION, PURGE, PURGEABLE

BATCH = 500
"""How many runs one transaction looks at."""

LARGEST_BATCH = 10_000
LONGEST_PAUSE = 1.0
DAY = 86_400.0
REST_SECONDS = 3_600.0
"""How long scheduled retention rests once it has looked at everything."""

NEVER_FAR_APART = 1.0
"""Two sweeps at the same moment do not both take a batch."""

Place = tuple[datetime | None, UUID | None]
_BEGINNING: Place = (None, None)


@dataclass(frozen=True, slots=True)
class Look:
    """One batch: what went, how many runs were looked at, and where the next one goes on."""

    purged: Purged
    looked: int
    place: Place


def purge(
    database: Database,
    settings: Settings,
    *,
    actor: Actor | None = None,
    older_than: timedelta | float,
    status: Status | str | Iterable[Status | str] | None = None,
    kind: str | None = None,
    dead: bool = False,
    dry_run: bool = False,
    batch: int = BATCH,
    told: Callable[[Purged], object] = lambda _: None,
) -> Purged:
    """Remove runs that ended longer ago than that; `told` hears after each batch what went so far.

    Raises InvalidRequest before anything is removed, and Forbidden for an actor without OPERATE.
    """
    if actor is not None:
        may_operate(actor)
    params = _params(older_than, status, kind, dead, batch) | {"namespace": settings.namespace}
    sum_of = Purged()
    if not dry_run:
        database.rows(FORGET_SPEND, params)
    for once in _passes(database, params, dry_run=dry_run):
        sum_of += once
        told(sum_of)
    return sum_of


def retain(database: Database, settings: Settings, *, by: str) -> int:
    """One batch of what AGENTRUN_RETENTION_DAYS says may go, oldest first; how many runs went.

    A look at everything goes on from sweep to sweep, whichever process sweeps, and begins again an hour after its end.
    Nothing is asked of the database where the setting is not set.
    """
    if settings.retention_days is None:
        return 0
    scope = {"namespace": settings.namespace, "by": by, "every": NEVER_FAR_APART, "rest": REST_SECONDS}
    mine = database.row(CLAIM_RETENTION, scope)
    if mine is None:
        return 0
    params = _params(settings.retention_days * DAY, None, None, False, BATCH) | scope
    database.rows(FORGET_SPEND, scope)
    look = _look(database, params, _place_in(decode(mine["found"]) or {}))
    found = {"purged": look.purged.runs} | ({"after": _told_place(look.place)} if look.looked == BATCH else {})
    database.rows(MARK_RETENTION, scope | {"found": json.dumps(found)})
    return look.purged.runs


def _passes(database: Database, params: dict[str, Any], *, dry_run: bool) -> Iterator[Purged]:
    """From the oldest to the youngest, and again while anything goes: children of a failed run go after it."""
    while True:
        gone = kept = 0
        for look in _batches(database, params, dry_run=dry_run):
            gone, kept = gone + look.purged.runs, kept + look.looked - look.purged.runs
            yield look.purged
        if dry_run or not gone or not kept:
            return


def _batches(database: Database, params: dict[str, Any], *, dry_run: bool) -> Iterator[Look]:
    place = _BEGINNING
    while True:
        began = time.monotonic()
        look = _look(database, params, place, dry_run=dry_run)
        yield look
        if look.looked < params["limit"]:
            return
        place = look.place
        # As long as the batch took: whoever works gets at least every second moment of the disk.
        threading.Event().wait(min(time.monotonic() - began, LONGEST_PAUSE))


def _look(database: Database, params: dict[str, Any], place: Place, *, dry_run: bool = False) -> Look:
    row = database.row(PURGEABLE if dry_run else PURGE, params | {"after_at": place[0], "after_id": place[1]})
    assert row is not None  # noqa: S101 - it counts, and a count is always there
    went = Purged(row["purged"]) if dry_run else Purged(row["purged"], row["steps"], row["events"])
    return Look(went, row["looked"], (row["after_at"], row["after_id"]))


def _params(
    older_than: timedelta | float,
    status: Status | str | Iterable[Status | str] | None,
    kind: str | None,
    dead: bool,
    batch: int,
) -> dict[str, Any]:
    seconds = checked_seconds("older_than", older_than)
    if seconds is None:
        raise InvalidRequest("older_than must be said, as seconds or a timedelta: nothing is removed by default")
    if not 1 <= batch <= LARGEST_BATCH:
        raise InvalidRequest(f"batch must be 1 to {LARGEST_BATCH}, not {batch}")
    return {
        "older_than": seconds,
        "statuses": _final(status),
        "kind": checked_name("kind", kind) if kind is not None else None,
        "dead": dead,
        "limit": batch,
    }


def _final(status: Status | str | Iterable[Status | str] | None) -> list[str]:
    """Final statuses: all, or those. Raises InvalidRequest for any other."""
    wanted = FINAL if status is None else [status] if isinstance(status, str) else status
    known = sorted(str(each) for each in FINAL)
    wrong = sorted(str(each) for each in wanted if str(each) not in known)
    if wrong:
        raise InvalidRequest(f"only runs that have ended are removed: {', '.join(known)}, not {', '.join(wrong)}")
    return sorted({str(each) for each in wanted})


def _told_place(place: Place) -> list[str]:
    at, run_id = place
    return [at.isoformat() if at is not None else "", str(run_id)]


def _place_in(found: dict[str, Any]) -> Place:
    after = found.get("after")
    return (datetime.fromisoformat(after[0]), UUID(after[1])) if after else _BEGINNING
