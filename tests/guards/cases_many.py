"""Cases of the statements for many rows: each row is answered by itself, and no run is waited for in vain.

Every case of the statement for one row is played for these as well; see `mutants.ALONE`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

from agentrun.core.words import Effect, Status
from agentrun.store import journal, offering, taking
from tests.guards.cases_remote import KEYS, asked, offer, taken, taker, token
from tests.guards.scene import Scene, case

ALL = (
    "claim_many", "settle_completed_many", "record_many", "fence_many", "finish_many", "offer_steps", "take_steps",
    "complete_steps",
)  # fmt: skip


def keys(s: Scene, run_id: UUID) -> list[str]:
    return [step["key"] for step in s.rows.stored(run_id)["steps"]]


@case("record_many")
def each_step_is_recorded_in_its_own_run_and_refused_by_itself(s: Scene) -> None:
    first, second = s.make(s.rows.running), s.make(s.rows.running)
    for run_id, key in ((first, "same"), (second, "b0")):
        assert s.rows.do(journal.RECORD, run_id, **s.rows.step(key))
    told = [(first, "same"), (first, "a1"), (second, "b0"), (second, "same"), (second, "b1")]
    answer = s.do_many([{"run_id": run_id, "key": key} for run_id, key in told])
    assert {(row["run_id"], row["key"]) for row in answer} == {told[1], told[3], told[4]}, "what had ended is refused"
    assert (keys(s, first), keys(s, second)) == (["a1", "same"], ["b0", "b1", "same"])


@case("fence_many")
def each_write_starts_in_its_own_run_and_is_refused_by_itself(s: Scene) -> None:
    first, second = s.make(lambda: s.rows.fenced("w")), s.make(s.rows.running)
    told = [(first, "w"), (first, "a"), (second, "w"), (second, "b")]
    answer = s.do_many([{"run_id": run_id, "key": key} for run_id, key in told])
    assert {(row["run_id"], row["key"]) for row in answer if row["key"]} == {*told[1:]}
    assert {row["nth"] for row in answer if not row["key"]} == {0, 1, 2, 3}, "the runs are held"
    assert (keys(s, first), keys(s, second)) == (["a", "w"], ["b", "w"])


@case("finish_many")
def each_write_ends_in_its_own_run_and_leaves_the_fence_of_others(s: Scene) -> None:
    first, second, third = (s.make(lambda: s.rows.fenced("w")) for _ in range(3))
    for run_id in (first, second):
        s.rows.fence(run_id, "x", Effect.IDEMPOTENT_WRITE)
    told = [(first, "w"), (second, "x"), (third, "w"), (third, "none")]
    answer = s.do_many([{"run_id": run_id, "key": key} for run_id, key in told])
    assert sorted((row["run_id"], row["key"]) for row in answer) == sorted(told[:3])
    pending = [s.rows.pending_effect(run_id) for run_id in (first, second, third)]
    assert pending == ["idempotent_write", "non_idempotent_write", None]


@case("claim_many", "settle_completed_many")
def each_run_is_moved_under_its_own_number(s: Scene) -> None:
    free, busy = (s.rows.queued, s.rows.running) if s.statement.name == "claim" else (s.rows.running, s.rows.queued)
    runs = [free(), busy(), free()]
    answer = {row["nth"]: row["id"] for row in s.do_many([{"run_id": run_id} for run_id in runs])}
    assert answer == {0: runs[0], 2: runs[2]}


@case("offer_steps")
def each_step_is_offered_in_its_own_run_and_refused_by_itself(s: Scene) -> None:
    first, second = s.make(s.rows.running), s.make(s.rows.running)
    s.first(offering.OFFER, first, **offer("w"))
    s.set("waits", first, status="resolved", resolved_at="=now()")
    told = [(first, "w"), (first, "a"), (second, "w"), (second, "a")]
    answer = s.do_many([{"run_id": run_id} | offer(key) for run_id, key in told])
    assert sorted((row["nth"], row["run_id"], row["step_key"]) for row in answer) == [
        (nth, *told[nth]) for nth in (1, 2, 3)]  # fmt: skip
    assert (keys(s, first), keys(s, second)) == (["a", "w"], ["a", "w"])
    assert {row["step_key"]: row["status"] for row in s.stored(first)[3]} == {"w": "resolved", "a": "open"}


@case("take_steps")
def each_step_is_taken_under_its_own_token_and_refused_by_itself(s: Scene) -> None:
    runs = [s.make(lambda: asked(s)) for _ in range(2)]
    s.first(taking.TAKE, runs[0], key="other", **taker(), token_digest="taken before")
    told = [(run_id, key) for run_id in runs for key in KEYS]
    rows = [{"run_id": run_id, "key": key, "token_digest": token(run_id, key)} for run_id, key in told]
    answer = s.do_many([row | taker() for row in rows])
    assert sorted((row["nth"], row["run_id"], row["key"]) for row in answer) == [
        (nth, *told[nth]) for nth in (0, 2, 3)]  # fmt: skip
    taken_by = [s.step_of(run_id, key)["token_digest"] for run_id, key in told]
    assert taken_by == [token(runs[0], "w"), "taken before", token(runs[1], "w"), token(runs[1], "other")]


@case("complete_steps")
def each_step_has_its_own_result_and_each_run_is_woken_once(s: Scene) -> None:
    runs = [s.make(lambda: taken(s)) for _ in range(2)]
    told = [(run_id, key) for run_id in runs for key in KEYS]
    answer = s.do_many([{"run_id": run_id, "key": key, "result": str(nth)} for nth, (run_id, key) in enumerate(told)])
    assert sorted((row["nth"], row["id"], row["status"] or "") for row in answer) == [
        (0, runs[0], "waiting"), (1, runs[0], ""), (2, runs[1], "waiting"), (3, runs[1], "")]  # fmt: skip
    assert [s.step_of(run_id, key)["result"] for run_id, key in told] == ["0", "1", "2", "3"]
    for run_id in runs:
        heard = [json.loads(move["data"]) for move in s.rows.stored(run_id)["moves"] if move["type"] == "resolved"]
        assert sorted(said["key"] for said in heard) == sorted(KEYS)
        assert (s.row(run_id)["resolutions"], s.row(run_id)["status"]) == (1, "queued")


@contextmanager
def held(s: Scene, run_id: UUID) -> Iterator[None]:
    """Somebody else has locked the run's row."""
    with s.database.transaction() as connection:
        connection.execute("SELECT 1 FROM agentrun.runs WHERE id = %s FOR UPDATE", [run_id])
        yield


def ready(s: Scene) -> tuple[UUID, dict[str, Any]]:
    """A run on which the statement lands, and how."""
    match s.statement.name:
        case "claim":
            return s.rows.queued(), {}
        case "offer_step":
            return s.rows.running(), offer("w")
        case "finish":
            return s.rows.fenced("w"), {}
        case "take_step":
            return asked(s), taker() | {"token_digest": str(uuid4())}
        case "complete_step":
            return taken(s), {}
        case _:
            return s.rows.running(), {}


@case(*ALL)
def nobody_is_waited_for_whose_run_is_not_named(s: Scene) -> None:
    """A row that somebody has locked would hold up the whole batch."""
    unnamed, _ = ready(s)
    s.run, said = ready(s)
    with held(s, unnamed):
        assert s.do(**said)


@case("claim_many", "settle_completed_many", "record_many", "offer_steps")
def nobody_is_waited_for_whose_run_does_not_let_it_land(s: Scene) -> None:
    over = s.rows.final(Status.FAILED)
    s.run, said = ready(s)
    with held(s, over):
        assert len(s.do_many([{"run_id": over} | said, {"run_id": s.run} | said])) == 1
