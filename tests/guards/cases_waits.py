"""Cases of the statements on waits: registered under the epoch, answered once, and no run but its own is moved."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from tests.guards.scene import Scene, case

CLOSES = ("close_wait_resolved", "close_wait_expired")
REGISTERS = ("register_wait", "take_signal")


def with_signals(s: Scene) -> UUID:
    """A running run with buffered signals: one taken, one of another name, then two of ours."""
    run_id = s.rows.running()
    with s.database.connection() as connection:
        for name, taken in (("go", "earlier"), ("other", None), ("go", None), ("go", None)):
            connection.execute(
                "INSERT INTO agentrun.signals (run_id, name, taken_by_step, payload) VALUES (%s, %s, %s, '1')",
                [run_id, name, taken],
            )
    return run_id


@case(*REGISTERS)
def only_who_holds_the_run_registers_a_wait(s: Scene) -> None:
    s.make(lambda: with_signals(s))
    asked: dict[str, Any] = {"wait_id": uuid4(), "name": "go", "key": "s"}
    s.refused(**asked, epoch=0)
    s.lands(**asked)
    s.make(lambda: with_signals(s))
    s.parked_by_hand(s.run)
    s.refused(**asked | {"wait_id": uuid4()})


@case("take_signal")
def the_oldest_signal_of_the_name_is_taken_and_once(s: Scene) -> None:
    # The twin's signals are older.
    s.make(lambda: with_signals(s))
    s.lands(wait_id=uuid4(), name="go", key="s")
    taken = [(row["name"], row["taken_by_step"]) for row in s.stored(s.run)[4]]
    assert taken == [("go", "earlier"), ("other", None), ("go", "s"), ("go", None)]


@case("take_signal")
def a_step_that_has_its_answer_takes_no_second_signal(s: Scene) -> None:
    s.make(lambda: with_signals(s))
    s.rows.wait(s.run, "s")
    s.set("waits", s.run, status="expired", resolved_at="=now()")
    s.refused(wait_id=uuid4(), name="go", key="s")


@case("take_signal")
def a_signal_answers_the_open_wait_of_its_step_whatever_others_have(s: Scene) -> None:
    s.make(lambda: with_signals(s))
    s.rows.wait(s.run, "another")
    s.set("waits", s.run, status="expired", resolved_at="=now()")
    s.rows.wait(s.run, "s")
    s.lands(wait_id=uuid4(), name="go", key="s")
    assert {row["step_key"]: row["status"] for row in s.stored(s.run)[3]} == {"another": "expired", "s": "resolved"}


@case("take_signal")
def a_signal_that_has_expired_answers_nothing(s: Scene) -> None:
    s.make(lambda: with_signals(s))
    s.set("signals", s.run, expires_at="=now() - interval '1 s'")
    s.refused(wait_id=uuid4(), name="go", key="s")


@case("count_resolution")
def an_answer_counts_on_its_own_run_unless_that_has_ended(s: Scene) -> None:
    s.make(s.rows.waiting)
    s.refused(namespace="another")
    s.lands()
    s.set("runs", s.run, status="failed", reason="not_retryable", waiting_on=None, finished_at="=now()")
    s.refused()


@case(*CLOSES)
def a_wait_is_answered_once_and_as_it_was_asked(s: Scene) -> None:
    def waiting() -> UUID:
        run_id = s.rows.waiting()
        s.rows.wait(run_id, asks_digest="asked")
        s.set("runs", run_id, epoch=hash(run_id) % 1000)
        return run_id

    s.make(waiting)
    other = s.rows.wait(s.run, "other", asks_digest="asked")
    wait_id = next(row["id"] for row in s.stored(s.run)[3] if row["step_key"] == "w")
    s.refused(wait_id=wait_id, asks_digest="something else")
    s.refused(wait_id=wait_id, run_id=s.others[0])
    s.lands(wait_id=wait_id, asks_digest="asked")
    s.refused(wait_id=wait_id)
    assert s.stored(s.run)[1][-1]["epoch"] == s.row()["epoch"]
    s.lands(wait_id=other)


@case("unpark")
def only_a_parked_run_goes_back_to_the_queue(s: Scene) -> None:
    s.make(s.rows.waiting)
    s.lands()
    s.run = s.rows.running()
    s.refused()


@case("escalate")
def only_an_open_wait_whose_time_has_come_is_escalated(s: Scene) -> None:
    def overdue() -> UUID:
        run_id = s.rows.waiting()
        s.rows.wait(run_id)
        s.set("waits", run_id, due_at="=now() - interval '1 minute'")
        return run_id

    s.make(overdue)
    wait_id = s.stored(s.run)[3][0]["id"]
    s.lands(wait_id=wait_id, role="chief", due_in=3600.0)
    s.refused(wait_id=wait_id, role="chief")
    s.make(overdue)
    s.set("waits", s.run, status="resolved", resolved_at="=now()")
    s.refused(wait_id=s.stored(s.run)[3][0]["id"], role="chief")


@case("buffer_signal")
def a_signal_is_kept_for_its_run(s: Scene) -> None:
    s.make(s.rows.running)
    s.lands(name="go")
