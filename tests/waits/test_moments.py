"""An answer at every moment around parking: applied once, and its run completes. Barriers, no time that passes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Status, durable
from agentrun.runtime.engine import Engine
from agentrun.store import waits
from agentrun.store.batches import Rows as Answer
from agentrun.store.batches import Write
from agentrun.store.births import CHILD_BORN
from agentrun.store.writer import Writer
from agentrun.testing import until
from tests.waits.conftest import Go

BORN = (waits.REGISTER.name, CHILD_BORN.name)


class Moment(StrEnum):
    """Where in the first segment the answer comes."""

    BEFORE_CLAIM = "before the claim"
    BEFORE_REGISTER = "before the wait is registered"
    AFTER_REGISTER = "between the registering and the parking"
    IN_PARK = "sent before the parking, committed after"
    AFTER_PARK = "after the parking"


class Interrupted(Writer):
    """A journal writer that lets a test act just before or just after one of its statements."""

    def __init__(self, url: str, moment: Moment, act: Callable[[UUID], None]) -> None:
        super().__init__(url, name="agentrun interrupted")
        self._moment, self._act, self.acted = moment, act, False

    async def write(self, write: Write) -> Answer:
        name = write.statement.name
        if name in BORN and self._moment is Moment.BEFORE_REGISTER:
            self._now(write.run_id)
        if name == waits.PARK.name and self._moment is Moment.IN_PARK:
            self._now(write.run_id)
        rows = await super().write(write)
        if name in BORN and self._moment is Moment.AFTER_REGISTER:
            self._now(write.run_id)
        if name == waits.PARK.name and self._moment is Moment.AFTER_PARK and rows:
            self._now(write.run_id)
        return rows

    def _now(self, run_id: UUID) -> None:
        # In another thread, since the client is synchronous; the loop stands still until it has committed.
        if not self.acted:
            self.acted = True
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self._act, run_id).result(20)


Meet = Callable[[UUID, Moment, Callable[[UUID], None]], None]


@pytest.fixture
def meet(make_engine: Callable[..., Engine]) -> Meet:
    """Executes a run's first segment and acts at the moment."""

    def execute(run_id: UUID, moment: Moment, act: Callable[[UUID], None]) -> None:
        engine = make_engine()
        writer = engine.writer = Interrupted(engine.database.url, moment, act)
        if moment is Moment.BEFORE_CLAIM:
            act(run_id)
            writer.acted = True
        engine.run(run_id)
        assert writer.acted

    return execute


def resolved(client: Client, run_id: UUID) -> int:
    return [event.type for event in client.events(run_id)].count("resolved")


def test_a_signal_at_any_moment_is_taken_once(client: Client, meet: Meet, go: Go) -> None:
    @durable("listen")
    async def listen(ctx: Context) -> list[Any]:
        return [await ctx.signal("go"), await ctx.signal("go", timeout=0, default="no second one")]

    for moment in Moment:
        run_id = client.enqueue("listen")
        meet(run_id, moment, lambda run_id: client.signal(run_id, "go", 1) and None)
        run = go(run_id)
        if run.status is Status.WAITING:
            _time_passes(client, run_id)
            run = go(run_id)
        assert (run.status, run.result) == (Status.COMPLETED, [1, "no second one"]), moment


def _time_passes(client: Client, run_id: UUID) -> None:
    engine = client._engine()  # pyright: ignore[reportPrivateUsage]
    engine.end_due_waits(run_id)


DECIDED = (Moment.AFTER_REGISTER, Moment.IN_PARK, Moment.AFTER_PARK)


def test_a_decision_at_any_moment_is_applied_once(client: Client, meet: Meet, go: Go) -> None:
    @durable("ask")
    async def ask(ctx: Context) -> list[Any]:
        said = await ctx.approval("sure?")
        return [said.approved, said.by]

    for moment in DECIDED:
        run_id = client.enqueue("ask")
        meet(run_id, moment, lambda run_id: client.approve(run_id, by="ann") and None)
        run = go(run_id)
        assert (run.status, run.result) == (Status.COMPLETED, [True, "ann"]), moment
        assert resolved(client, run_id) == 1, moment
        assert run.epoch == (2 if moment is Moment.AFTER_PARK else 1), "a run that cannot park goes on at once"


