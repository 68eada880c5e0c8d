"""The worker's side: what it takes, when it says that it lives, and what it leaves to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Context, Effect, InvalidRequest, current_step, durable, remote_step
from agentrun.core.outcome import LeaseLost
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.remotesteps import remote_steps
from agentrun.runtime.taking import run_step
from agentrun.testing import until
from tests.remote.conftest import Doing, Here

pytestmark = pytest.mark.usefixtures("bodies")


def test_a_step_that_this_process_lacks_is_left_to_others_and_costs_no_try(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 2})
    known = remote_steps.snapshot()
    remote_steps.restore({})
    assert here.take(run_id) == "elsewhere"
    assert (here.step(run_id).status, here.step(run_id).attempt) == ("offered", 1)
    here.sql("UPDATE agentrun.steps SET due_at = now() - interval '1 minute' WHERE run_id = %s", run_id)
    here.sweep()
    assert "redispatch" in [offer.cause for offer in here.offers()], "its message was used up: there is another"
    remote_steps.restore(known)
    assert here.take(run_id) == "completed"
    assert here.step(run_id).attempt == 1


def test_a_step_of_another_namespace_is_not_taken(here: Here, make_engine: Callable[..., Engine]) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 2})
    other = make_engine(settings=here.client.settings.model_copy(update={"namespace": "other"}))
    here.offers()
    assert other.run_step(run_id, here.step(run_id).key).outcome == "unknown"
    assert here.step(run_id).status == "offered"
    assert [offer.cause for offer in here.offers()] == ["hand on"], "two namespaces may consume one queue"


def test_picking_a_step_up_is_one_write_and_ending_it_another(here: Here) -> None:
    """A fan of thousands costs no extra reads or writes; the lease is renewed for all steps of a process at once."""
    run_id = here.parked("fan", list(range(20)))
    before = here.engine.writer.writes
    for offer in here.offers():
        assert here.take(run_id, offer.step_key) == "completed"
    assert here.engine.writer.writes - before == 40


def test_offering_a_step_is_one_write(here: Here) -> None:
    before = here.engine.writer.writes
    here.parked("fan", list(range(20)))
    assert here.engine.writer.writes - before == 20 + 2, "its claim, a write for each offer, and the parking"


def test_its_worker_renews_the_lease_of_a_step_by_itself(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held", "input": 1})
    taking = here.taking(run_id)
    assert doing.began.wait(10)
    here.sql("UPDATE agentrun.steps SET lease_expires_at = now() + interval '1 ms' WHERE run_id = %s", run_id)
    here.engine.heartbeat.beat()
    assert here.sweep().redispatched == 0
    doing.go_on.set()
    assert taking.result(10).outcome == "completed"


# ---- explicit beats


def test_beats_are_stored_at_most_once_per_half_window(here: Here) -> None:
    """The trigger counts updates: a hot loop of beats is no storm of writes. The last word is never lost."""

    @remote_step("chatty", effect=Effect.READ_ONLY)
    def chatty() -> int:
        for number in range(500):
            current_step().heartbeat({"done": number})
        until(lambda: here.step(run_id).progress == {"done": 499}, 5)
        return 500

    run_id = here.parked("asks", {"step": "chatty", "timeout": 0.4})
    before = here.engine.writer.writes
    assert here.take(run_id) == "completed"
    assert here.engine.writer.writes - before <= 2 + 2
    assert here.step(run_id).progress == {"done": 499}


def test_a_step_that_beats_in_each_window_outlives_its_timeout(here: Here) -> None:
    """And once it falls silent, its silence counts from when it last spoke."""

    @remote_step("long", effect=Effect.READ_ONLY)
    def long() -> str:
        began = here.step(run_id).due_at
        assert began is not None

        def moved() -> bool:
            current_step().heartbeat()
            due = here.step(run_id).due_at
            return due is not None and due > began

        until(moved, 5)
        assert here.sweep().steps_given_up == 0
        return "done"

    run_id = here.parked("asks", {"step": "long", "timeout": 0.5})
    assert here.take(run_id) == "completed"


def test_a_beat_that_is_no_json_is_refused_in_the_step(here: Here) -> None:
    @remote_step("odd", effect=Effect.READ_ONLY)
    def odd() -> None:
        current_step().heartbeat(object())

    run_id = here.parked("asks", {"step": "odd"})
    assert here.take(run_id) == "failed"
    assert here.failure(run_id) == "TypeError"


# ---- draining


def test_a_draining_worker_offers_its_step_again_at_its_next_beat(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held", "input": 1})
    taking = here.taking(run_id)
    assert doing.began.wait(10)
    here.offers()
    here.engine.drain(within=30)
    doing.go_on.set()
    assert taking.result(10).outcome == "handed_back"
    step = here.step(run_id)
    assert (step.status, step.attempt, step.redispatch_count) == ("offered", 1, 0)
    assert [offer.cause for offer in here.offers()] == ["hand back"]


def test_a_draining_worker_finishes_a_write_that_nobody_may_repeat(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held-charge", "input": 1})
    taking = here.taking(run_id)
    assert doing.began.wait(10)
    here.engine.drain(within=0)
    doing.go_on.set()
    assert taking.result(10).outcome == "completed"


# ---- what is refused before anything is stored


def test_an_input_that_does_not_fit_is_refused_before_anything_is_offered(here: Here) -> None:
    run_id = here.client.enqueue("asks", {"step": "double", "input": "two"})
    assert here.engine.run(run_id).outcome == "failed"
    assert list(here.client.steps(run_id)) == []
    with pytest.raises(InvalidRequest, match="double"):
        remote_steps.require("double").encode_input("two")


def test_an_input_that_is_too_large_is_refused_before_anything_is_offered(here: Here, kinds: Registry) -> None:
    @durable("large")
    async def large(ctx: Context) -> Any:
        return await ctx.remote("theirs", "x" * 1_000_000)

    run_id = here.client.enqueue("large")
    assert here.failure(run_id) == "agentrun.core.errors.TooLarge"
    assert list(here.client.steps(run_id)) == []


def test_a_step_that_is_registered_nowhere_near_its_body_is_offered_by_name(here: Here) -> None:
    """Another team's service: its effect is unknown here, so it is taken for the worst."""
    run_id = here.parked("asks", {"step": "theirs", "input": {"any": 1}, "queue": "their-queue"})
    step = here.step(run_id)
    assert (step.name, step.queue, step.effect) == ("theirs", "their-queue", "non_idempotent_write")


