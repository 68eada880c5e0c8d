"""What is looked at during and after a chaos run, past agentrun: SQL on a new connection each time."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

LONGEST_WITHOUT_LEASE = 15.0
"""Seconds that a running row may go without a live lease: the sweeps' interval, a restart, a busy machine."""

LONGEST_IN_A_TRANSACTION = 5.0
"""An event's time is when its transaction began. Two workers that end steps of one run at once wait for its row in
either order, and one that is stopped meanwhile waits longer: their numbers say the order, the times nearly."""


class Eyes:
    """Reads; decides nothing."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, statement: str, params: Any = None) -> list[dict[str, Any]]:
        with psycopg.connect(self._url, autocommit=True, row_factory=dict_row, connect_timeout=5) as connection:
            cursor = connection.execute(statement, params)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def statuses(self) -> Counter[str]:
        rows = self("SELECT status, count(*) AS runs FROM agentrun.runs GROUP BY 1")
        return Counter({row["status"]: row["runs"] for row in rows})

    def effects(self) -> int:
        return self("SELECT count(*) AS effects FROM side_effects")[0]["effects"]

    def in_a_write(self) -> list[tuple[int, str]]:
        """The processes that are inside a write now, and whose: of a run that they execute, or one done for another."""
        rows = self(
            "SELECT DISTINCT r.claimed_by AS owner, 'inside a write' AS where FROM agentrun.runs r"
            " JOIN agentrun.steps s ON s.run_id = r.id AND s.status = 'started' AND s.effect <> 'read_only'"
            " WHERE r.status = 'running' AND s.kind <> 'remote'"
            " UNION ALL SELECT by, 'inside a remote step' FROM agentrun.steps"
            " WHERE kind = 'remote' AND status = 'started' AND lease_expires_at > now()"
        )
        return [(int(row["owner"].rsplit(":", 1)[1]), row["where"]) for row in rows]

    def happened(self, run_id: UUID, write: int) -> bool:
        """Whether an effect is there: what an operator finds out before resolving."""
        return bool(self("SELECT 1 AS there FROM side_effects WHERE run_id = %s AND write = %s", [run_id, write]))

    def given_up(self, run_id: UUID) -> set[str]:
        """The steps of a run that nobody works on, and of which nobody knows how they ended."""
        started = "SELECT key FROM agentrun.steps WHERE run_id = %s AND status = 'started' AND lease_expires_at IS NULL"
        return {row["key"] for row in self(started, [run_id])}

    def not_exactly_once(self, writes: int) -> list[dict[str, Any]]:
        """Effects that are missing, or there more than once."""
        return self(
            "SELECT r.id AS run_id, w.n AS write, count(e.*) AS times FROM agentrun.runs r"
            " CROSS JOIN generate_series(0, %s - 1) AS w(n)"
            " LEFT JOIN side_effects e ON e.run_id = r.id AND e.write = w.n GROUP BY 1, 2 HAVING count(e.*) <> 1",
            [writes],
        )

    def half_states(self) -> list[dict[str, Any]]:
        """What must not be seen at any moment."""
        return self(
            "SELECT id, 'runs without a live lease' AS what FROM agentrun.runs"
            " WHERE status = 'running' AND lease_expires_at < now() - %s * interval '1 s'"
            " UNION ALL SELECT r.id, 'completed with a step in flight' FROM agentrun.runs r"
            " JOIN agentrun.steps s ON s.run_id = r.id WHERE r.status = 'completed' AND s.status = 'started'"
            " UNION ALL SELECT r.id, 'completed with a step that is not done' FROM agentrun.runs r"
            " JOIN agentrun.steps s ON s.run_id = r.id WHERE r.status = 'completed' AND s.status <> 'completed'"
            " UNION ALL SELECT id, 'parked, and waits for nothing' FROM agentrun.runs r WHERE status = 'waiting'"
            " AND NOT EXISTS (SELECT FROM agentrun.waits w WHERE w.run_id = r.id AND w.status = 'open')"
            " UNION ALL SELECT r.id, 'waits for a step that is nobody''s' FROM agentrun.runs r"
            " JOIN agentrun.waits w ON w.run_id = r.id AND w.status = 'open'"
            " LEFT JOIN agentrun.steps s ON s.run_id = r.id AND s.key = w.step_key"
            " AND (s.status = 'offered' OR s.status = 'started' AND s.lease_expires_at > now() - %s * interval '1 s')"
            " WHERE r.status IN ('running', 'waiting') AND s.run_id IS NULL",
            [LONGEST_WITHOUT_LEASE] * 2,
        )

    def out_of_order(self) -> list[dict[str, Any]]:
        """Events whose numbers, times or epochs do not agree; claims that draw no new epoch; settling twice over."""
        return self(
            "SELECT run_id, seq, type, format('at %%s in epoch %%s comes after one at %%s in epoch %%s',"
            " at, story.epoch, before, epoch_before) AS what FROM ("
            " SELECT *, lag(at) OVER w AS before, lag(epoch) OVER w AS epoch_before FROM agentrun.moves"
            " WINDOW w AS (PARTITION BY run_id ORDER BY seq)) AS story"
            " JOIN agentrun.runs r ON r.id = run_id"
            " WHERE at < before - CASE WHEN r.kind LIKE 'chaos-remote%%' THEN %s ELSE 0 END * interval '1 s'"
            " OR story.epoch < epoch_before OR (type = 'claimed' AND story.epoch <= epoch_before)"
            " UNION ALL SELECT run_id, seq, key, 'ended before it started' FROM agentrun.steps WHERE seq < started_seq"
            " UNION ALL SELECT id, 0, status, 'did not settle last' FROM agentrun.runs WHERE status = 'completed' AND"
            " (SELECT type FROM agentrun.moves WHERE run_id = id ORDER BY seq DESC LIMIT 1) <> 'settled'",
            [LONGEST_IN_A_TRANSACTION],
        )

    def moves(self) -> Counter[str]:
        rows = self("SELECT type, count(*) AS times FROM agentrun.moves GROUP BY 1")
        return Counter({row["type"]: row["times"] for row in rows})
