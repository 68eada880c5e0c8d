"""Cases of the moves from outside: cancel, deadline, dispatch, redrive, resolve; and of what every final move does."""

from __future__ import annotations

from uuid import UUID

from agentrun.core.words import Effect, Status
from tests.guards.cases_moves import REAPS, SETTLES, ready
from tests.guards.cases_waits import with_signals
from tests.guards.scene import Scene, case

OUTSIDE = ("cancel", "expire", "dispatch_failed")
FINAL = (*SETTLES, "reap_settle_failed", "reap_settle_cancelled", *OUTSIDE)
UNSTARTED = "child_not_started"
RESOLVES = ("resolve_completed", "resolve_not_applied")


def before_its_end(s: Scene) -> UUID:
    """A run that the statement ends."""
    if s.statement.name in SETTLES or s.statement.name in REAPS:
        return ready(s)
    run_id = s.rows.queued()
    s.rows.pass_deadline(run_id)
    return run_id


@case(*OUTSIDE)
def what_runs_is_left_to_its_owner(s: Scene) -> None:
    s.make(s.rows.running)
    s.rows.pass_deadline(s.run)
    s.set("runs", s.run, epoch=0)
    s.refused()


@case(*OUTSIDE, "ask_cancel", "redrive", *RESOLVES)
def nobody_reaches_into_another_namespace(s: Scene) -> None:
    match s.statement.name:
        case "ask_cancel":
            s.make(s.rows.running)
        case "redrive":
            s.make(lambda: s.rows.final(Status.FAILED))
        case "resolve_completed" | "resolve_not_applied":
            s.make(lambda: interrupted(s))
        case _:
            s.make(lambda: before_its_end(s))
    s.refused(namespace="another")
    s.lands()


@case("expire")
def a_deadline_to_come_ends_nothing(s: Scene) -> None:
    s.make(s.rows.queued)
    s.set("runs", s.run, deadline_at="=now() + interval '1 hour'")
    s.refused()


@case("dispatch_failed")
def what_was_ever_claimed_or_waits_is_not_undone(s: Scene) -> None:
    s.make(s.rows.queued)
    s.set("runs", s.run, epoch=1)
    s.refused()
    s.set("runs", s.run, epoch=0, status="waiting", waiting_on="signal")
    s.refused()


@case("ask_cancel")
def only_a_running_run_is_asked_and_once(s: Scene) -> None:
    s.make(s.rows.running)
    s.lands()
    s.refused()
    s.run = s.rows.queued()
    s.refused()


@case("redrive")
def only_what_has_failed_and_keeps_its_request_is_redriven(s: Scene) -> None:
    s.make(lambda: s.rows.final(Status.FAILED))
    for status in (Status.COMPLETED, Status.CANCELLED):
        s.run = s.rows.final(status)
        s.refused()
    s.run = s.rows.final(Status.FAILED)
    s.set("runs", s.run, request=None)
    s.refused()


ORPHANS = ("cancel_orphan", "ask_cancel_orphan")


def orphan(s: Scene) -> UUID:
    """A child that the statement ends: its parent has failed."""
    born = s.rows.queued if s.statement.name == "cancel_orphan" else s.rows.running
    return born(parent_id=s.rows.final(Status.FAILED))


def parent_of(s: Scene) -> UUID:
    return s.row()["parent_id"]


@case(*ORPHANS)
def a_child_is_ended_for_its_own_parents_end_and_once(s: Scene) -> None:
    s.make(lambda: orphan(s))
    s.refused(namespace="another")
    s.lands()
    s.refused()


@case(*ORPHANS)
def a_child_whose_parent_goes_on_is_left_alone_whatever_other_families_do(s: Scene) -> None:
    s.make(lambda: orphan(s))
    s.set("runs", parent_of(s), status="queued", reason=None, finished_at=None, due_at="=now()")
    s.refused()


@case(*ORPHANS)
def an_orphan_that_runs_is_asked_and_no_other(s: Scene) -> None:
    s.make(lambda: orphan(s))
    if s.statement.name == "cancel_orphan":
        s.set("runs", s.run, status="running", claimed_by="somebody", lease_expires_at="=now()", due_at=None)
    else:
        s.set("runs", s.run, status="queued", claimed_by=None, lease_expires_at=None, due_at="=now()")
    s.refused()


@case(*ORPHANS)
def a_child_whose_parent_has_a_result_is_no_orphan(s: Scene) -> None:
    s.make(lambda: orphan(s))
    s.set("runs", parent_of(s), status="completed", reason="completed")
    s.refused()


