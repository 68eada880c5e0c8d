"""Cases of the purge: only what ended long ago goes, whole, and nobody that lives on misses it."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from agentrun.core.words import Reason, Status
from tests.guards.scene import Scene, case

FINAL = ["cancelled", "completed", "failed"]
USUAL: dict[str, Any] = {"older_than": 3600.0, "statuses": FINAL, "kind": None, "dead": False}
RICH = """
INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, finished_at)
    VALUES (%(id)s, '#1', 'step', 'look', 'read_only', 'completed', 1, now());
INSERT INTO agentrun.waits (id, run_id, step_key, namespace, kind, status, resolved_at)
    VALUES (gen_random_uuid(), %(id)s, '#2', %(namespace)s, 'timer', 'resolved', now());
INSERT INTO agentrun.signals (run_id, name, taken_by_step) VALUES (%(id)s, 'go', '#3');
INSERT INTO agentrun.episodes (run_id, namespace, shape, since, facts, closed_at)
    VALUES (%(id)s, %(namespace)s, 'no_progress', now(), '{}', now());
INSERT INTO agentrun.notices (namespace, run_id, occasion, subject, hook, due_at)
    VALUES (%(namespace)s, %(id)s, 'dead', %(id)s::text, 'page', now());
INSERT INTO agentrun.spend (namespace, owner, day, run_id, model_calls)
    SELECT %(namespace)s, 'ada', day, %(id)s, 1
    FROM unnest(array[date_trunc('month', now() AT TIME ZONE 'UTC'), '2020-01-01']) AS day
"""


NOBODY = UUID(int=0)


def of_the_gone(s: Scene) -> list[dict[str, Any]]:
    """What runs of the case's namespace spent that are gone."""
    return [row for row in s.stored(NOBODY)[5] if row["namespace"] == s.rows.namespace]


THIS_MONTH = "date_trunc('month', now() AT TIME ZONE 'UTC')"


def spent(s: Scene, run_id: UUID, *, long_ago: bool) -> None:
    """A run spent something this month, or long ago."""
    entry = "INSERT INTO agentrun.spend (namespace, owner, day, run_id) VALUES (%s, 'ada', {}, %s)"
    with s.database.connection() as connection:
        day = "'2020-01-01'" if long_ago else THIS_MONTH
        connection.execute(entry.format(day), [s.rows.namespace, run_id])  # type: ignore[arg-type]


def rich(s: Scene, status: Status = Status.COMPLETED, reason: Reason | None = None, **columns: Any) -> UUID:
    """A run that ended just now, with something in every table."""
    run_id = s.rows.final(status, reason, **columns)
    with s.database.transaction() as connection:
        for statement in RICH.split(";"):
            connection.execute(statement, {"id": run_id, "namespace": s.rows.namespace})  # type: ignore[arg-type]
    return run_id


def long_over(s: Scene, run_id: UUID) -> UUID:
    """The run ended two hours ago."""
    s.set("runs", run_id, created_at="=now() - interval '3 hours'", finished_at="=now() - interval '2 hours'")
    return run_id


def old(s: Scene, status: Status = Status.COMPLETED, reason: Reason | None = None, **columns: Any) -> None:
    """The run ended two hours ago, and its twin just now."""
    s.given = dict(USUAL)
    s.make(lambda: rich(s, status, reason, **columns))
    long_over(s, s.run)


@case("purge")
def what_ended_long_ago_goes_whole_but_for_what_this_month_is_counted_by(s: Scene) -> None:
    old(s)
    s.set("runs", s.run, finished_at="=now()")
    s.refused()
    long_over(s, s.run)
    s.refused(older_than=86_400.0)
    s.refused(namespace="another")
    (told,) = s.lands()
    assert (told["purged"], told["steps"], told["events"]) == (1, 1, 2)
    assert [len(rows) for rows in s.stored(s.run)] == [0] * 8
    assert [(row["owner"], row["model_calls"]) for row in of_the_gone(s)] == [("ada", 1)]
    assert of_the_gone(s)[0]["day"].year > 2020


