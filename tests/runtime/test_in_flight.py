"""The same call twice, one of them given up: what is in flight goes on, and whoever still asks gets its result."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from agentrun import Client, Context, Status, durable
from agentrun.runtime.engine import Engine


class Booking:
    """A function of a transaction that waits to be let on, and how often it was called."""

    def __init__(self) -> None:
        self.go_on, self.calls = threading.Event(), 0

    def __call__(self, connection: Any, value: int) -> int:
        self.calls += 1
        assert self.go_on.wait(20)
        return value


def test_a_transaction_goes_on_when_its_body_does_not_wait_and_is_the_same_when_asked_again(
    client: Client, engine: Engine
) -> None:
    book = Booking()

    @durable("impatient")
    async def impatient(ctx: Context) -> list[int]:
        once = ctx.options(key="once")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await once.transaction(book, 7)
        book.go_on.set()
        return [await once.transaction(book, 7), await once.transaction(book, 7)]

    run_id = client.enqueue("impatient")
    engine.run(run_id)
    assert (client.status(run_id).result, book.calls) == ([7, 7], 1)


def test_a_body_that_ends_waits_for_the_transaction_that_it_left_behind(client: Client, engine: Engine) -> None:
    book = Booking()

    @durable("hasty")
    async def hasty(ctx: Context) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await ctx.transaction(book, 7)
        asyncio.get_running_loop().call_later(0.01, book.go_on.set)

    run_id = client.enqueue("hasty")
    engine.run(run_id)
    assert client.status(run_id).status is Status.COMPLETED
    assert [(step.status, step.result) for step in client.steps(run_id)] == [("completed", 7)]


@pytest.mark.parametrize("verb", ["transaction", "write"])
def test_who_gives_up_a_call_does_not_take_it_from_others(client: Client, engine: Engine, verb: str) -> None:
    """A read-only write is begun anew for the one who still wants it, a transaction goes on."""
    book, started = Booking(), asyncio.Event()

    async def look(value: int) -> int:
        started.set()
        while not book.go_on.is_set():
            await asyncio.sleep(0)
        return value

    def perform(ctx: Context) -> Any:
        once = ctx.options(key="once")
        return once.transaction(book, 7) if verb == "transaction" else once.write(look, 7, effect="read_only")

    @durable("shared")
    async def shared(ctx: Context) -> int:
        first, second = asyncio.create_task(perform(ctx)), asyncio.create_task(perform(ctx))
        while not (book.calls or started.is_set()):
            await asyncio.sleep(0)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        book.go_on.set()
        return await second

    run_id = client.enqueue("shared")
    engine.run(run_id)
    assert client.status(run_id).result == 7
    assert book.calls <= 1


def test_another_call_under_a_key_that_is_in_flight_stops_the_run(client: Client, engine: Engine) -> None:
    done: list[str] = []

    async def pay() -> str:
        await asyncio.sleep(0)
        done.append("pay")
        return "paid"

    async def ship() -> str:
        done.append("ship")
        return "shipped"

    @durable("confused")
    async def confused(ctx: Context) -> list[str]:
        once = ctx.options(key="once")
        return await ctx.gather(once.write(pay), once.write(ship))

    run_id = client.enqueue("confused")
    engine.run(run_id)
    run = client.status(run_id)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert "pay" in run.error["message"]
    assert "ship" in run.error["message"]
    assert done == ["pay"]
    assert [(step.name, step.status) for step in client.steps(run_id)] == [("pay", "completed")]
