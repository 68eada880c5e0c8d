"""What a type checker says of a user's bodies and producers: read by pyright in `test_users_types.py`, never run."""

from __future__ import annotations

from typing import Any, assert_type
from uuid import UUID

from pydantic import BaseModel

from agentrun import AgentrunError, AsyncClient, Client, Context, Run, SyncContext


class Receipt(BaseModel):
    number: str


def pay(cents: int) -> str:
    return f"paid {cents}"


async def ship(order: str) -> Receipt:
    return Receipt(number=order)


async def of_a_body(ctx: Context) -> None:
    assert_type(await ctx.step(pay, 3), str)
    assert_type(await ctx.step(ship, "a"), Receipt)
    assert_type(await ctx.write(pay, 3), str)
    assert_type(await ctx.write(ship, "a", effect="idempotent_write"), Receipt)
    assert_type(await ctx.options(key="again").write(pay, cents=3), str)
    assert_type(await ctx.remote("ship", "a", returns=str, queue="far", retries=3, timeout=5.0), str)
    assert_type(await ctx.remote("ship", "a", returns=list[Receipt]), list[Receipt])
    assert_type(await ctx.remote("ship", "a", queue="far"), Any)
    assert_type(await ctx.remote("ship", "a", returns=str | None), Any)
    assert_type(await ctx.external("ship", "a", returns=Receipt, window=60), Receipt)
    assert_type(await ctx.external("ship", "a"), Any)
    await ctx.remote("ship", "a", returns=str, queues="far")  # pyright: ignore[reportCallIssue]


def of_a_plain_body(ctx: SyncContext) -> None:
    assert_type(ctx.step(pay, 3), str)
    assert_type(ctx.write(pay, 3), str)
    assert_type(ctx.remote("ship", "a", returns=Receipt, queue="far"), Receipt)
    assert_type(ctx.remote("ship", "a"), Any)
    assert_type(ctx.external("ship", "a", returns=Receipt), Receipt)
    assert_type(ctx.external("ship", "a"), Any)


def of_a_producer(client: Client, runs: list[UUID]) -> None:
    assert_type(client.signal_many(runs, "go"), list[Run | AgentrunError])


async def of_an_async_producer(client: AsyncClient, runs: list[UUID]) -> None:
    assert_type(await client.signal_many(runs, "go"), list[Run | AgentrunError])
