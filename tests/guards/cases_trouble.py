"""Cases of steps elsewhere that are in trouble: offered again or given up only by what their effect allows."""

from __future__ import annotations

from uuid import UUID, uuid4

from agentrun.core.words import Effect
from agentrun.store import ending, offering
from tests.guards.cases_remote import BY_HAND, KEYS, TROUBLES, WRITE, asked, lapsed, taken, token, usual
from tests.guards.scene import Scene, case


@case(*TROUBLES)
def a_step_whose_taker_lives_and_speaks_is_in_no_trouble(s: Scene) -> None:
    s.make(lambda: taken(s, **usual(s)))
    s.refused()
    s.set("steps", s.run, due_at="=now() + interval '1 hour'")
    s.refused()


@case(*TROUBLES)
def a_lease_that_is_over_and_a_silence_that_is_too_long_are_trouble(s: Scene) -> None:
    s.make(lambda: lapsed(s, **usual(s)))
    s.lands()
    s.make(lambda: taken(s, **usual(s)))
    s.set("steps", s.run, due_at="=now() - interval '1 s'")
    s.lands()


@case(*TROUBLES)
def trouble_is_settled_for_the_taker_who_had_it(s: Scene) -> None:
    s.make(lambda: lapsed(s, **usual(s)))
    s.refused(step_epoch=None)
    s.refused(step_epoch=2)
    s.set("steps", s.run, step_epoch=2)
    s.refused(step_epoch=1)


@case(*TROUBLES)
def a_step_on_offer_is_in_trouble_once_nobody_took_it_in_time(s: Scene) -> None:
    """What is on offer was never done: nothing forbids to offer it again, or to give it up."""

    def waiting() -> UUID:
        run_id = asked(s, effect=WRITE)
        s.set("steps", run_id, due_at="=now() - interval '1 hour'")
        return run_id

    s.make(waiting)
    s.refused(step_epoch=None)
    s.set("steps", s.run, lease_expires_at="=now() + interval '1 hour'")
    s.refused(step_epoch=None)
    s.set("steps", s.run, lease_expires_at="=now() - interval '1 s'")
    s.refused(step_epoch=1)
    may = s.statement.name in ("retry_troubled_step", "fail_troubled_step")
    (s.lands if may else s.refused)(step_epoch=None)


@case("redispatch_step")
def what_may_be_repeated_and_is_on_offer_is_not_dispatched_again(s: Scene) -> None:
    s.make(lambda: asked(s))
    s.set("steps", s.run, lease_expires_at="=now() - interval '1 s'")
    s.refused(step_epoch=None)


@case(*TROUBLES)
def a_step_of_which_it_was_said_that_it_did_not_happen_is_in_no_trouble(s: Scene) -> None:
    """It keeps the lease and the times of its taker."""
    s.make(lambda: lapsed(s, **usual(s)))
    s.set("steps", s.run, status="not_applied")
    s.refused()
    s.set("steps", s.run, lease_expires_at=None, due_at="=now() - interval '1 s'")
    s.refused()


@case("retry_troubled_step", "redispatch_step", "fail_troubled_step", BY_HAND)
def a_write_that_somebody_began_is_repeated_where_it_can_be_asked_about(s: Scene) -> None:
    s.make(lambda: lapsed(s, effect=WRITE))
    s.refused()
    s.make(lambda: lapsed(s, effect=WRITE, reconcilable=True))
    s.lands()
    s.make(lambda: lapsed(s, effect=Effect.IDEMPOTENT_WRITE))
    s.lands()


@case(BY_HAND)
def who_lives_is_left_alone_unless_it_is_elsewhere(s: Scene) -> None:
    s.make(lambda: taken(s))
    s.refused()
    s.make(lambda: taken(s, "external"))
    s.lands()


@case(BY_HAND)
def a_step_that_was_taken_by_another_or_is_on_offer_is_not_offered_by_hand(s: Scene) -> None:
    s.make(lambda: lapsed(s))
    s.refused(step_epoch=0)
    s.refused(step_epoch=2)
    s.first(offering.GIVE_BACK, s.run)
    s.set("steps", s.run, lease_expires_at="=now() - interval '1 s'")
    s.refused()


# ---- leases, and asking after a broken connection


@case("renew_steps")
def a_heartbeat_renews_the_steps_that_it_holds_and_says_what_it_lost(s: Scene) -> None:
    s.make(lambda: lapsed(s))
    stolen, offered, interrupted, over = lapsed(s), lapsed(s), lapsed(s, effect=WRITE), lapsed(s)
    s.set("steps", stolen, step_epoch=2)
    s.first(offering.GIVE_BACK, offered)
    s.set("steps", offered, lease_expires_at="=now() + interval '1 s'")
    s.first(ending.INTERRUPT, interrupted)
    s.set("runs", over, cancel_requested_at="=now()")
    s.others += [stolen, offered, interrupted]
    mine = [(s.run, "w"), (stolen, "w"), (offered, "w"), (interrupted, "w"), (over, "other")]
    held = {"run_ids": [run_id for run_id, _ in mine], "keys": [key for _, key in mine]}
    before = s.step_of(s.run, "other"), s.step_of(over, "w")
    answer = s.lands(**held)
    assert (s.step_of(s.run, "other"), s.step_of(over, "w")) == before
    assert {(row["run_id"], row["key"]): (row["held"], row["renewed"], row["over"]) for row in answer} == {
        (s.run, "w"): (True, True, False),
        (stolen, "w"): (False, False, False),
        (offered, "w"): (False, False, False),
        (interrupted, "w"): (False, False, False),
        (over, "other"): (True, True, True),
    }
    assert len(answer) == len(mine)


@case("renew_steps")
def of_two_steps_of_a_run_the_lost_one_is_not_renewed_with_the_other(s: Scene) -> None:
    s.make(lambda: lapsed(s))
    s.first(offering.GIVE_BACK, s.run, key="other")
    answer = s.lands(run_ids=[s.run, s.run], keys=["w", "other"])
    assert {row["key"]: row["renewed"] for row in answer} == {"w": True, "other": False}
    assert len(answer) == 2


@case("take_landed")
def only_the_very_taker_has_taken(s: Scene) -> None:
    s.make(lambda: taken(s))
    mine = {"token_digest": token(s.run)}
    assert [(row["run_id"], row["key"]) for row in s.do(**mine)] == [(s.run, "w")]
    for other in ({"token_digest": "another"}, {"key": "other"}, {"run_id": s.others[0]}):
        assert s.do(**mine | other) == []
    s.set("steps", s.run, status="not_applied")
    assert s.do(**mine) == []


@case("step_ended_by")
def only_its_own_word_has_landed(s: Scene) -> None:
    def failed() -> UUID:
        run_id = taken(s)
        for key in KEYS:
            s.first(ending.FAIL, run_id, key=key)
        return run_id

    s.make(failed)
    mine = {"ended": "failed"}
    assert [(row["id"], row["key"]) for row in s.do(**mine)] == [(s.run, "w")]
    for other in ({"ended": "completed"}, {"by": "another"}, {"key": "none"}, {"run_id": uuid4()}):
        assert s.do(**mine | other) == []
