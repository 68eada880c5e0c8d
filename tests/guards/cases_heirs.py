"""Cases of what a killed process leaves to the one that has its stable id after it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from psycopg import sql

from agentrun.core.words import StepKind
from agentrun.store import heirs
from tests.guards.scene import Scene, case

INHERITS = ("inherit_runs", "inherit_steps")
POD = "pod-0"


def process(s: Scene, *, namespace: str | None = None, stable_id: str | None = POD, seen: str = "now()") -> UUID:
    """A process that was seen just now, and whose lock nobody holds."""
    process_id = uuid4()
    with s.database.connection() as connection:
        connection.execute(
            sql.SQL(
                "INSERT INTO agentrun.processes (id, namespace, name, stable_id, seen_at) VALUES (%s, %s, %s, %s, {})"
            ).format(sql.SQL(seen)),  # pyright: ignore[reportArgumentType]
            [process_id, namespace or s.rows.namespace, f"worker:{POD}:1:{process_id.hex}", stable_id],
        )
    return process_id


def held_by(s: Scene, process_id: UUID, **columns: Any) -> UUID:
    """A run that a segment of the process holds, or one whose remote step it has taken."""
    name = f"interactive:{POD}:1:{process_id.hex}"
    run_id = s.rows.fenced("w")
    if s.statement.name == "inherit_runs":
        s.set("runs", run_id, claimed_by=name, **columns)
    else:
        taken = {"kind": str(StepKind.REMOTE), "queue": "q", "lease_expires_at": "=now() + interval '1 hour'"}
        s.set("steps", run_id, by=name, **(taken | columns))
    return run_id


def inherits(s: Scene, **params: Any) -> list[dict[str, Any]]:
    return s.do(**{"stable_id": POD, "process_id": uuid4()} | params)


def found(rows: list[dict[str, Any]]) -> set[UUID]:
    return {row.get("run_id") or row["id"] for row in rows}


@contextmanager
def alive(s: Scene, process_id: UUID) -> Generator[None]:
    """Its heartbeat's connection is there."""
    with s.database.transaction() as connection:
        connection.execute(heirs.HERE.sql, {"process_name": str(process_id)})
        yield
        connection.execute("SELECT pg_advisory_unlock_all()")


@case("process_here")
def a_lock_is_held_as_long_as_its_connection_and_does_not_keep_out_a_second_one(s: Scene) -> None:
    free = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 7201955)) AS free"
    me = process(s)
    with s.database.connection() as connection:
        with alive(s, me), alive(s, me):
            assert connection.execute(free, [str(me)]).fetchall() == [{"free": False}]
        assert connection.execute(free, [str(me)]).fetchall() == [{"free": True}]


@case(*INHERITS)
def only_what_the_dead_held_is_freed(s: Scene) -> None:
    dead, lives = process(s), process(s)
    mine, theirs = held_by(s, dead), held_by(s, lives)
    unheld = s.rows.fenced("w")
    s.rows.fence(mine, "x")
    another_step = s.step_of(mine, "x")
    with alive(s, lives):
        before = [s.stored(each) for each in (theirs, unheld)]
        assert found(inherits(s)) == {mine}
        assert s.step_of(mine, "x") == another_step
        assert found(inherits(s)) == set(), "once"
        assert [s.stored(each) for each in (theirs, unheld)] == before


@case(*INHERITS)
def a_process_of_another_id_or_namespace_is_nobodys_predecessor_and_no_process_its_own(s: Scene) -> None:
    me = process(s)
    held_by(s, me)
    held_by(s, process(s, stable_id="pod-1"))
    held_by(s, process(s, stable_id=None))
    held_by(s, process(s, namespace="another"))
    held_by(s, process(s, seen="pg_postmaster_start_time() - interval '1 s'"))
    assert inherits(s, process_id=me) == []


@case(*INHERITS)
def what_is_over_already_is_left_to_the_sweep(s: Scene) -> None:
    dead = process(s)
    held_by(s, dead, lease_expires_at="=now() - interval '1 hour'")
    if s.statement.name == "inherit_steps":
        held_by(s, dead, kind="write")
        held_by(s, dead, status="completed", seq=1, finished_at="=now()")
    else:
        s.set("runs", held_by(s, dead), claimed_by="worker:pod-0:1")
    assert inherits(s) == []


@case("inherit_runs")
def a_run_of_another_namespace_is_not_freed(s: Scene) -> None:
    run_id = held_by(s, process(s))
    s.set("runs", run_id, namespace="another")
    assert inherits(s) == []
