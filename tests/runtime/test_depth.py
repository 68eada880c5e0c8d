"""What is stored can be read back by whoever has to, however deep it is nested; what cannot is refused before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Client, Context, Status, durable
from agentrun.core.codec import DEEPEST
from agentrun.core.errors import InvalidRequest
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked, go, parked

__all__ = ["go", "parked"]


def lists(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def objects(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


TOO_DEEP = [DEEPEST + 1, DEEPEST + 54, DEEPEST + 55, 800]


@pytest.fixture(autouse=True)
def bodies(kinds: Any) -> None:
    @durable("echo-all")
    async def echo_all(ctx: Context, request: Any) -> Any:
        async def step() -> Any:
            return request

        return await ctx.step(step)

    @durable("deepen")
    async def deepen(ctx: Context, levels: int) -> Any:
        return lists(levels)

    @durable("deepen-in-a-step")
    async def deepen_in_a_step(ctx: Context, levels: int) -> int:
        async def step() -> Any:
            return objects(levels)

        await ctx.step(step)
        return levels

    @durable("asks")
    async def asks(ctx: Context, request: Any) -> Any:
        return await ctx.input("what?", schema={})

    @durable("listens")
    async def listens(ctx: Context, request: Any) -> Any:
        return await ctx.signal("go")


@pytest.mark.parametrize("nested", [lists, objects])
def test_the_deepest_that_is_taken_goes_all_the_way(
    client: Client, go: Go, parked: Parked, nested: Callable[[int], Any]
) -> None:
    deepest = nested(DEEPEST)
    assert go(client.enqueue("echo-all", deepest)).result == deepest
    asking, listening = parked("asks"), parked("listens")
    client.submit_input(asking, deepest, by="ada")
    client.signal(listening, "go", deepest)
    assert [go(asking).result, go(listening).result] == [deepest, deepest]


@pytest.mark.parametrize("depth", TOO_DEEP)
@pytest.mark.parametrize("nested", [lists, objects])
def test_what_is_nested_deeper_is_refused_before_anything_is_stored(
    client: Client, rows: Rows, parked: Parked, nested: Callable[[int], Any], depth: int
) -> None:
    asking, queued = parked("asks"), rows.queued()
    too_deep = nested(depth)
    verbs: list[Callable[[], Any]] = [
        lambda: client.enqueue("echo-all", too_deep),
        lambda: client.enqueue("nobody's", too_deep),
        lambda: client.enqueue_many("nobody's", [1, too_deep]),
        lambda: client.enqueue("nobody's", attributes={"deep": too_deep}),
        lambda: client.run("echo-all", too_deep),
        lambda: client.submit_input(asking, too_deep, by="ada"),
        lambda: client.signal(queued, "go", too_deep),
        lambda: client.signal_many([queued], "go", too_deep),
        lambda: client.complete_step("a.b", too_deep),
        lambda: client.resolve(queued, applied=True, result=too_deep),
    ]
    for verb in verbs:
        with pytest.raises(InvalidRequest, match=f"nested more than {DEEPEST} deep"):
            verb()
    assert {run.id for run in client.list()} == {asking, queued}
    assert client.signals() == []
    assert client.status(asking).status is Status.WAITING


@pytest.mark.parametrize("kind", ["deepen", "deepen-in-a-step"])
def test_a_result_is_as_deep_as_can_be_read_back_and_no_deeper(client: Client, go: Go, kind: str) -> None:
    assert go(client.enqueue(kind, DEEPEST)).status is Status.COMPLETED
    for depth in TOO_DEEP:
        run = go(client.enqueue(kind, depth))
        assert run.status is Status.FAILED
        assert run.error is not None
        assert "InvalidResult" in f"{run.error['type']} {run.error['message']}"


def test_brackets_in_texts_and_side_by_side_are_not_deep(client: Client, go: Go) -> None:
    wide: Any = {"text": "[{" * 500, "side by side": [[{}] for _ in range(500)]}
    assert go(client.enqueue("echo-all", wide)).result == wide
