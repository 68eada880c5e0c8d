"""Cases of steps that are done elsewhere: taken by one, ended once, offered again only as their effect allows.

Every run of these cases has two such steps: the one that is meant, and one that must stay as it is.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from agentrun.core.words import Effect
from agentrun.store import ending, offering, taking
from tests.guards.scene import Scene, case

TAKES = ("take_step", "take_external")
ENDS = ("complete_step", "fail_step")
TAKERS = (*ENDS, "retry_step", "give_back_step", "ask_again_about_step", "interrupt_step", "beat_step")
"""What the taker says, by its epoch or its token."""

TROUBLES = ("retry_troubled_step", "redispatch_step", "fail_troubled_step", "interrupt_step")
BY_HAND = "redispatch_by_hand"
BY_OPERATOR = "resolve_external"
RESOLVING = (*ENDS, "fail_troubled_step", "interrupt_step", BY_OPERATOR)
ALL = (*TAKES, *dict.fromkeys((*TAKERS, *TROUBLES)), BY_HAND, BY_OPERATOR)
FOUND = tuple(each for each in ALL if each not in (*TAKES, "beat_step"))
"""They ask for the step's kind."""

OF_OPEN_RUNS = tuple(each for each in ALL if each not in (*ENDS, "beat_step"))
WRITE = Effect.NON_IDEMPOTENT_WRITE
KEYS = ("w", "other")


def asked(s: Scene, kind: str = "remote", effect: Effect = Effect.READ_ONLY) -> UUID:
    """A parked run with two steps on offer, one of another age than the other."""
    run_id = s.rows.running()
    for key in KEYS:
        s.first(offering.OFFER, run_id, **offer(key, kind, effect))
    s.parked_by_hand(run_id)
    return run_id


def offer(key: str, kind: str = "remote", effect: Effect = Effect.READ_ONLY) -> dict[str, Any]:
    queue = "gpu" if kind == "remote" else None
    return {"key": key, "step_kind": kind, "kind": "remote", "effect": str(effect), "wait_id": uuid4(),
            "queue": queue, "policy": "{}"}  # fmt: skip


def taken(s: Scene, kind: str = "remote", effect: Effect = Effect.READ_ONLY, *, reconcilable: bool = False) -> UUID:
    """The same, and both steps were taken under the step epoch 1."""
    run_id = asked(s, kind, effect)
    for key in KEYS:
        take = taking.TAKE if kind == "remote" else taking.TAKE_EXTERNAL
        s.first(take, run_id, key=key, **taker(reconcilable), token_digest=token(run_id, key))
    return run_id


def taker(reconcilable: bool = False) -> dict[str, Any]:
    return {"names": ["look"], "effects": "{}", "reconcilable": ["look"] if reconcilable else []}


def token(run_id: UUID, key: str = "w") -> str:
    return f"{run_id} {key}"


def lapsed(s: Scene, **how: Any) -> UUID:
    """Taken by somebody who is gone."""
    run_id = taken(s, **how)
    s.set("steps", run_id, lease_expires_at="=now() - interval '1 s'")
    return run_id


def usual(s: Scene) -> dict[str, Any]:
    """The effect with which the statement does anything."""
    match s.statement.name:
        case "interrupt_step":
            return {"effect": WRITE}
        case "ask_again_about_step":
            return {"effect": WRITE, "reconcilable": True}
        case _:
            return {}


def by_taker(s: Scene) -> UUID:
    """A run on which the statement lands when the taker of its step says so."""
    s.given = {"mine": "yes"}
    return taken(s, **usual(s))


def ready(s: Scene) -> UUID:
    """A run on which the statement lands."""
    if s.statement.name in TAKES:
        s.given = taker() | {"token_digest": str(uuid4())}
        return asked(s, "remote" if s.statement.name == "take_step" else "external")
    if s.statement.name in TROUBLES or s.statement.name == BY_HAND:
        return lapsed(s, **usual(s))
    return by_taker(s)


def ended(s: Scene, run_id: UUID) -> None:
    """The run ends as none of its moves would do it: its waits stay open."""
    s.set("runs", run_id, status="failed", reason="not_retryable", finished_at="=now()", waiting_on=None)


# ---- offering


@case("offer_step")
def only_who_holds_the_run_offers_a_step(s: Scene) -> None:
    s.make(s.rows.running)
    s.refused(**offer("w"), epoch=0)
    s.refused(**offer("w"), epoch=2)
    s.lands(**offer("w"))
    s.make(s.rows.running)
    s.parked_by_hand(s.run)
    s.refused(**offer("w"))