@case(*ORPHANS)
def a_child_that_an_operator_brought_back_is_none_while_its_parent_may_be(s: Scene) -> None:
    s.make(lambda: orphan(s))
    redriven(s)
    s.refused()
    for columns in ({"finished_at": "=now() + interval '1 minute'"}, {"status": "cancelled", "reason": "cancelled"}):
        s.make(lambda: orphan(s))
        redriven(s)
        s.set("runs", parent_of(s), **columns)
        s.lands()


@case(*ORPHANS)
def another_childs_return_is_not_its_own(s: Scene) -> None:
    s.make(lambda: orphan(s))
    with s.database.connection() as connection:
        connection.execute(REDRIVEN, [s.others[0], "redriven"])
        connection.execute(REDRIVEN, [s.run, "requeued"])
    s.lands()


def redriven(s: Scene) -> None:
    with s.database.connection() as connection:
        connection.execute(REDRIVEN, [s.run, "redriven"])


REDRIVEN = (
    "INSERT INTO agentrun.moves (run_id, seq, type, at, epoch) VALUES (%s, nextval('agentrun.event_seq'), %s, now(), 1)"
)


def interrupted(s: Scene) -> UUID:
    """A failed run with two writes in flight."""
    run_id = s.rows.running()
    for key in ("w", "other"):
        s.rows.fence(run_id, key, Effect.NON_IDEMPOTENT_WRITE)
    s.set("runs", run_id, status="failed", reason="not_retryable", finished_at="=now()", claimed_by=None,
          lease_expires_at=None)  # fmt: skip
    return run_id


@case(*RESOLVES)
def one_interrupted_write_is_resolved_once(s: Scene) -> None:
    s.make(lambda: interrupted(s))
    s.lands()
    assert s.step_of(s.run, "other")["status"] == "started"
    s.refused()


@case(*RESOLVES)
def a_remote_write_is_resolved_once_its_taker_is_gone(s: Scene) -> None:
    s.make(lambda: interrupted(s))
    s.set("steps", s.run, lease_expires_at="=now() + interval '1 hour'")
    s.refused()
    s.set("steps", s.run, lease_expires_at="=now() - interval '1 s'")
    s.lands()


@case(*RESOLVES)
def a_write_of_a_run_that_goes_on_is_not_resolved(s: Scene) -> None:
    s.make(lambda: s.rows.fenced("w"))
    s.refused()


SAID = '{"key": "w", "applied": true}'
"""What `resolve` tells of the write that was applied."""


def tell(s: Scene, run_id: UUID, said: str, event: str = "resolved") -> None:
    """An event by hand."""
    told = "INSERT INTO agentrun.moves (run_id, type, epoch, data) VALUES (%s, %s, 1, %s::json)"
    with s.database.connection() as connection:
        connection.execute(told, [run_id, event, said])


def recorded(s: Scene) -> UUID:
    """A failed run whose writes have said their own ends."""
    run_id = interrupted(s)
    s.set("steps", run_id, status="completed", finished_at="=now()")
    return run_id


@case("resolve_completed")
def what_was_resolved_as_applied_may_be_resolved_so_again(s: Scene) -> None:
    s.make(lambda: interrupted(s))
    for result in ('"first"', '"second"'):
        s.lands(result=result, data=SAID)
        assert s.step_of(s.run, "w")["result"] == result
    assert [move["type"] for move in s.stored(s.run)[1]][-2:] == ["resolved", "resolved"]
    s.set("runs", s.run, status="cancelled", reason="cancelled")
    s.lands(result='"third"', data=SAID)
    s.set("runs", s.run, status="completed", reason="completed")
    s.refused(data=SAID)


@case("resolve_not_applied")
def what_was_resolved_as_applied_is_never_taken_back(s: Scene) -> None:
    s.make(lambda: recorded(s))
    tell(s, s.run, SAID)
    s.refused()


@case("resolve_completed")
def a_result_that_a_step_recorded_itself_is_not_replaced(s: Scene) -> None:
    s.make(lambda: recorded(s))
    s.refused(data=SAID)
    tell(s, s.others[0], SAID)
    tell(s, s.run, SAID, event="redriven")
    tell(s, s.run, '{"key": "other", "applied": true}')
    tell(s, s.run, '{"key": "w", "applied": false}')
    tell(s, s.run, '{"key": "w", "kind": "remote"}')
    s.refused(data=SAID)
    tell(s, s.run, SAID)
    s.lands(data=SAID)