@case("purge")
def what_runs_that_are_gone_spent_this_month_is_added_up(s: Scene) -> None:
    for count in (1, 2):
        old(s)
        s.lands()
        assert [row["model_calls"] for row in of_the_gone(s)] == [count]


@case("forget_spend")
def what_runs_that_are_gone_spent_is_forgotten_when_no_budget_counts_it(s: Scene) -> None:
    s.run = NOBODY
    s.others.append(uuid4())
    spent(s, s.others[0], long_ago=True)
    spent(s, s.run, long_ago=False)
    s.refused()
    spent(s, s.run, long_ago=True)
    s.refused(namespace="another")
    s.lands()
    assert [row["day"].year > 2020 for row in of_the_gone(s)] == [True]


@case("purge")
def only_the_runs_that_are_asked_for_go(s: Scene) -> None:
    old(s)
    s.refused(statuses=["cancelled", "failed"])
    s.refused(kind="another")
    s.lands(kind="test", statuses=["completed"])


@case("purge")
def what_the_cursor_has_passed_is_not_looked_at_again(s: Scene) -> None:
    old(s)
    s.refused(after_at=s.row()["created_at"], after_id=s.run)
    (told,) = s.do(older_than=0.0, limit=1)
    assert (told["looked"], told["purged"], told["after_id"]) == (1, 1, s.run)


@case("purge")
def a_dead_letter_goes_only_when_it_is_asked_for(s: Scene) -> None:
    for reason in (Reason.NOT_RETRYABLE, Reason.RETRIES_EXHAUSTED):
        old(s, Status.FAILED, reason)
        s.refused()
    s.lands(dead=True)
    old(s, Status.FAILED, Reason.DEADLINE_EXCEEDED)
    s.lands()


def in_flight(s: Scene, run_id: UUID, key: str, **columns: Any) -> None:
    """A write of an ended run that has not said how it ended; by `columns` another sort of step."""
    step = {"status": "started", "effect": "non_idempotent_write", "reconcilable": False, "lease_expires_at": None}
    step |= {"finished_at": None} | columns
    with s.database.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.steps (run_id, key, kind, name, epoch, started_seq, effect, status, reconcilable,"
            " lease_expires_at, finished_at) VALUES (%(id)s, %(key)s, 'write', 'pay', 1, 1, %(effect)s, %(status)s,"
            " %(reconcilable)s, %(lease_expires_at)s, %(finished_at)s)",
            step | {"id": run_id, "key": key},
        )


@case("purge")
def an_interrupted_write_holds_its_run_until_somebody_resolves_it_or_asks_for_it(s: Scene) -> None:
    old(s, Status.CANCELLED)
    for run_id in (s.run, *s.others):
        in_flight(s, run_id, "w")
    s.refused()
    s.lands(dead=True)


@case("purge")
def no_other_step_holds_a_run(s: Scene) -> None:
    old(s, Status.CANCELLED)
    in_flight(s, s.others[0], "w")
    in_flight(s, s.run, "ended", status="completed", finished_at="now")
    in_flight(s, s.run, "may be repeated", effect="idempotent_write")
    in_flight(s, s.run, "can be asked", reconcilable=True)
    s.lands()
    old(s, Status.CANCELLED)
    in_flight(s, s.run, "left by its worker", lease_expires_at="now")
    s.refused()


