"""Drives the store's statements over one plain connection, and looks at everything that is stored of a run."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import uuid_utils.compat as uuids

from agentrun.core.words import Effect, StepKind, StepStatus
from agentrun.store.connect import connect
from agentrun.store.sql import Statement
from agentrun.testing.rows import KIND
from tests.model.shadow import COUNTERS

_LOOK = f"""
SELECT status, epoch, reason,
       (SELECT max(effect) FROM agentrun.steps WHERE run_id = runs.id AND status = 'started' AND effect <> 'read_only')
           AS pending_effect, {", ".join(COUNTERS)},
       cancel_requested_at IS NOT NULL AS cancel_asked,
       lease_expires_at IS NOT NULL AND claimed_by IS NOT NULL AS leased, finished_at IS NOT NULL AS finished
FROM agentrun.runs WHERE id = %s
"""


class Driver:
    """One namespace of one database, for one example."""

    def __init__(self, url: str) -> None:
        self.connection = connect(url, name="agentrun model test")
        self.namespace = uuid4().hex

    def close(self) -> None:
        self.connection.close()

    def do(self, statement: Statement, run_id: UUID | None, **given: Any) -> list[dict[str, Any]]:
        """The statement's rows; every parameter that is not given is what lets it land, or NULL."""
        usual = {
            "run_id": run_id, "namespace": self.namespace, "kinds": [KIND], "kind": KIND, "queue": "agentrun",
            "lease": 30.0, "by": "model", "data": "{}", "priority": 0, "tags": [], "attributes": "{}", "limit": 100,
            "delay": 0.0, "name": "pay", "attempt": 1, "reconcilable": False, "request": "null",
        }  # fmt: skip
        params = dict.fromkeys(statement.names) | usual | given
        return self.connection.execute(statement.sql, params).fetchall()

    def do_step(self, statement: Statement, run_id: UUID, epoch: int, key: str, **given: Any) -> list[dict[str, Any]]:
        usual = {"kind": str(StepKind.WRITE), "effect": str(Effect.READ_ONLY), "status": str(StepStatus.COMPLETED)}
        said = usual | {"result": "1", "key": key, "epoch": epoch, "idempotency_key": key}
        return self.do(statement, run_id, **said | given)

    def new_id(self) -> UUID:
        return uuids.uuid7()

    def long_ago(self, run_id: UUID, column: str) -> None:
        """Travel in time: what the column says has been over for an hour."""
        self.connection.execute(
            f"UPDATE agentrun.runs SET {column} = now() - interval '1 hour' WHERE id = %s",  # type: ignore[arg-type]
            [run_id],
        )

    def look(self, run_id: UUID) -> dict[str, Any]:
        """The run's row, as far as it is compared."""
        row = self.connection.execute(_LOOK, [run_id]).fetchone()
        assert row is not None
        return row

    def everything(self, run_id: UUID) -> list[Any]:
        """All that is stored of a run, to see that nothing changed."""
        return [
            self.connection.execute(
                f"SELECT * FROM agentrun.{table} WHERE {key} = %s ORDER BY {order}", [run_id]
            ).fetchall()  # type: ignore[arg-type]
            for table, key, order in (("runs", "id", "id"), ("moves", "run_id", "seq"), ("steps", "run_id", "key"))
        ]

    def steps(self, run_id: UUID) -> dict[str, tuple[str, str, bool]]:
        rows = self.connection.execute(
            "SELECT key, status, effect, reconcilable FROM agentrun.steps WHERE run_id = %s", [run_id]
        ).fetchall()
        return {row["key"]: (row["status"], row["effect"], row["reconcilable"]) for row in rows}

    def told(self, run_id: UUID) -> list[str]:
        """The types of the run's moves, by number; numbers and times must agree."""
        rows = self.connection.execute(
            "SELECT seq, type, at, epoch FROM agentrun.moves WHERE run_id = %s ORDER BY seq", [run_id]
        ).fetchall()
        assert rows == sorted(rows, key=lambda row: (row["at"], row["epoch"], row["seq"]))
        return [row["type"] for row in rows]

    def numbers(self, run_id: UUID) -> list[tuple[int | None, int | None]]:
        rows = self.connection.execute(
            "SELECT started_seq, seq FROM agentrun.steps WHERE run_id = %s AND status IN ('completed', 'failed')",
            [run_id],
        ).fetchall()
        return [(row["started_seq"], row["seq"]) for row in rows]