@case("resolve_completed")
def a_step_that_failed_since_is_not_resolved_again(s: Scene) -> None:
    s.make(lambda: recorded(s))
    tell(s, s.run, SAID)
    s.set("steps", s.run, status="failed")
    s.refused(data=SAID)


# ---- the waits of what ends, and the parent that waits for it


def of_a_family(s: Scene) -> tuple[UUID, UUID]:
    """A run with an open wait of its own, and its parked parent."""
    parent = s.rows.waiting()
    child = before_its_end(s)
    s.rows.wait(child, "own")
    s.rows.wait(parent, "child", kind="child", child_id=child)
    if s.statement.name == UNSTARTED:
        s.set("waits", parent, due_at="=now() - interval '1 s'")
    return child, parent


@case(*FINAL, UNSTARTED)
def what_ends_closes_its_own_open_waits(s: Scene) -> None:
    s.others = list(of_a_family(s))
    s.run, _ = of_a_family(s)
    answered = s.rows.wait(s.run, "answered")
    with s.database.connection() as connection:
        connection.execute(
            "UPDATE agentrun.waits SET status = 'resolved', resolved_at = now() WHERE id = %s", [answered]
        )
    s.lands()
    waits = {row["step_key"]: row["status"] for row in s.stored(s.run)[3]}
    assert waits == {"own": "closed", "answered": "resolved"}


@case(*FINAL, UNSTARTED, alone=True)
def what_ends_tells_its_own_parent(s: Scene) -> None:
    s.others = list(of_a_family(s))
    s.run, parent = of_a_family(s)
    (answer,) = s.lands()
    assert (answer["parent_id"], s.row(parent)["status"]) == (parent, "queued")


@case(*FINAL, alone=True)
def a_parent_that_waits_no_more_is_not_told(s: Scene) -> None:
    s.run, parent = of_a_family(s)
    s.set("waits", parent, status="expired", resolved_at="=now()")
    s.others = [parent]
    s.lands()


@case(*FINAL, UNSTARTED, alone=True)
def a_parent_that_has_ended_is_left_alone(s: Scene) -> None:
    s.run, parent = of_a_family(s)
    s.set("runs", parent, status="cancelled", reason="cancelled", finished_at="=now()", waiting_on=None)
    before = s.row(parent)
    s.lands()
    assert s.row(parent) == before


@case("continue_as_new")
def a_continuation_inherits_who_waits_for_it_or_did_and_nobody_else(s: Scene) -> None:
    parent, other = s.rows.waiting(), s.rows.waiting()
    s.make(s.rows.running)
    s.rows.wait(other, "child", kind="child", child_id=s.others[0])
    s.rows.wait(parent, "open", kind="child", child_id=s.run)
    s.rows.wait(parent, "over", kind="child", child_id=s.run)
    with s.database.connection() as connection:
        connection.execute(
            "UPDATE agentrun.waits SET status = 'expired', resolved_at = now() WHERE run_id = %s AND step_key = 'over'",
            [parent],
        )
    s.others.append(other)
    s.lands()
    with s.database.connection() as connection:
        (born,) = connection.execute("SELECT id FROM agentrun.runs WHERE continued_from = %s", [s.run]).fetchall()
    assert [row["child_id"] for row in s.stored(parent)[3]] == [born["id"]] * 2
    assert [row["child_id"] for row in s.stored(other)[3]] == [s.others[0]]


@case("continue_as_new")
def what_a_continued_run_leaves_behind_goes_along_or_is_closed(s: Scene) -> None:
    def made() -> UUID:
        run_id = with_signals(s)
        s.rows.wait(run_id, "own")
        s.rows.wait(run_id, "answered", status="resolved", resolved_at="now")
        return run_id

    s.make(made)
    s.lands()
    with s.database.connection() as connection:
        (born,) = connection.execute("SELECT id FROM agentrun.runs WHERE continued_from = %s", [s.run]).fetchall()
    assert [(row["name"], row["taken_by_step"]) for row in s.stored(s.run)[4]] == [("go", "earlier")]
    assert [row["name"] for row in s.stored(born["id"])[4]] == ["other", "go", "go"]
    assert {row["step_key"]: row["status"] for row in s.stored(s.run)[3]} == {"own": "closed", "answered": "resolved"}


@case("continue_as_new")
def a_run_does_not_go_on_past_what_it_has_not_counted(s: Scene) -> None:
    s.make(s.rows.running)
    s.set("runs", s.run, resolutions=1)
    s.refused(resolutions=0)
    s.lands(resolutions=1)