@case("offer_step")
def a_step_is_offered_once_and_afresh_where_it_has_to_be_done_again(s: Scene) -> None:
    def begun() -> UUID:
        run_id = s.rows.running()
        s.first(offering.OFFER, run_id, **offer("w"))
        return run_id

    s.make(begun)
    s.refused(**offer("w"))
    s.set("steps", s.run, status="started", started_seq=1)
    s.refused(**offer("w"))
    for status in ("not_applied", "redo"):
        s.set("steps", s.run, status=status)
        s.lands(**offer("w"))
    s.first(taking.TAKE, s.run, **taker())
    s.first(ending.COMPLETE, s.run)
    s.refused(**offer("w"))


# ---- which step


@case(*ALL)
def one_step_of_one_run_is_meant(s: Scene) -> None:
    s.make(lambda: ready(s))
    before = s.step_of(s.run, "other"), wait_of(s, "other")
    s.lands()
    assert (s.step_of(s.run, "other"), wait_of(s, "other")) == before


@case(*ALL)
def nobody_reaches_into_another_namespace(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.refused(namespace="another")


@case(*OF_OPEN_RUNS)
def nothing_goes_on_for_a_run_that_has_ended(s: Scene) -> None:
    s.make(lambda: ready(s))
    ended(s, s.run)
    s.refused()


@case(*ENDS)
def what_is_said_of_a_run_that_has_ended_is_kept_and_wakes_nobody(s: Scene) -> None:
    s.make(lambda: ready(s))
    ended(s, s.run)
    before = s.row()
    s.lands()
    assert s.row() == before


@case(*RESOLVING)
def a_wait_that_is_not_open_is_not_resolved(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.set("waits", s.run, status="closed", resolved_at="=now()")
    before = s.row()
    s.lands()
    assert (s.row(), wait_of(s, "w")["status"]) == (before, "closed")


def wait_of(s: Scene, key: str) -> dict[str, Any]:
    return next(row for row in s.stored(s.run)[3] if row["step_key"] == key)


# ---- taking


@case(*TAKES)
def a_step_is_taken_once(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.lands()
    # Its timeout is over: it is silent, and still not on offer.
    s.set("steps", s.run, due_at="=now() - interval '1 s'")
    s.refused(token_digest="another")


@case(*TAKES)
def a_step_is_not_taken_before_its_time(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.set("steps", s.run, due_at="=now() + interval '1 hour'")
    s.refused()


@case(*TAKES)
def nothing_is_taken_for_a_run_that_is_to_be_cancelled(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.set("runs", s.run, cancel_requested_at="=now()")
    s.refused()


@case(*TAKES)
def workers_and_programs_elsewhere_take_what_is_meant_for_them(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.run = asked(s, "external" if s.statement.name == "take_step" else "remote")
    s.refused()


@case("take_step")
def a_step_that_is_unknown_here_is_not_taken(s: Scene) -> None:
    s.make(lambda: ready(s))
    s.refused(names=["another"])


# ---- what the taker says


@case(*TAKERS)
def the_taker_is_known_by_its_epoch(s: Scene) -> None:
    s.make(lambda: by_taker(s))
    s.refused(step_epoch=2)
    s.lands()


@case(*TAKERS, alone=True)
def a_program_elsewhere_is_known_by_its_token(s: Scene) -> None:
    s.make(lambda: by_taker(s))
    s.refused(step_epoch=None, token_digest="another")
    s.lands(step_epoch=None, token_digest=token(s.run))


@case(*TAKERS)
def an_earlier_taker_may_complete_and_nothing_else(s: Scene) -> None:
    s.make(lambda: by_taker(s))
    s.set("steps", s.run, step_epoch=3)
    (s.lands if s.statement.name == "complete_step" else s.refused)(step_epoch=1)


@case(*TAKERS)
def the_taker_of_a_step_that_is_on_offer_again_may_complete_and_nothing_else(s: Scene) -> None:
    s.make(lambda: by_taker(s))
    s.first(offering.GIVE_BACK, s.run)
    (s.lands if s.statement.name == "complete_step" else s.refused)()


@case(*TAKERS)
def a_step_that_has_ended_hears_no_more(s: Scene) -> None:
    s.make(lambda: by_taker(s))
    for status in ("completed", "failed"):
        s.set("steps", s.run, status=status, finished_at="=now()")
        s.refused()
        s.refused(step_epoch=None, token_digest=token(s.run))


@case(*TAKERS)
def a_step_of_which_it_was_said_that_it_did_not_happen_hears_no_more(s: Scene) -> None:
    """It keeps its epoch and its token, which an operator's word does not take away."""
    s.make(lambda: by_taker(s))
    s.set("steps", s.run, status="not_applied")
    s.refused()
    s.refused(step_epoch=None, token_digest=token(s.run))


@case(BY_OPERATOR)
def an_operator_speaks_of_the_take_that_was_looked_at(s: Scene) -> None:
    s.make(lambda: by_taker(s))
    s.refused(step_epoch=2)
    s.first(offering.GIVE_BACK, s.run)
    s.refused()


@case("ask_again_about_step")
def nobody_is_sent_to_ask_what_cannot_be_asked(s: Scene) -> None:
    s.make(lambda: taken(s, effect=WRITE))
    s.refused()


@case("interrupt_step")
def only_a_write_that_nobody_may_repeat_is_interrupted(s: Scene) -> None:
    s.make(lambda: lapsed(s, effect=Effect.IDEMPOTENT_WRITE))
    s.refused()
    s.refused(mine="yes")


@case("interrupt_step")
def a_taker_that_lives_interrupts_its_write_itself(s: Scene) -> None:
    s.make(lambda: taken(s, effect=WRITE))
    s.refused()
    s.lands(mine="yes")


@case("beat_step")
def a_step_that_was_given_up_takes_no_beats(s: Scene) -> None:
    s.make(lambda: taken(s, effect=WRITE))
    s.first(ending.INTERRUPT, s.run, mine="yes")
    s.refused()


# ---- what runs leave behind

SHELVES = ("shelve_offered", "shelve_external", "shelve_lost")


def left(s: Scene) -> UUID:
    """A run whose two steps nobody will do, once it is over."""
    s.given = {"queue": "gpu", "limit": 10}
    match s.statement.name:
        case "shelve_offered":
            return asked(s)
        case "shelve_external":
            return asked(s, "external")
        case _:
            return lapsed(s)


@case(*SHELVES)
def the_steps_of_a_run_that_is_over_are_put_aside_and_those_of_others_are_not(s: Scene) -> None:
    s.make(lambda: left(s))
    others = [left(s), left(s)]
    s.others += others
    s.set("runs", others[1], namespace="another")
    ended(s, others[1])
    s.refused()
    ended(s, s.run)
    assert {(row["run_id"], row["key"]) for row in s.do()} == {(s.run, key) for key in KEYS}
    assert [s.step_of(s.run, key)["status"] for key in KEYS] == ["redo", "redo"]
    for other in others:
        assert "redo" not in [s.step_of(other, key)["status"] for key in KEYS]


@case(*SHELVES)
def no_more_are_put_aside_than_were_looked_at(s: Scene) -> None:
    s.run = left(s)
    ended(s, s.run)
    assert len(s.do(limit=1)) == 1
    assert sorted(s.step_of(s.run, key)["status"] == "redo" for key in KEYS) == [False, True]


@case(*SHELVES)
def what_has_ended_or_is_done_here_is_not_put_aside(s: Scene) -> None:
    s.make(lambda: left(s))
    ended(s, s.run)
    s.set("steps", s.run, kind="write")
    s.refused()
    s.set("steps", s.run, kind="remote", status="completed", finished_at="=now()", seq=1)
    s.refused()


@case("shelve_offered")
def only_the_queue_that_is_meant_is_tidied(s: Scene) -> None:
    s.make(lambda: left(s))
    ended(s, s.run)
    s.refused(queue="cpu")


@case("shelve_external")
def what_has_a_queue_is_not_external(s: Scene) -> None:
    s.make(lambda: left(s))
    ended(s, s.run)
    s.set("steps", s.run, queue="gpu")
    s.refused()


@case("shelve_lost")
def a_write_in_flight_and_a_living_taker_are_left(s: Scene) -> None:
    s.make(lambda: lapsed(s, effect=WRITE))
    s.given = {"limit": 10}
    ended(s, s.run)
    s.refused()
    s.set("steps", s.run, effect="read_only", lease_expires_at="=now() + interval '1 h'")
    s.refused()
    s.set("steps", s.run, effect=str(WRITE), reconcilable=True, lease_expires_at="=now() - interval '1 s'")
    s.refused()
    s.set("steps", s.run, effect="idempotent_write")
    assert len(s.do()) == len(KEYS)
