"""Death at every commit of suspend, decide, resume, step and settle: no decision is lost or asked for twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Effect, Status, current_step, durable, effect
from agentrun.core.words import EventType
from agentrun.runtime.engine import Engine
from agentrun.testing import RecordingPublisher
from agentrun.testing.crash import Crash, CrashSweep, Death, Story, When
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked


class WaitingSweep(CrashSweep):
    """A crash sweep whose runs wait: what they ask is answered, once, whenever they are found waiting."""

    def __init__(self, *parts: Any, answer: Callable[[UUID], None]) -> None:
        super().__init__(*parts)
        self._answer = answer

    def _survived(self, run_id: UUID, commit: int, when: When, *, died: bool) -> Story:
        at_death = {step.key: step for step in self._client.steps(run_id) if step.status == "completed"}
        self._crash.requeue(run_id)
        for _ in range(20):
            run = self._client.status(run_id)
            if run.status.final:
                break
            if run.status is Status.WAITING:
                self._answer(run_id)
            else:
                self._rows.make_due(run_id)
                self._survivor.run(run_id)
        steps = {step.key: step for step in self._client.steps(run_id)}
        assert {key: steps[key] for key in at_death} == at_death
        return Story(when, commit, self._client.status(run_id), steps, self._client.events(run_id), at_death)


Sweeps = Callable[..., Iterator[Story]]


@pytest.fixture
def sweeps(crash: Crash, client: Client, rows: Rows, engine: Engine) -> Sweeps:
    def over(start: Callable[[], UUID], answer: Callable[[UUID], None]) -> Iterator[Story]:
        return WaitingSweep(crash, client, rows, engine, answer=answer)(start)

    return over


@pytest.fixture
def paid(client: Client) -> Counter[str]:
    """How often each run's payment was executed."""
    counted: Counter[str] = Counter()

    @effect(Effect.IDEMPOTENT_WRITE)
    async def pay(amount: int) -> int:
        counted[str(current_step().run_id)] += 1
        return amount

    @durable("buy")
    async def buy(ctx: Context) -> list[Any]:
        said = await ctx.approval("buy?", payload={"amount": 5})
        spent = await ctx.write(pay, said.payload["amount"])
        return [said.by, spent]

    return counted


def test_a_decision_is_asked_for_once_wherever_the_process_dies_while_it_parks(
    client: Client, sweeps: Sweeps, paid: Counter[str]
) -> None:
    asked: Counter[UUID] = Counter()

    def answer(run_id: UUID) -> None:
        asked[run_id] += 1
        client.approve(run_id, by="ann")

    seen = Counter[When]()
    for story in sweeps(lambda: client.enqueue("buy"), answer):
        seen[story.when] += 1
        _applied_once(story, paid)
        assert asked[story.run.id] == 1, story
    assert min(seen.values()) >= 3
    assert len(seen) == 3


def test_a_decision_is_not_lost_wherever_the_process_dies_that_goes_on_from_it(
    client: Client, sweeps: Sweeps, paid: Counter[str], parked: Parked
) -> None:
    def start() -> UUID:
        run_id = parked("buy")
        client.approve(run_id, by="ann")
        return run_id

    def answer(run_id: UUID) -> None:
        raise AssertionError(f"run {run_id} asks again")

    seen = Counter[When]()
    for story in sweeps(start, answer):
        seen[story.when] += 1
        _applied_once(story, paid, at_most=2 if story.when is When.AFTER else 1)
    assert min(seen.values()) >= 3
    assert len(seen) == 3


def _applied_once(story: Story, paid: Counter[str], at_most: int = 1) -> None:
    assert (story.run.status, story.run.result) == (Status.COMPLETED, ["ann", 5]), story
    told = [event.type for event in story.events]
    assert told.count(EventType.RESOLVED) == 1, (str(story), told)
    assert told.count(EventType.SETTLED) == 1, (str(story), told)
    assert 1 <= paid[str(story.run.id)] <= at_most + (story.when is When.BEFORE), story