def test_a_cancel_at_any_moment_ends_the_run(client: Client, meet: Meet, go: Go) -> None:
    @durable("stay")
    async def stay(ctx: Context) -> Any:
        return await ctx.signal("go")

    for moment in set(Moment) - {Moment.BEFORE_CLAIM}:
        run_id = client.enqueue("stay")
        meet(run_id, moment, lambda run_id: client.cancel(run_id) and None)
        assert client.status(run_id).status is Status.CANCELLED, moment


def test_a_child_that_ends_at_any_moment_is_heard_of_once(
    client: Client, meet: Meet, go: Go, make_engine: Callable[..., Engine]
) -> None:
    other = make_engine()

    @durable("quick")
    async def quick(ctx: Context) -> str:
        return "done"

    @durable("parent")
    async def parent(ctx: Context) -> str:
        return await ctx.child("quick")

    def end(run_id: UUID) -> None:
        (child,) = client.list(parent=run_id)
        other.run(child.id)
        assert client.status(child.id).status is Status.COMPLETED

    for moment in DECIDED:
        run_id = client.enqueue("parent")
        meet(run_id, moment, end)
        run = go(run_id)
        assert (run.status, run.result) == (Status.COMPLETED, "done"), moment
        assert resolved(client, run_id) == 1, moment


def test_a_timer_that_is_due_at_any_moment_ends_once(
    client: Client, meet: Meet, go: Go, sweep: Callable[[], Any], travel: Any
) -> None:
    @durable("doze")
    async def doze(ctx: Context) -> str:
        await ctx.sleep(3600)
        return "rested"

    def due(run_id: UUID) -> None:
        travel.past_due(run_id)
        sweep()

    for moment in DECIDED:
        run_id = client.enqueue("doze")
        meet(run_id, moment, due)
        run = go(run_id)
        assert (run.status, run.result) == (Status.COMPLETED, "rested"), moment
        assert resolved(client, run_id) == 1, moment


def test_an_answer_to_one_branch_while_the_other_still_works_goes_on_with_its_own_branch(
    client: Client, go: Go, engine: Engine
) -> None:
    """The run is executing at that moment: nothing is lost, nothing waits for a sweep."""
    told: list[UUID] = []

    def answer(run_id: str) -> str:
        (asked,) = until(lambda: client.waits(run_id))
        client.approve(run_id, by="ann", key=asked["step_key"])
        told.append(UUID(run_id))
        return "worked"

    @durable("two-branches")
    async def two(ctx: Context) -> list[Any]:
        async def slow() -> str:
            await ctx.options(key="apart").step(answer, str(ctx.run_id))
            return "slow"

        async def asking() -> list[Any]:
            said = await ctx.approval("sure?")
            return [said.by, await ctx.step(_after)]

        return await ctx.gather(asking(), slow())

    run_id = client.enqueue("two-branches")
    run = go(run_id)
    assert (run.status, run.result) == (Status.COMPLETED, [["ann", "after"], "slow"])
    assert told == [run_id]
    assert run.epoch == 1


async def _after() -> str:
    return "after"


def test_each_of_several_answers_goes_on_with_its_own_branch_in_any_order(client: Client, go: Go) -> None:
    @durable("three")
    async def three(ctx: Context) -> list[Any]:
        async def branch(name: str) -> list[Any]:
            said = await ctx.signal(name)
            again = await ctx.signal(name)
            return [name, said, again]

        return await ctx.gather(*[branch(name) for name in "abc"])

    run_id = client.enqueue("three")
    for number, name in enumerate("cabbca"):
        assert go(run_id).status is Status.WAITING
        client.signal(run_id, name, number)
    assert go(run_id).result == [["a", 1, 5], ["b", 2, 3], ["c", 0, 4]]
    assert [event.type for event in client.events(run_id)].count("parked") == 6
