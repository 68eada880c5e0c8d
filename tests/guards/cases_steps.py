"""Cases of the journal: who may record, fence and finish, and what a replay reads."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from agentrun.core.words import Effect
from agentrun.store import journal
from agentrun.testing.rows import OWNER
from tests.guards.scene import Scene, case

RECORDS = ("record", "record_with_usage", "record_in_transaction")
ENDS = ("finish", "not_applied")
WRITES = (*RECORDS, "fence", *ENDS)


def ready(s: Scene) -> UUID:
    """A run on which the statement lands."""
    run_id = s.rows.running(owner="somebody")
    if s.statement.name in ENDS:
        s.rows.fence(run_id, "w")
    return run_id


@case(*WRITES)
def the_owner_writes_to_its_run_and_no_other(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.lands()


@case(*WRITES)
def a_stale_owner_writes_nothing(s: Scene) -> None:
    """By the same name, too: process ids repeat."""
    s.make(lambda: ready(s))
    s.refused(epoch=0, by=OWNER)
    s.refused(epoch=2, by=OWNER)


@case(*WRITES)
def nobody_writes_to_a_run_that_does_not_run(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.parked_by_hand(s.run)
    s.refused()


@case(*RECORDS)
def a_step_that_has_ended_is_not_recorded_again(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.lands()
    s.refused(result="2")


@case("record_with_usage")
def what_a_run_without_an_owner_spends_is_booked_on_nobody(s: Scene) -> None:
    s.make(s.rows.running)
    s.lands(input_tokens=3)
    assert s.stored(s.run)[5] == []


@case("fence")
def no_write_starts_once_a_cancel_was_asked_for(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.set("runs", s.run, cancel_requested_at="=now()")
    s.refused()


@case("fence")
def a_write_in_flight_does_not_start_again(s: Scene) -> None:
    s.make(lambda: s.rows.fenced("w"))
    s.refused()
    s.refused(effect=str(Effect.IDEMPOTENT_WRITE))


@case("fence")
def what_was_idempotent_at_its_start_does_not_start_again_as_another(s: Scene) -> None:
    s.make(lambda: s.rows.fenced("w", Effect.IDEMPOTENT_WRITE))
    s.refused(effect=str(Effect.NON_IDEMPOTENT_WRITE))
    s.lands(effect=str(Effect.IDEMPOTENT_WRITE))


@case("fence")
def a_write_that_has_ended_does_not_start_again(s: Scene) -> None:
    def ended() -> UUID:
        run_id = s.rows.fenced("w", Effect.IDEMPOTENT_WRITE)
        assert s.rows.do(journal.FINISH, run_id, **s.rows.step("w", effect=str(Effect.IDEMPOTENT_WRITE)))
        return run_id

    s.make(ended)
    s.refused(effect=str(Effect.IDEMPOTENT_WRITE))


@case(*ENDS)
def only_the_write_that_is_named_ends_and_once(s: Scene) -> None:
    def two() -> UUID:
        run_id = s.rows.fenced("w")
        s.rows.fence(run_id, "other")
        return run_id

    s.make(two)
    s.lands()
    assert s.step_of(s.run, "other")["status"] == "started"
    s.refused(result="2")


@case("fence")
def a_write_in_a_lease_that_is_about_to_end_renews_it_and_any_other_leaves_the_run_alone(s: Scene) -> None:
    s.make(lambda: s.rows.running(lease_seconds=60.0))
    before = s.row()
    s.lands(key="a", lease=None)
    assert s.row() == before
    for left in ("29 s", "-1 s"):
        s.set("runs", s.run, lease_expires_at=f"=now() + interval '{left}'")
        s.set("runs", s.others[0], lease_expires_at=f"=now() + interval '{left}'")
        s.lands(key=left, lease=None)
        assert s.row()["lease_expires_at"] - before["lease_expires_at"] > timedelta(0)


@case("fence")
def a_write_that_may_not_start_renews_no_lease(s: Scene) -> None:
    s.make(lambda: s.rows.fenced("w"))
    s.set("runs", s.run, lease_expires_at="=now()")
    s.refused()


@case("replay")
def a_replay_reads_its_own_run(s: Scene) -> None:
    s.make(lambda: s.rows.fenced("w"))
    assert [row["key"] for row in s.do()] == ["w"]


@case("step_landed")
def only_the_very_attempt_has_landed(s: Scene) -> None:
    s.make(lambda: s.rows.fenced("w"))
    asked = {"landed_status": "started", "by": OWNER}
    assert len(s.do(**asked)) == 1
    for other in ({"landed_status": "completed"}, {"by": "another"}, {"epoch": 2}, {"key": "x"}):
        assert s.do(**asked | other) == []


@case("renew_all", "renew_waiting")
def a_heartbeat_renews_what_it_holds_and_says_what_it_lost(s: Scene) -> None:
    s.make(s.rows.running)
    lost, parked = s.rows.running(), s.rows.running()
    s.parked_by_hand(parked)
    s.set("runs", lost, epoch=2)
    s.others += [lost, parked]
    for each in (s.run, lost, s.others[0]):
        s.rows.expire_lease(each)
    answer = {row["run_id"]: row for row in s.lands(run_ids=[s.run, lost, parked])}
    assert len(s.do(run_ids=[s.run, lost, parked])) == 3
    assert {key: (row["held"], row["renewed"]) for key, row in answer.items()} == {
        s.run: (True, True), lost: (False, False), parked: (False, False)}  # fmt: skip
