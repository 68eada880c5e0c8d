"""Hooks: callables that tell people. Called after the commit, retried, and unable to break a run or hold up a sweep.

A notice is written before it is told, so it is told at least once; its `id` is the same in every attempt. What is no
longer true by then (the wait is answered, the run moves again) is not told at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from agentrun.core.alarms import Occasion
from agentrun.core.codec import decode
from agentrun.core.errors import ConfigurationError
from agentrun.runtime.checks import shown
from agentrun.runtime.healing import code_changed, needs, of_failed
from agentrun.store import notices
from agentrun.store.database import Database

log = logging.getLogger("agentrun.hooks")

Hook = Callable[[Mapping[str, Any]], object]

LONGEST_CALL = 15.0
"""Seconds that one call of a hook may take. One that takes longer counts as failed, and is not called again by this
process until it has ended."""

LONGEST_PASS = 5.0
"""Seconds after which a pass leaves the rest of its notices to the next."""

TAKEN_FOR = 4 * LONGEST_CALL
MOST_ATTEMPTS = 8
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 900.0

_hooks: dict[Occasion, dict[str, Hook]] = {occasion: {} for occasion in Occasion}
_hanging: dict[tuple[Occasion, str], threading.Thread] = {}


def on_waiting(hook: Hook, *, name: str | None = None) -> Hook:
    """Register a hook for runs that wait for people. `name` identifies it across processes and restarts.

    It is called in a worker process, by the sweep, with a mapping: id, occasion, run_id, wait_id, kind, key, question,
    role, run_kind, owner, digest, since, due_at, round (1, then more for reminders). No payload is in it.
    Raises ConfigurationError where another hook has the name.
    """
    return _register(Occasion.WAITING, hook, name)


def on_stalled(hook: Hook, *, name: str | None = None) -> Hook:
    """Register a hook for runs that stand still although nobody is asked: the pager.

    Called once for each episode across all processes, with: id, occasion, run_id, kind, shape, since, age_seconds,
    queue, waiting_on, step (key, name, kind, attempt, redispatch_count, age_seconds, heartbeat_age_seconds; or None),
    owner, command, needs (of the command, or None). No payload is in it. Raises ConfigurationError where another hook
    has the name.
    """
    return _register(Occasion.STALLED, hook, name)


def on_dead(hook: Hook, *, name: str | None = None) -> Hook:
    """Register a hook for dead-lettered runs: failed as `not_retryable` or `retries_exhausted`, whoever settled them.

    Called once for each such end, with: id, occasion, run_id, kind, reason, failure_class, error_type, step,
    write_in_flight, owner, queue, since, requeues, crashes, command, needs (of the command, or None). Raises
    ConfigurationError where another hook has the name.
    """
    return _register(Occasion.DEAD, hook, name)


def forget(hook: Hook) -> None:
    """Call this hook no more, on any occasion. What was not told yet waits for a process that has it."""
    for known in _hooks.values():
        for name in [name for name, each in known.items() if each is hook]:
            del known[name]


def names(occasion: Occasion) -> list[str]:
    """The hooks of this process for an occasion."""
    return sorted(_hooks[occasion])


def announce(database: Database, namespace: str, *, limit: int) -> None:
    """Write the notices that are due for this process's hooks, whoever will tell them."""
    for occasion, (first, *again) in notices.ANNOUNCE.items():
        if not _hooks[occasion]:
            continue
        scope = {"namespace": namespace, "hooks": names(occasion), "limit": limit, "occasion": str(occasion)}
        if len(database.rows(first, scope)) < limit:
            database.rows(notices.UP_TO_DATE, scope)
        for statement in again:
            database.rows(statement, scope)


def notify(database: Database, namespace: str, *, limit: int) -> int:
    """Write and tell what is due for this process's hooks; how many were told. Never raises for a hook.

    Bounded by `limit`, and by LONGEST_PASS and one call beyond it; what is left is the next pass's.
    """
    if not any(_hooks.values()):
        return 0
    announce(database, namespace, limit=limit)
    database.rows(notices.DROP, {"namespace": namespace})
    ends = time.monotonic() + LONGEST_PASS
    told = tried = 0
    for occasion in Occasion:
        while tried < limit and time.monotonic() < ends:
            row = _taken(database, namespace, occasion)
            if row is None:
                break
            tried += 1
            told += _delivered(database, namespace, occasion, row)
    return told


def _register(occasion: Occasion, hook: Hook, name: str | None) -> Hook:
    if not callable(hook):
        raise ConfigurationError(f"a hook for `{occasion}` must be a function, not {shown(hook)}")
    known = name or f"{getattr(hook, '__module__', '?')}.{getattr(hook, '__qualname__', repr(hook))}"
    if _hooks[occasion].get(known, hook) is not hook:
        raise ConfigurationError(f"two hooks are named `{known}`; give one of them another name")
    _hooks[occasion][known] = hook
    return hook


def _taken(database: Database, namespace: str, occasion: Occasion) -> Mapping[str, Any] | None:
    """The next notice for a hook that does not hang."""
    free = [name for name in names(occasion) if not _hangs(occasion, name)]
    if not free:
        return None
    params = {"namespace": namespace, "occasion": str(occasion), "hooks": free, "again_in": TAKEN_FOR}
    return database.row(notices.TAKE, params)


def _hangs(occasion: Occasion, name: str) -> bool:
    thread = _hanging.get((occasion, name))
    if thread is not None and not thread.is_alive():
        del _hanging[occasion, name]
        return False
    return thread is not None


def _delivered(database: Database, namespace: str, occasion: Occasion, row: Mapping[str, Any]) -> bool:
    error = _called(occasion, row["hook"], facts(occasion, row, namespace=namespace))
    if error is None:
        database.rows(notices.DELIVERED, {"id": row["id"]})
        return True
    given_up = row["attempts"] >= MOST_ATTEMPTS
    pause = min(FIRST_PAUSE * 2 ** (row["attempts"] - 1), LONGEST_PAUSE)
    log.warning("hook %s raised %s%s", row["hook"], error, "; it is given up" if given_up else "")
    database.rows(notices.FAILED, {"id": row["id"], "last_error": error, "again_in": None if given_up else pause})
    return False


def facts(occasion: Occasion, row: Mapping[str, Any], *, namespace: str) -> dict[str, Any]:
    """What a hook is called with."""
    said = {"id": f"{occasion}:{row['subject']}:{row['round']}", "occasion": str(occasion), "round": row["round"]}
    told: dict[str, Any] = decode(row["data"]) | said
    if occasion is Occasion.DEAD:
        unfit = told.pop("unfit", None)
        told["command"] = of_failed(
            told["run_id"],
            write_in_flight=told["write_in_flight"],
            changed=code_changed(told["error_type"]),
            unfit=unfit,
        )
    if "command" in told:
        told["needs"] = needs(told["command"], namespace=namespace)
    return told


def _called(occasion: Occasion, name: str, told: Mapping[str, Any]) -> str | None:
    """Call the hook in a thread that may be left behind; what went wrong as the name of an error, or None."""
    endings: list[str | None] = []

    def call() -> None:
        try:
            _hooks[occasion][name](told)
            endings.append(None)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            endings.append(type(error).__name__)

    thread = threading.Thread(target=call, name=f"agentrun hook {name}", daemon=True)
    thread.start()
    thread.join(LONGEST_CALL)
    if thread.is_alive():
        _hanging[occasion, name] = thread
        return "TimeoutError"
    return endings[0]
