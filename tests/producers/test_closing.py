"""An asynchronous client that is closed says so; what was under way ends as it would have."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from redis import Redis

from agentrun import AsyncClient, Client, NotAllowed, Status
from agentrun.broker import waiting
from agentrun.testing import until
from agentrun.testing.rows import Rows

HARMLESS = {"drain", "aclose"}
"""What may be called in any order when a process ends."""

VERBS = sorted(
    name for name, value in vars(AsyncClient).items() if inspect.iscoroutinefunction(value) and not name.startswith("_")
)


def called(client: AsyncClient, verb: str, run_id: UUID) -> Awaitable[Any]:
    """A call of this verb with whatever it cannot do without."""
    needed = [
        each for each in inspect.signature(getattr(AsyncClient, verb)).parameters.values() if each.default is each.empty
    ]
    positional = [str(run_id) for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"]
    return getattr(client, verb)(*positional, **{each.name: "ada" for each in needed if each.kind is each.KEYWORD_ONLY})


@contextlib.contextmanager
def locked(rows: Rows, *runs: UUID) -> Iterator[None]:
    """These runs are somebody else's for as long as this lasts."""
    with rows.database.transaction() as connection:
        connection.execute("SELECT 1 FROM agentrun.runs WHERE id = ANY(%s) FOR UPDATE", [list(runs)])
        yield


def blocked(rows: Rows) -> int:
    with psycopg.connect(rows.database.url) as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        (count,) = connection.execute(asked).fetchone() or (0,)
        return count


async def eventually(predicate: Callable[[], Any]) -> None:
    await asyncio.to_thread(until, predicate)


async def test_a_closed_client_refuses_every_verb_and_says_what_to_do(
    async_client: AsyncClient, client: Client, rows: Rows
) -> None:
    run_id = rows.queued()
    await async_client.aclose()
    for verb in VERBS:
        if verb not in HARMLESS:
            with pytest.raises(NotAllowed, match="this AsyncClient is closed; make another one"):
                await called(async_client, verb, run_id)
    assert [run.status for run in client.list()] == [Status.QUEUED]
    assert client.signals(run_id) == []


async def test_closing_twice_and_draining_after_it_do_no_harm(async_client: AsyncClient) -> None:
    await async_client.aclose()
    await asyncio.gather(async_client.aclose(), async_client.aclose())
    assert await async_client.drain()


async def test_calls_under_way_end_though_the_client_is_closed(async_client: AsyncClient, rows: Rows) -> None:
    cancelled, signalled = rows.queued(), rows.queued()
    with locked(rows, cancelled, signalled):
        calls = [
            asyncio.create_task(async_client.cancel(cancelled)),
            asyncio.create_task(async_client.signal(signalled, "go", 1)),
        ]
        await eventually(lambda: blocked(rows) == len(calls))
        await async_client.aclose()
        with pytest.raises(NotAllowed, match="closed"):
            await async_client.signal(signalled, "go", 2)
        assert not any(call.done() for call in calls)
    assert [run.id for run in await asyncio.gather(*calls)] == [cancelled, signalled]
    assert rows.row(cancelled)["status"] == Status.CANCELLED
    with rows.database.connection() as connection:
        kept = connection.execute("SELECT payload FROM agentrun.signals").fetchall()
    assert [row["payload"] for row in kept] == ["1"]


async def test_a_wait_under_way_hears_that_the_client_is_closed(
    async_client: AsyncClient, rows: Rows, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LOOK_AGAIN", 0.1)
    run_id = rows.queued()
    wait = asyncio.create_task(async_client.wait(run_id))
    channel = async_client._client.hints.channel(run_id)
    await eventually(lambda: redis.pubsub_numsub(channel) == [(channel, 1)])
    await async_client.aclose()
    with pytest.raises(NotAllowed, match="closed"):
        await asyncio.wait_for(wait, 10)
