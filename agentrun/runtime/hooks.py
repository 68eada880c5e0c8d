"""Hooks: callables that tell people. Called after the commit, retried, and unable to break a run.

`on_waiting` hears of every approval, input and signal that waits, and of its reminders. A hook may be told twice
(at-least-once); `round` and `wait_id` tell repeats apart.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from agentrun.core.codec import decode
from agentrun.core.errors import ConfigurationError
from agentrun.store import notices
from agentrun.store.database import Database

log = logging.getLogger("agentrun.hooks")

Hook = Callable[[Mapping[str, Any]], object]

LONGEST_CALL = 10.0
"""Seconds that a signed call may take."""

MOST_ATTEMPTS = 8
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 900.0
NEVER = 365 * 86_400.0

_waiting: dict[str, Hook] = {}


def on_waiting(hook: Hook, *, name: str | None = None) -> Hook:
    """Register a hook for runs that wait for people. `name` identifies it across processes and restarts.

    It is called in a worker process, by the sweep, with a mapping: run_id, wait_id, kind, key, question, role,
    run_kind, owner, digest, since, due_at, round (1, then more for reminders). No payload is in it.
    Raises ConfigurationError where another hook has the name.
    """
    known = name or f"{getattr(hook, '__module__', '?')}.{getattr(hook, '__qualname__', repr(hook))}"
    if _waiting.get(known, hook) is not hook:
        raise ConfigurationError(f"two hooks are named `{known}`; give one of them another name")
    _waiting[known] = hook
    return hook


def signed_call(url: str, secret: str, *, timeout: float = LONGEST_CALL) -> Hook:
    """A hook that POSTs its JSON to `url`, signed: `X-Agentrun-Signature: sha256=<HMAC of the body>`.

    Any answer but 2xx counts as failed and is tried again.
    """
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(f"a signed call needs an http(s) URL, not {url[:20]!r}")

    def call(data: Mapping[str, Any]) -> None:
        body = json.dumps(dict(data), sort_keys=True).encode()
        signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/json", "X-Agentrun-Signature": f"sha256={signature}"}
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - checked above
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            answer.read(1)

    call.__qualname__ = f"signed_call({hashlib.sha256(url.encode()).hexdigest()[:12]})"
    return call


def notify(database: Database, namespace: str, *, limit: int) -> int:
    """Write and deliver what is due for this process's hooks; how many were delivered. Never raises for a hook."""
    if not _waiting:
        return 0
    scope = {"namespace": namespace, "hooks": sorted(_waiting), "limit": limit}
    database.rows(notices.ANNOUNCE, scope)
    database.rows(notices.REMINDED, scope | {"unused": NEVER})
    taken = database.rows(notices.TAKE, scope | {"again_in": 2 * LONGEST_CALL})
    return sum(_delivered(database, row) for row in taken)


def _delivered(database: Database, row: Mapping[str, Any]) -> bool:
    try:
        _waiting[row["hook"]](decode(row["data"]) | {"round": row["round"]})
    except Exception as error:
        pause = min(FIRST_PAUSE * 2 ** (row["attempts"] - 1), LONGEST_PAUSE)
        given_up = row["attempts"] >= MOST_ATTEMPTS
        log.warning("hook %s raised %s%s", row["hook"], type(error).__name__, "; it is given up" if given_up else "")
        params = {"id": row["id"], "last_error": type(error).__name__, "again_in": NEVER if given_up else pause}
        database.rows(notices.FAILED, params)
        return False
    database.rows(notices.DELIVERED, {"id": row["id"]})
    return True
