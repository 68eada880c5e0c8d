"""Cases of the moves that a segment makes under its epoch, and of the reaper's."""

from __future__ import annotations

from uuid import UUID

from agentrun.core.words import Effect, Status
from agentrun.store import journal
from tests.guards.scene import Scene, case

SETTLES = ("settle_completed", "settle_failed", "settle_cancelled")
FENCED = (*SETTLES, "continue_as_new", "requeue", "hand_back", "park")
CAREFUL = ("settle_completed", "continue_as_new", "requeue", "hand_back", "park", "reap_requeue")
"""They leave no write in flight behind, and go no way that a cancel forbids."""

REAPS = ("reap_requeue", "reap_settle_failed", "reap_settle_cancelled")


def ready(s: Scene) -> UUID:
    """A run on which the statement lands: running; for the reaper stale, for parking with an open wait."""
    run_id = s.rows.running()
    if s.statement.name in REAPS:
        s.rows.expire_lease(run_id)
    if s.statement.name == "park":
        s.rows.wait(run_id)
    return run_id


@case("claim")
def only_what_is_queued_is_claimed(s: Scene) -> None:
    s.make(s.rows.running)
    s.refused()


@case("claim")
def a_claim_takes_one_run(s: Scene) -> None:
    s.make(s.rows.queued)
    s.lands()


@case("claim")
def a_claim_keeps_to_its_namespace_its_kinds_and_the_time(s: Scene) -> None:
    s.make(s.rows.queued)
    s.refused(namespace="another")
    s.refused(kinds=["another"])
    s.set("runs", s.run, due_at="=now() + interval '1 hour'")
    s.refused()


