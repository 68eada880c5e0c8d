"""Parameters of the statements of waits, for the tests that execute them one by one."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from agentrun.core.words import WaitKind
from agentrun.runtime.waits import wait_id
from agentrun.testing.rows import Rows


def asked(run_id: UUID, key: str = "w", **params: Any) -> dict[str, Any]:
    """A wait for the signal `go` under that key, and an answer to it."""
    blank = dict.fromkeys(
        ("role", "due_at", "due_in", "remind_in", "on_expiry", "token_digest", "comment", "asks_digest", "roles")
    )
    usual = {"wait_id": wait_id(run_id, key), "key": key, "kind": str(WaitKind.SIGNAL), "name": "go", "asks": "{}"}
    return blank | usual | {"resolution": "1", "payload": "1", "expires_in": None} | params


def child_of(rows: Rows, run_id: UUID, key: str = "w") -> dict[str, Any]:
    """A child and its parent's wait under that key."""
    child_id = rows.queued()
    with rows.database.connection() as connection:
        connection.execute("DELETE FROM agentrun.runs WHERE id = %s", [child_id])
    row = {
        "child_id": child_id, "child_kind": "test", "child_request": json.dumps(None), "child_queue": "agentrun",
        "child_priority": 0, "child_deadline": None, "child_lease_seconds": None, "child_max_requeues": None,
        "child_tags": [], "child_attributes": "{}", "child_owner": None,
    }  # fmt: skip
    return asked(run_id, key, kind=str(WaitKind.CHILD), name="test") | row


def waits_of(rows: Rows, run_id: UUID) -> dict[str, dict[str, Any]]:
    """The stored waits of a run by key."""
    with rows.database.connection() as connection:
        found = connection.execute("SELECT * FROM agentrun.waits WHERE run_id = %s", [run_id]).fetchall()
    return {row["step_key"]: row for row in found}


def everything(rows: Rows, run_id: UUID) -> Any:
    """All that is stored of a run, its waits and signals included."""
    with rows.database.connection() as connection:
        signals = connection.execute(
            "SELECT * FROM agentrun.signals WHERE run_id = %s ORDER BY id", [run_id]
        ).fetchall()
    return rows.stored(run_id), waits_of(rows, run_id), signals
