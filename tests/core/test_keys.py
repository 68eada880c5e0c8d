"""Positions of steps: the same at every pass, whatever order the branches of a body end in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrun.core.errors import BodyError
from agentrun.runtime.keys import BRANCH, Branch, branching_tasks, key_for

Keys = dict[str, str]
Body = Callable[[], Coroutine[Any, Any, None]]


def run(body: Body) -> None:
    async def root() -> None:
        asyncio.get_running_loop().set_task_factory(branching_tasks)
        BRANCH.set(Branch())
        await body()

    asyncio.run(root())


async def pause(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def test_steps_of_one_line_are_counted() -> None:
    keys: list[str] = []

    async def body() -> None:
        keys.extend([key_for(None), key_for("mine"), key_for(None)])

    run(body)
    assert keys == ["#1", "mine", "#2"]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_branches_are_numbered_by_creation_not_by_their_end(first: int) -> None:
    keys: Keys = {}

    async def branch(name: str, turns: int) -> None:
        keys[f"{name} begins"] = key_for(None)
        await pause(turns)
        keys[f"{name} ends"] = key_for(None)

    async def body() -> None:
        turns = [5, 5, 5]
        turns[first] = 0
        await asyncio.gather(*(branch(name, each) for name, each in zip("abc", turns, strict=True)))
        keys["after"] = key_for(None)

    run(body)
    assert keys == {
        "a begins": "#1.1", "a ends": "#1.2", "b begins": "#2.1", "b ends": "#2.2",
        "c begins": "#3.1", "c ends": "#3.2", "after": "#1",
    }  # fmt: skip


def test_tasks_of_tasks_are_branches_of_branches() -> None:
    keys: Keys = {}

    async def leaf(name: str) -> None:
        keys[name] = key_for(None)

    async def middle() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leaf("one"))
            group.create_task(leaf("two"))
        keys["middle"] = key_for(None)

    async def body() -> None:
        task = asyncio.create_task(middle())
        keys["root"] = key_for(None)
        await task

    run(body)
    assert keys == {"one": "#1.1.1", "two": "#1.2.1", "middle": "#1.1", "root": "#1"}


def test_a_position_is_taken_when_the_step_is_called_not_when_it_is_awaited() -> None:
    """`ctx.gather(ctx.step(f), ctx.step(g))`: both are steps of the line that wrote them."""
    keys: list[str] = []

    def step() -> Coroutine[Any, Any, None]:
        keys.append(key_for(None))
        return pause(1)

    async def body() -> None:
        await asyncio.gather(step(), step())

    run(body)
    assert keys == ["#1", "#2"]


def test_a_step_outside_a_body_is_refused() -> None:
    with pytest.raises(BodyError, match="inside another step, or outside its body"):
        key_for(None)


@pytest.mark.parametrize("key", ["", "#1", "#", "k" * 201])
def test_a_key_that_could_be_a_position_is_refused(key: str) -> None:
    async def body() -> None:
        with pytest.raises(BodyError, match="must not start with '#'"):
            key_for(key)

    run(body)


def test_tasks_that_no_body_made_stay_outside() -> None:
    async def outside() -> None:
        asyncio.get_running_loop().set_task_factory(branching_tasks)
        assert await asyncio.create_task(_branch()) is None

    asyncio.run(outside())


async def _branch() -> Branch | None:
    return BRANCH.get()


# A body as a tree: a number is so many steps in a row, a list is a gather of such bodies.
lines = st.recursive(
    st.lists(st.integers(1, 2), min_size=1, max_size=3),
    lambda inner: st.lists(st.integers(1, 2) | st.tuples(inner, inner) | st.tuples(inner), min_size=1, max_size=3),
    max_leaves=6,
)


async def perform(line: Any, name: str, keys: Keys, chance: random.Random) -> None:
    for place, item in enumerate(line):
        here = f"{name}/{place}"
        if isinstance(item, int):
            for step in range(item):
                await pause(chance.randrange(4))
                keys[f"{here}.{step}"] = key_for(None)
                await pause(chance.randrange(4))
        else:
            await asyncio.gather(
                *(perform(inner, f"{here}[{number}]", keys, chance) for number, inner in enumerate(item))
            )


@given(lines, st.integers(0, 2**32), st.integers(0, 2**32))
def test_keys_do_not_depend_on_the_order_in_which_branches_run(line: Any, first: int, second: int) -> None:
    passes: list[Keys] = []
    for seed in (first, second):
        keys: Keys = {}
        run(lambda keys=keys, seed=seed: perform(line, "", keys, random.Random(seed)))
        passes.append(keys)
    assert passes[0] == passes[1]
    assert len(set(passes[0].values())) == len(passes[0]), "two steps share a key"