@case("purge")
def a_write_that_its_taker_may_still_answer_holds_its_run_whoever_asks(s: Scene) -> None:
    old(s, Status.CANCELLED)
    for run_id in (s.run, *s.others):
        in_flight(s, run_id, "done elsewhere", lease_expires_at="infinity")
    s.refused()
    s.refused(dead=True)
    old(s, Status.CANCELLED)
    in_flight(s, s.run, "ended", status="completed", finished_at="now", lease_expires_at="infinity")
    in_flight(s, s.run, "may be repeated", effect="idempotent_write", lease_expires_at="infinity")
    in_flight(s, s.run, "can be asked", reconcilable=True, lease_expires_at="infinity")
    in_flight(s, s.run, "left by its worker", lease_expires_at="now")
    s.lands(dead=True)


@case("purge")
def a_child_goes_after_a_parent_that_may_ask_for_it(s: Scene) -> None:
    for status in set(Status) - {Status.COMPLETED, Status.CANCELLED}:
        old(s)
        s.set("runs", s.run, parent_id=s.rows.run(status))
        s.refused()
    for status in (Status.COMPLETED, Status.CANCELLED):
        old(s)
        s.set("runs", s.run, parent_id=s.rows.run(status))
        s.lands()
    old(s)
    s.set("runs", s.run, parent_id=uuid4())
    s.lands()


@case("purge")
def a_parent_goes_after_its_children_have_ended(s: Scene) -> None:
    for status in set(Status) - {Status.COMPLETED, Status.CANCELLED, Status.FAILED}:
        old(s)
        s.set("runs", s.rows.run(status), parent_id=s.run)
        s.refused()
    old(s)
    s.rows.queued()
    s.set("runs", s.rows.final(Status.COMPLETED), parent_id=s.run)
    s.lands()


@case("purge")
def what_an_open_wait_is_for_stays(s: Scene) -> None:
    old(s)
    waiting = s.rows.waiting()
    s.rows.wait(waiting, kind="child", child_id=s.others[0])
    wait_id = s.rows.wait(waiting, "other", kind="child", child_id=s.run)
    s.refused()
    with s.database.connection() as connection:
        resolved = "UPDATE agentrun.waits SET status = 'resolved', resolved_at = now() WHERE id = %s"
        connection.execute(resolved, [wait_id])
    s.lands()


# ---- scheduled retention: its rows are in `sweeps`


def marks(s: Scene) -> dict[tuple[str, str], Any]:
    with s.database.connection() as connection:
        rows = connection.execute(
            "SELECT namespace, name, found FROM agentrun.sweeps WHERE namespace LIKE %s", [f"{s.rows.namespace}%"]
        ).fetchall()
    return {(row["namespace"].removeprefix(s.rows.namespace), row["name"]): row["found"] for row in rows}


def travel(s: Scene, seconds: int) -> None:
    with s.database.connection() as connection:
        connection.execute(
            "UPDATE agentrun.sweeps SET swept_at = swept_at - make_interval(secs => %s) WHERE namespace = %s",
            [seconds, s.rows.namespace],
        )


@case("claim_retention")
def a_batch_is_one_process_s_and_rests_once_everything_was_looked_at(s: Scene) -> None:
    pauses = {"every": 10.0, "rest": 100.0}
    assert s.do(**pauses)
    assert s.do(**pauses) == []
    travel(s, 50)
    assert s.do(**pauses) == []
    with s.database.connection() as connection:
        found = '{"after": ["2026-01-01", "x"]}'
        connection.execute("UPDATE agentrun.sweeps SET found = %s WHERE namespace = %s", [found, s.rows.namespace])
    assert s.do(**pauses)
    assert s.do(**pauses) == []


@case("mark_retention")
def a_place_is_kept_for_its_own_namespace_and_pass(s: Scene) -> None:
    with s.database.connection() as connection:
        for namespace, name in (("", "retention"), ("", "sweep"), ("2", "retention")):
            connection.execute(
                "INSERT INTO agentrun.sweeps (namespace, name, swept_at) VALUES (%s, %s, now())",
                [s.rows.namespace + namespace, name],
            )
    assert s.do(found='"here"')
    assert marks(s) == {("", "retention"): '"here"', ("", "sweep"): None, ("2", "retention"): None}
