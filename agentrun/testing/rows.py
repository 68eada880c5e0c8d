"""Rows by life stage: legal ones only, which the CHECK constraints see to. For tests of statements and of the sweep.

Everything that can be reached by a move is reached by that move; only births and parked runs are inserted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import uuid_utils.compat as uuids
from psycopg import sql

from agentrun.core.words import Effect, Reason, Status, StepKind, StepStatus
from agentrun.store import claims, journal, transitions
from agentrun.store.database import Database
from agentrun.store.reads import RUN_BY_ID

OWNER = "worker:test:1"
LEASE = 30.0
KIND = "test"


class Rows:
    """Makes runs in one namespace of one database, and reads everything that is stored of them."""

    def __init__(self, database: Database, *, namespace: str = "default") -> None:
        self.database, self.namespace = database, namespace

    def run(self, status: Status, **columns: Any) -> UUID:
        """A run in that status; running and final ones were claimed once, so their epoch is 1."""
        match status:
            case Status.QUEUED:
                return self.queued(**columns)
            case Status.RUNNING:
                return self.running(**columns)
            case Status.WAITING:
                return self.waiting(**columns)
            case Status.COMPLETED | Status.FAILED | Status.CANCELLED:
                return self.final(status, **columns)

    def queued(self, **columns: Any) -> UUID:
        """Enqueued and due."""
        return self._insert({"status": Status.QUEUED, "due_at": sql.SQL("now()")} | columns)

    def running(self, **columns: Any) -> UUID:
        """Claimed under epoch 1 by OWNER."""
        run_id = self.queued(**columns)
        assert self.do(claims.CLAIM_RUN, run_id, kinds=[columns.get("kind", KIND)])
        return run_id

    def waiting(self, **columns: Any) -> UUID:
        """Parked under epoch 1."""
        return self._insert({"status": Status.WAITING, "waiting_on": "signal", "epoch": 1} | columns)

    def final(self, status: Status, reason: Reason | None = None, **columns: Any) -> UUID:
        """Claimed and settled."""
        run_id = self.running(**columns)
        reason = reason or (Reason.NOT_RETRYABLE if status is Status.FAILED else Reason(status))
        assert self.do(transitions.SETTLE[status], run_id, reason=str(reason), result='"done"', error=None)
        return run_id

    def wait(self, run_id: UUID, key: str = "w", **columns: Any) -> UUID:
        """An open wait of a run, for the signal `go`."""
        values: dict[str, Any] = {"id": uuids.uuid7(), "run_id": run_id, "step_key": key, "kind": "signal"}
        values |= {"namespace": self.namespace, "name": "go", "asks": "{}"} | columns
        names = sql.SQL(", ").join(map(sql.Identifier, values))
        with self.database.connection() as connection:
            connection.execute(
                sql.SQL("INSERT INTO agentrun.waits ({}) VALUES ({})").format(
                    names, sql.SQL(", ").join(sql.Placeholder() * len(values))
                ),
                list(values.values()),
            )
        return values["id"]

    def expire_lease(self, run_id: UUID) -> None:
        """Travel: the lease of a running run is over."""
        self._long_ago(run_id, "lease_expires_at")

    def pass_deadline(self, run_id: UUID) -> None:
        """Travel: the deadline is over."""
        self._long_ago(run_id, "deadline_at")

    def make_due(self, run_id: UUID) -> None:
        """Travel: a queued run's delay is over."""
        self._long_ago(run_id, "due_at")

    def do(self, statement: Any, run_id: UUID, **params: Any) -> list[dict[str, Any]]:
        """Execute a statement for a run, with every parameter that it needs; returns its rows."""
        return self.database.rows(statement, self.params(run_id, **params))

    def params(self, run_id: UUID, **params: Any) -> dict[str, Any]:
        """Parameters with which every statement on a run under epoch 1 lands, unless its status forbids."""
        usual: dict[str, Any] = {
            "run_id": run_id,
            "run_ids": [run_id],
            "namespace": self.namespace,
            "kinds": [KIND],
            "options": None,
            "epoch": 1,
            "lease": LEASE,
            "by": OWNER,
            "data": "{}",
            "redo": None,
            "reason": str(Reason.NOT_RETRYABLE),
            "result": None,
            "error": None,
            "delay": 0.0,
            "resolutions": 0,
            "waiting_on": "signal:go",
            "request": "{}",
            "next_id": uuids.uuid7(),
        }
        given = usual | params
        return given | {"epochs": [given["epoch"]] * len(given["run_ids"])}

    def step(self, key: str, **params: Any) -> dict[str, Any]:
        """Parameters of one step, for the journal's statements."""
        usual: dict[str, Any] = {
            "key": key,
            "kind": str(StepKind.STEP),
            "name": "look",
            "effect": str(Effect.READ_ONLY),
            "attempt": 1,
            "args_digest": None,
            "took": None,
            "args": None,
            "status": str(StepStatus.COMPLETED),
            "result": "1",
            "error": None,
            "model": None,
            "input_tokens": None,
            "output_tokens": None,
            "cost": None,
            "idempotency_key": f"key of {key}",
            "reconcilable": False,
        }
        return usual | params

    def fenced(self, key: str, effect: Effect = Effect.NON_IDEMPOTENT_WRITE, **columns: Any) -> UUID:
        """A running run with a write in flight."""
        run_id = self.running(**columns)
        self.fence(run_id, key, effect)
        return run_id

    def fence(self, run_id: UUID, key: str, effect: Effect = Effect.NON_IDEMPOTENT_WRITE, **params: Any) -> None:
        """Put a write of a running run in flight."""
        said = self.step(key, kind=str(StepKind.WRITE), name="pay", effect=str(effect)) | params
        assert self.do(journal.FENCE, run_id, **said)

    def stored(self, run_id: UUID) -> Mapping[str, list[dict[str, Any]]]:
        """Everything that is stored of a run: its row, its moves, its steps."""
        wanted = {"runs": ("id", "id"), "moves": ("run_id", "seq"), "steps": ("run_id", "key")}
        with self.database.transaction() as connection:
            return {
                table: connection.execute(
                    sql.SQL("SELECT * FROM agentrun.{} WHERE {} = %s ORDER BY {}").format(
                        *map(sql.Identifier, (table, by, order))
                    ),
                    [run_id],
                ).fetchall()
                for table, (by, order) in wanted.items()
            }

    def row(self, run_id: UUID) -> dict[str, Any]:
        """The run's row."""
        return self.stored(run_id)["runs"][0]

    def pending_effect(self, run_id: UUID) -> str | None:
        """What the run has in flight, as people are told."""
        return self.do(RUN_BY_ID, run_id)[0]["pending_effect"]

    def _insert(self, columns: Mapping[str, Any]) -> UUID:
        run_id = uuids.uuid7()
        usual = {"kind": KIND, "namespace": self.namespace, "queue": "agentrun", "request": json.dumps(None)}
        values = {"id": run_id, **usual, **columns}
        raw = {name: value for name, value in values.items() if isinstance(value, sql.SQL)}
        statement = sql.SQL("INSERT INTO agentrun.runs ({}) VALUES ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(raw.get(name, sql.Placeholder(name)) for name in values),
        )
        with self.database.connection() as connection:
            connection.execute(statement, {name: value for name, value in values.items() if name not in raw})
        return run_id

    def _long_ago(self, run_id: UUID, column: str) -> None:
        travel = sql.SQL("UPDATE agentrun.runs SET {} = now() - interval '1 hour' WHERE id = %s")
        with self.database.connection() as connection:
            connection.execute(travel.format(sql.Identifier(column)), [run_id])