@case(*FENCED)
def the_owner_moves_its_run_and_no_other(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.lands()


@case(*FENCED, *REAPS)
def a_stale_epoch_moves_nothing(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.refused(epoch=0)
    s.refused(epoch=2)


@case(*FENCED)
def only_a_running_run_is_moved_by_its_segment(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.parked_by_hand(s.run)
    s.refused()


@case(*CAREFUL)
def a_cancel_that_was_asked_for_is_not_passed_over(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.set("runs", s.run, cancel_requested_at="=now()")
    s.refused()


@case(*CAREFUL, "redrive")
def a_write_in_flight_is_not_left_behind(s: Scene) -> None:
    s.make(lambda: in_flight(s, Effect.NON_IDEMPOTENT_WRITE))
    s.refused()


@case(*CAREFUL, "redrive")
def a_write_in_flight_of_another_run_holds_nobody_up(s: Scene) -> None:
    other = in_flight(s, Effect.NON_IDEMPOTENT_WRITE)
    s.make(lambda: ready(s) if s.statement.name != "redrive" else s.rows.final(Status.FAILED))
    s.others.append(other)
    s.lands()


@case(*CAREFUL, "redrive")
def a_remote_write_whose_taker_works_on_it_holds_nobody_up(s: Scene) -> None:
    s.make(lambda: in_flight(s, Effect.NON_IDEMPOTENT_WRITE))
    s.set("steps", s.run, lease_expires_at="=now() + interval '1 hour'")
    s.lands()


@case(*CAREFUL, "redrive")
def a_write_that_has_ended_holds_nobody_up(s: Scene) -> None:
    s.make(lambda: in_flight(s, Effect.NON_IDEMPOTENT_WRITE, ended=True))
    s.lands()


@case(*CAREFUL, "redrive")
def a_write_that_may_be_repeated_holds_nobody_up(s: Scene) -> None:
    s.make(lambda: in_flight(s, Effect.IDEMPOTENT_WRITE))
    s.lands()


@case(*CAREFUL, "redrive")
def a_write_that_can_be_asked_about_holds_nobody_up(s: Scene) -> None:
    s.make(lambda: in_flight(s, Effect.NON_IDEMPOTENT_WRITE, reconcilable=True))
    s.lands()


@case("requeue", "redrive")
def only_the_failed_step_that_is_named_is_done_again(s: Scene) -> None:
    def failed() -> UUID:
        run_id = s.rows.running()
        for key, status in (("a", "failed"), ("a/1", "failed"), ("b", "failed"), ("a/2", "completed")):
            assert s.rows.do(journal.RECORD, run_id, **s.rows.step(key, status=status))
        if s.statement.name == "redrive":
            s.set("runs", run_id, status="failed", reason="not_retryable", finished_at="=now()", claimed_by=None,
                  lease_expires_at=None)  # fmt: skip
        return run_id

    s.make(failed)
    s.lands(redo=["a"])
    assert [s.step_of(s.run, key)["status"] for key in ("a", "a/1", "b", "a/2")] == [
        "redo", "redo", "failed", "completed"]  # fmt: skip


@case("redrive")
def what_nobody_answered_is_asked_again_and_what_ended_since_is_not(s: Scene) -> None:
    """A remote step may end after its run did: its wait would stay open for ever."""

    def failed() -> UUID:
        run_id = s.rows.running()
        for key, status in (("ended", "completed"), ("failed", "failed")):
            assert s.rows.do(journal.RECORD, run_id, **s.rows.step(key, status=status))
        s.rows.fence(run_id, "started", Effect.IDEMPOTENT_WRITE)
        s.set("runs", run_id, status="failed", reason="not_retryable", finished_at="=now()", claimed_by=None,
              lease_expires_at=None)  # fmt: skip
        return run_id

    other = s.rows.running()
    assert s.rows.do(journal.RECORD, other, **s.rows.step("asked"))
    s.others.append(other)
    s.make(failed)
    waits = {key: s.rows.wait(s.run, key, status="closed", resolved_at="now") for key in ("ended", "started", "asked")}
    resolved = s.rows.wait(s.run, "resolved", status="resolved", resolved_at="now")
    others = s.rows.wait(other, status="closed", resolved_at="now")
    s.lands()
    with s.rows.database.connection() as connection:
        found = connection.execute("SELECT id, status FROM agentrun.waits").fetchall()
    now = {row["id"]: row["status"] for row in found}
    assert [now[waits[key]] for key in ("ended", "started", "asked")] == ["closed", "open", "open"]
    assert (now[resolved], now[others]) == ("resolved", "closed")


@case("redrive")
def a_child_that_came_to_nothing_is_not_waited_for_as_it_is(s: Scene) -> None:
    s.make(lambda: s.rows.final(Status.FAILED))
    ends = (Status.CANCELLED, Status.FAILED, Status.COMPLETED)
    children = {str(status): s.rows.final(status) for status in ends} | {"queued": s.rows.queued()}
    children |= {"asked to end": s.rows.running()}
    s.set("runs", children["asked to end"], cancel_requested_at="=now()")
    for name, child in children.items():
        s.rows.wait(s.run, name, kind="child", child_id=child, status="closed", resolved_at="now")
    s.lands()
    assert {row["step_key"] for row in s.stored(s.run)[3] if row["status"] == "open"} == {"completed", "queued"}


@case(*REAPS)
def a_lease_that_runs_is_not_reaped(s: Scene) -> None:
    s.make(s.rows.running)
    s.refused()


@case(*REAPS)
def the_reaper_moves_one_run(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.lands()


@case("park")
def a_run_without_an_open_wait_does_not_park(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.set("waits", s.run, status="resolved", resolved_at="=now()")
    s.refused()


@case("park")
def a_run_does_not_park_past_an_answer(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.set("runs", s.run, resolutions=1)
    s.refused(resolutions=0)


@case("park")
def a_parked_run_is_due_with_its_own_first_open_wait(s: Scene) -> None:
    def waiting(hours: int) -> UUID:
        run_id = s.rows.running()
        s.rows.wait(run_id, "w")
        s.set("waits", run_id, due_at=f"=now() + interval '{hours} hours'")
        return run_id

    s.others = [waiting(1)]
    s.run = waiting(3)
    answered = s.rows.wait(s.run, "answered")
    with s.database.connection() as connection:
        connection.execute(
            "UPDATE agentrun.waits SET status = 'resolved', resolved_at = now(), due_at = now() + interval '2 hours'"
            " WHERE id = %s",
            [answered],
        )
    (answer,) = s.lands()
    assert 10_000 < float(answer["due_in"]) < 11_000


def in_flight(s: Scene, effect: Effect, *, reconcilable: bool = False, ended: bool = False) -> UUID:
    """A run as `ready`, with a write."""
    run_id = ready(s)
    s.rows.fence(run_id, "w", effect, reconcilable=reconcilable)
    if ended:
        assert s.rows.do(journal.FINISH, run_id, **s.rows.step("w", effect=str(effect)))
    if s.statement.name in REAPS:
        s.rows.expire_lease(run_id)
    if s.statement.name == "redrive":
        s.set("runs", run_id, status="failed", reason="not_retryable", finished_at="=now()", claimed_by=None,
              lease_expires_at=None)  # fmt: skip
    return run_id