def test_a_decision_whose_process_dies_before_its_wake_is_kept_and_its_run_woken_by_the_sweep(
    client: Client,
    paid: Counter[str],
    parked: Parked,
    go: Go,
    rows: Rows,
    sweep: Callable[[], Any],
    publisher: RecordingPublisher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(*_: object) -> None:
        raise Death

    run_id = parked("buy")
    with monkeypatch.context() as patch:
        patch.setattr(client.answers, "_wake", dies)
        with pytest.raises(Death):
            client.approve(run_id, by="ann")
    assert client.status(run_id).status is Status.QUEUED
    rows.make_due(run_id)
    sweep()
    assert publisher.causes(run_id)[-1] == "sweep"
    assert go(run_id).result == ["ann", 5]
    assert paid[str(run_id)] == 1


def test_children_and_their_results_survive_a_death_at_every_commit_of_the_parent(
    client: Client, sweeps: Sweeps, go: Go
) -> None:
    @durable("double")
    async def double(ctx: Context, value: int) -> int:
        return 2 * value

    @durable("parent")
    async def parent(ctx: Context) -> list[int]:
        return await ctx.gather(*[ctx.child("double", value) for value in range(3)])

    def answer(run_id: UUID) -> None:
        for child in client.list(parent=run_id, status="queued"):
            go(child.id)

    for story in sweeps(lambda: client.enqueue("parent"), answer):
        assert story.run.result == [0, 2, 4], story
        children = client.list(parent=story.run.id)
        assert [child.status for child in children] == [Status.COMPLETED] * 3, story


def test_a_chain_of_continuations_breaks_at_no_commit(client: Client, sweeps: Sweeps, go: Go, rows: Rows) -> None:
    @durable("endless")
    async def endless(ctx: Context, left: int) -> str:
        await ctx.now()
        if left:
            ctx.continue_as_new(left - 1)
        return "the end"

    def answer(run_id: UUID) -> None:
        raise AssertionError(run_id)

    for story in sweeps(lambda: client.enqueue("endless", 1), answer):
        assert story.run.status is Status.COMPLETED, story
        with rows.database.connection() as connection:
            asked = connection.execute("SELECT id FROM agentrun.runs WHERE continued_from = %s", [story.run.id])
            (following,) = asked.fetchall()
        assert go(following["id"]).result == "the end", story


def test_a_parent_hears_of_its_child_wherever_the_childs_process_dies(
    client: Client, sweeps: Sweeps, go: Go, parked: Parked, publisher: RecordingPublisher
) -> None:
    """The child's answer may be lost with the connection: its parent is woken all the same."""
    parents: dict[UUID, UUID] = {}

    @durable("double")
    async def double(ctx: Context, value: int) -> int:
        return 2 * await ctx.step(_same, value)

    @durable("parent")
    async def parent(ctx: Context) -> int:
        return await ctx.child("double", 4)

    def start() -> UUID:
        run_id = parked("parent")
        (child,) = client.list(parent=run_id)
        parents[child.id] = run_id
        return child.id

    for story in sweeps(start, _never_asked):
        above = parents[story.run.id]
        assert client.status(above).status is Status.QUEUED, story
        if story.when is When.LOST:
            assert publisher.causes(above)[-1] == "child", story
        assert go(above).result == 8, story


def test_a_chain_that_is_a_child_answers_its_parent_wherever_a_link_dies(
    client: Client, sweeps: Sweeps, go: Go, parked: Parked
) -> None:
    parents: dict[UUID, UUID] = {}

    @durable("link")
    async def link(ctx: Context, left: int) -> str:
        if left:
            ctx.continue_as_new(left - 1)
        return "the end"

    @durable("parent")
    async def parent(ctx: Context) -> str:
        return await ctx.child("link", 1)

    def start() -> UUID:
        run_id = parked("parent")
        (child,) = client.list(parent=run_id)
        parents[child.id] = run_id
        return child.id

    for story in sweeps(start, _never_asked):
        above = parents[story.run.id]
        assert client.status(above).status is Status.WAITING, story
        (last,) = client.list(parent=above, status="queued")
        go(last.id)
        assert go(above).result == "the end", story


async def _same(value: int) -> int:
    return value


def _never_asked(run_id: UUID) -> None:
    raise AssertionError(f"run {run_id} waits")
