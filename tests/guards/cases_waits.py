"""Cases of the statements on waits: registered under the epoch, answered once, and no run but its own is moved."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

from agentrun.core.words import Status
from agentrun.store import journal, signals
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


def asked_for(s: Scene) -> dict[str, Any]:
    """The wait of step `s`; for `child_born` with a child."""
    asked: dict[str, Any] = {"wait_id": uuid4(), "name": "go", "key": "s"}
    if s.statement.name == "child_born":
        asked |= {"child_id": uuid4(), "child_kind": "test", "child_request": "null", "kind": "child"}
        asked |= {"child_queue": "agentrun", "child_priority": 0, "child_tags": [], "child_attributes": "{}"}
    return asked


@case("register_wait", "child_born")
def only_a_step_that_is_done_again_asks_anew_and_once(s: Scene) -> None:
    def expired() -> UUID:
        run_id = s.rows.running()
        for key in ("s", "another"):
            failed = s.rows.step(key, kind="signal", name="go", status="failed", result=None, error="{}")
            assert s.rows.do(journal.RECORD, run_id, **failed)
            s.rows.wait(run_id, key)
        s.set("waits", run_id, status="expired", resolved_at="=now()")
        return run_id

    s.make(expired)
    asked = asked_for(s)
    s.refused(**asked)
    for run_id in (s.run, *s.others):
        s.set("steps", run_id, status="redo", finished_at=None)
    s.lands(**asked)
    assert {row["step_key"]: row["status"] for row in s.stored(s.run)[3]} == {"another": "expired", "s": "open"}
    assert [(row["key"], row["status"]) for row in s.stored(s.run)[2]] == [("another", "redo")]
    s.refused(**asked)


@case("register_wait", "child_born")
def what_the_end_of_its_run_had_closed_is_asked_anew(s: Scene) -> None:
    def closed() -> UUID:
        run_id = s.rows.running()
        s.rows.wait(run_id, "s", status="closed", resolved_at="now")
        return run_id

    s.make(closed)
    s.lands(**asked_for(s))
    assert s.stored(s.run)[3][0]["status"] == "open"
    s.refused(**asked_for(s))


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


def parked_for(s: Scene, **wait: Any) -> UUID:
    """A parked run with two waits for the signal `go`, the older one of step `b`; or with two others."""
    run_id = s.rows.waiting()
    for key in ("b", "a"):
        s.rows.wait(run_id, key)
    s.set("waits", run_id, **{"kind": "signal"} | wait)
    return run_id


def statuses_of(s: Scene) -> dict[str, str]:
    return {wait["step_key"]: wait["status"] for wait in s.stored(s.run)[3]}


def woken_by(s: Scene) -> list[bool]:
    """The signal lands, and tells of the run as it is then; whether it woke it."""
    answer = s.lands(name="go")
    assert [(row["id"], row["status"]) for row in answer] == [(s.run, s.row()["status"])]
    return [row["woken"] for row in answer]


@case("send_signal")
def a_signal_answers_the_oldest_wait_for_it_and_wakes_its_run(s: Scene) -> None:
    s.make(lambda: parked_for(s))
    s.refused(name="go", namespace="other")
    assert woken_by(s) == [True]
    assert (s.row()["status"], statuses_of(s)) == ("queued", {"b": "resolved", "a": "open"})
    assert woken_by(s) == [False], "nobody has to be woken twice"
    assert (s.row()["status"], statuses_of(s)) == ("queued", {"b": "resolved", "a": "resolved"})
    assert not s.stored(s.run)[4], "an answer is not kept as well"


@case("send_signal")
def a_signal_that_nobody_waits_for_is_kept_and_wakes_nobody(s: Scene) -> None:
    answered = {"status": "resolved", "resolved_at": "=now()"}
    for wait in ({"name": "other"}, {"kind": "approval"}, {"token_digest": "=gen_random_uuid()::text"}, answered):
        s.make(lambda wait=wait: parked_for(s, **wait))
        assert woken_by(s) == [False]
        assert s.row()["status"] == "waiting"
        assert [kept["name"] for kept in s.stored(s.run)[4]] == ["go"]


def kept_before_its_wait(s: Scene, **signal: Any) -> UUID:
    """A run with a signal `go` that was kept, and two waits for such a one that were registered just after that."""
    run_id = s.rows.running()
    s.first(signals.SEND, run_id, name="go", payload="1", by="first")
    if signal:
        s.set("signals", run_id, **signal)
    for key in ("b", "a"):
        s.rows.wait(run_id, key)
    s.set("waits", run_id, kind="signal")
    return run_id


@case("send_signal")
def a_signal_that_was_kept_before_its_wait_was_there_answers_it_first(s: Scene) -> None:
    s.make(lambda: kept_before_its_wait(s))
    s.lands(name="go", payload="2", by="second")
    answered = {wait["step_key"]: (wait["resolution"], wait["resolved_by"]) for wait in s.stored(s.run)[3]}
    assert answered == {"b": ("1", "first"), "a": (None, None)}
    kept = [(signal["payload"], signal["taken_by_step"]) for signal in s.stored(s.run)[4]]
    assert kept == [("1", "b"), ("2", None)]
    past = {"expires_at": "=now() - interval '1 second'"}
    for signal in ({"name": "other"}, {"taken_by_step": "earlier"}, past):
        s.make(lambda signal=signal: kept_before_its_wait(s, **signal))
        s.lands(name="go", payload="2", by="second")
        assert {wait["step_key"]: wait["resolution"] for wait in s.stored(s.run)[3]} == {"b": "2", "a": None}
        assert [kept["payload"] for kept in s.stored(s.run)[4]] == ["1"]


@case("send_signal")
def a_run_that_executes_is_not_moved_by_a_signal(s: Scene) -> None:
    def executing() -> UUID:
        run_id = s.rows.running()
        s.rows.wait(run_id)
        return run_id

    s.make(executing)
    assert woken_by(s) == [False]
    assert s.row()["status"] == "running"
    s.make(lambda: s.rows.final(Status.COMPLETED))
    s.refused(name="go")


@case(*CLOSES)
def what_is_put_to_a_role_is_answered_by_who_has_it(s: Scene) -> None:
    def asked(role: str | None) -> UUID:
        run_id = s.rows.waiting()
        s.rows.wait(run_id)
        s.set("waits", run_id, role=role)
        return run_id

    def wait_of(run_id: UUID) -> UUID:
        return s.stored(run_id)[3][0]["id"]

    s.make(lambda: asked("clerk"))
    for roles in ([], ["boss"]):
        s.refused(wait_id=wait_of(s.run), roles=roles)
    s.lands(wait_id=wait_of(s.run), roles=["boss", "clerk"])
    s.make(lambda: asked("clerk"))
    s.lands(wait_id=wait_of(s.run), roles=None)
    s.make(lambda: asked(None))
    s.lands(wait_id=wait_of(s.run), roles=[])


@case("forget_signals")
def only_kept_signals_that_have_expired_are_forgotten_and_in_one_namespace(s: Scene) -> None:
    s.make(lambda: with_signals(s))
    s.set("signals", s.run, expires_at="=now() + interval '1 hour'")
    s.refused()
    s.set("signals", s.run, expires_at="=now() - interval '1 s'")
    s.refused(namespace="another")
    assert len(s.lands()) == 3
    assert [row["taken_by_step"] for row in s.stored(s.run)[4]] == ["earlier"]


# ---- children that nobody starts: the run is the parent, save for child_not_started


def late(s: Scene, policy: str = "start", **child: Any) -> tuple[UUID, UUID]:
    """A parked parent whose child was to be started by now, and that child."""
    parent, born = s.rows.waiting(), s.rows.queued(**child)
    s.rows.wait(parent, "child", kind="child", child_id=born)
    s.set("waits", parent, due_at="=now() - interval '1 s'", on_expiry=json.dumps({"policy": policy}))
    return parent, born


def alive(s: Scene, *kinds: str, namespace: str | None = None, seconds: int = 0) -> None:
    with s.database.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.processes (id, namespace, name, kinds, seen_at)"
            " VALUES (%s, %s, 'worker', %s, now() - make_interval(secs => %s))",
            [uuid4(), namespace or s.rows.namespace, list(kinds), seconds],
        )


def wait_of(s: Scene, parent: UUID) -> UUID:
    return s.stored(parent)[3][0]["id"]


@case("child_started")
def a_child_that_was_claimed_or_continues_one_is_watched_no_more(s: Scene) -> None:
    s.run, child = late(s)
    other, _ = late(s)
    s.others = [other]
    s.refused()
    s.set("runs", child, epoch=1)
    s.refused(namespace="another")
    s.set("waits", s.run, due_at="=now() + interval '1 hour'")
    s.refused()
    s.set("waits", s.run, due_at="=now() - interval '1 s'", status="expired", resolved_at="=now()")
    s.refused()
    s.set("waits", s.run, status="open", resolved_at=None, kind="signal")
    s.refused()
    s.set("waits", s.run, kind="child")
    s.lands()
    s.run, child = late(s)
    s.set("runs", child, continued_from=s.others[0])
    s.lands()


@case("child_started")
def a_kind_that_a_live_process_knows_is_waited_for_where_no_time_was_said(s: Scene) -> None:
    s.run, _ = late(s, "unknown")
    alive(s, "another")
    alive(s, "test", seconds=120)
    alive(s, "test", namespace=uuid4().hex)
    s.refused()
    alive(s, "test")
    timed, _ = late(s)
    s.others = [timed]
    s.lands()


@case("child_look_again")
def an_open_wait_is_looked_at_once_each_time(s: Scene) -> None:
    s.run, _ = late(s)
    other, _ = late(s)
    s.others = [other]
    s.lands(wait_id=wait_of(s, s.run), due_in=60.0, on_expiry="{}")
    s.refused(wait_id=wait_of(s, s.run), due_in=60.0, on_expiry="{}")
    s.set("waits", s.run, due_at="=now() - interval '1 s'", status="expired", resolved_at="=now()")
    s.refused(wait_id=wait_of(s, s.run), due_in=60.0, on_expiry="{}")


@case("child_not_started")
def only_a_child_that_was_never_claimed_is_settled(s: Scene) -> None:
    _, s.run = late(s)
    s.set("runs", s.run, epoch=1)
    s.refused()
    _, s.run = late(s)
    s.set("runs", s.run, status="waiting", waiting_on="signal")
    s.refused()
    _, s.run = late(s)
    s.refused(namespace="another")
    _, s.others = s.run, [late(s)[1]]
    s.lands()


@case("child_not_started")
def only_a_child_whose_open_wait_has_a_time_that_has_passed_is_settled(s: Scene) -> None:
    late(s)
    parent, s.run = late(s)
    s.set("waits", parent, due_at="=now() + interval '1 hour'")
    s.refused()
    s.set("waits", parent, due_at="=now() - interval '1 s'", status="expired", resolved_at="=now()")
    s.refused()
    s.set("waits", parent, status="open", resolved_at=None)
    s.lands()


@case("park")
def when_a_child_is_to_start_is_not_when_its_parent_is_due(s: Scene) -> None:
    s.run = s.rows.running()
    s.rows.wait(s.run, "child", kind="child", child_id=s.rows.queued())
    s.set("waits", s.run, due_at="=now() + interval '1 hour'")
    (parked,) = s.lands()
    assert parked["due_at"] is None