def test_what_the_taker_declares_counts(here: Here) -> None:
    run_id = here.parked("asks", {"step": "theirs", "input": 1})

    @remote_step("theirs", effect=Effect.READ_ONLY)
    async def theirs(item: int) -> int:
        return item

    assert here.take(run_id) == "completed"
    assert here.step(run_id).effect == "read_only"


def test_a_fan_that_fails_fast_leaves_its_other_steps(here: Here, kinds: Registry) -> None:
    @durable("fast")
    async def fast(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.remote("theirs", 1), ctx.remote("double", 1), on_failure="fail_fast")
        except Exception as error:
            return type(error).__name__
        return "no failure"

    run_id = here.parked("fast")
    first = next(offer for offer in here.offers() if offer.kind == "theirs")

    @remote_step("theirs", effect=Effect.READ_ONLY)
    async def theirs(_item: int) -> None:
        raise ValueError("no")

    assert here.take(run_id, first.step_key) == "failed"
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == "StepFailed"


def test_a_take_that_lost_its_connection_belongs_to_that_take_alone(here: Here) -> None:
    """Not to a process of the same name: process ids repeat."""
    run_id = here.parked("asks", {"step": "charge", "input": 1})
    here.taken_by_the_dead(run_id)
    here.sql("UPDATE agentrun.steps SET by = %s, lease_expires_at = now() + interval '1 hour'", _owner(here))
    assert here.take(run_id) == "busy"


def _owner(here: Here) -> Any:
    return f"worker:{here.engine.owner_suffix}"


async def test_what_a_taker_says_is_not_abandoned_with_the_lease_of_a_segment(here: Here) -> None:
    """Both may be of one process: the segment's writes are dropped with its lease, the step's result is not."""
    run_id = here.parked("asks", {"step": "double", "input": 1})

    async def both() -> str:
        taking = asyncio.ensure_future(run_step(here.engine, run_id, here.step(run_id).key))
        while not taking.done():
            here.engine.writer.abandon(run_id, LeaseLost())
            await asyncio.sleep(0)
        return str(taking.result().outcome)

    assert await asyncio.wrap_future(here.engine.submit(both())) == "completed"
