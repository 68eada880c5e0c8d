"""A client that is closed says so, asynchronous or not; what was under way ends as it would have."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from redis import Redis

from agentrun import Actor, AsyncClient, Client, Context, NotAllowed, Settings, Status, durable
from agentrun.broker import waiting
from agentrun.broker.hints import Hints
from agentrun.core.records import Run
from agentrun.runtime.commands import Commands
from agentrun.store.database import Database
from agentrun.testing import until
from agentrun.testing.rows import Rows

AT_ONCE = 3.0
"""Seconds from a client's closing to the end of a wait, on a busy machine; no look comes so early."""

HARMLESS = {"drain", "close", "aclose"}
"""What may be called in any order when a process ends."""


def verbs(face: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(face, inspect.isfunction) if name[0] != "_" and name not in HARMLESS]


def called(client: AsyncClient | Client, verb: str, run_id: UUID) -> Any:
    """A call of this verb with whatever it cannot do without."""
    signature = inspect.signature(getattr(client, verb))
    needed = [each for each in signature.parameters.values() if each.default is each.empty]
    positional = [str(run_id) for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = [each.name for each in needed if each.kind is each.KEYWORD_ONLY]
    return getattr(client, verb)(*positional, **{name: {"applied": True}.get(name, "ada") for name in named})


@pytest.fixture
def closing(settings: Settings) -> Iterator[Client]:
    """A client that the test closes; `client` sees what it left behind."""
    with Client(settings=settings) as client:
        yield client


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


def untouched(client: Client, run_id: UUID) -> bool:
    return [run.status for run in client.list()] == [Status.QUEUED] and client.signals(run_id) == []


async def test_a_closed_asynchronous_client_refuses_every_verb_and_says_what_to_do(
    async_client: AsyncClient, client: Client, rows: Rows
) -> None:
    run_id = rows.queued()
    await async_client.aclose()
    for verb in verbs(AsyncClient):
        with pytest.raises(NotAllowed, match="this AsyncClient is closed; make another one"):
            await called(async_client, verb, run_id)
    with pytest.raises(NotAllowed, match="this AsyncClient is closed; make another one"):
        async with async_client:
            pass
    assert untouched(client, run_id)


@pytest.mark.parametrize("close", ["client", "view"])
@pytest.mark.parametrize("ask", ["client", "view"])
def test_a_closed_client_and_its_views_refuse_every_verb_and_say_what_to_do(
    closing: Client, client: Client, rows: Rows, close: str, ask: str
) -> None:
    run_id, faces = rows.queued(), {"client": closing, "view": closing.acting(Actor("ann"))}
    assert closing.status(run_id).id == run_id
    faces[close].close()
    for verb in verbs(Client):
        with pytest.raises(NotAllowed, match="this Client is closed; make another one"):
            called(faces[ask], verb, run_id)
    with pytest.raises(NotAllowed, match="this Client is closed; make another one"), faces[ask]:
        pass
    assert untouched(client, run_id)


def test_a_closed_client_opens_nothing_again(closing: Client, rows: Rows) -> None:
    run_id = rows.queued()
    closing.close()
    threads, sessions = threading.active_count(), sessions_of_clients(rows)
    for verb in verbs(Client):
        with pytest.raises(NotAllowed):
            called(closing, verb, run_id)
    assert (threading.active_count(), sessions_of_clients(rows)) == (threads, sessions) == (threads, 0)


def sessions_of_clients(rows: Rows) -> int:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
    with rows.database.connection() as connection:
        (row,) = connection.execute(asked, ["agentrun client%"]).fetchall()
        return row["count"]


async def test_closing_twice_and_draining_after_it_do_no_harm(async_client: AsyncClient, closing: Client) -> None:
    await async_client.aclose()
    await asyncio.gather(async_client.aclose(), async_client.aclose())
    assert await async_client.drain()
    closing.close()
    closing.close()
    assert closing.drain()


def test_what_executes_here_may_ask_its_client_until_it_is_handed_back(closing: Client, client: Client) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def look(run_id: str) -> str:
        begun.set()
        assert go_on.wait(20)
        return closing.status(run_id).kind

    @durable("curious")
    def curious(ctx: Context) -> None:
        ctx.step(look, str(ctx.run_id))
        ctx.step(look, str(ctx.run_id))

    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(closing.run, "curious")
        assert begun.wait(20)
        closed = threads.submit(closing.close)
        until(closing.held.drained.is_set)
        go_on.set()
        closed.result(20)
        assert isinstance(running.exception(20), Exception)
    (run,) = client.list()
    assert [step.result for step in client.steps(run.id)] == ["curious"]
    assert run.status is Status.QUEUED


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_client_that_one_process_closes_is_open_in_the_others_that_have_it(closing: Client, rows: Rows) -> None:
    run_id, fork = rows.queued(), multiprocessing.get_context("fork")
    assert closing.status(run_id).id == run_id
    child = fork.Process(target=closing.close)
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert closing.status(run_id).id == run_id


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


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The runs that waits have looked at. Each looks twice, and then nothing but a hint or the closing ends it."""
    seen, look = list[UUID](), Commands.status

    def status(commands: Commands, run_id: UUID) -> Run:
        run = look(commands, run_id)
        seen.append(run_id)
        return run

    monkeypatch.setattr(Commands, "status", status)
    return seen


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait looks again by itself."""
    monkeypatch.setattr(waiting, "LOOK_AGAIN", 30.0)
    monkeypatch.setattr(waiting, "WITHOUT_HINTS", 30.0)


@pytest.mark.usefixtures("no_looks")
async def test_a_wait_under_way_hears_at_once_that_the_client_is_closed(
    async_client: AsyncClient, rows: Rows, redis: Redis, looks: list[UUID]
) -> None:
    run_id = rows.queued()
    wait = asyncio.create_task(async_client.wait(run_id))
    channel = async_client._client.hints.channel(run_id)
    await eventually(lambda: redis.pubsub_numsub(channel) == [(channel, 1)] and len(looks) == 2)
    await async_client.aclose()
    with pytest.raises(NotAllowed, match="closed"):
        await asyncio.wait_for(wait, AT_ONCE)
    await eventually(lambda: redis.pubsub_numsub(channel) == [(channel, 0)])


@pytest.mark.usefixtures("no_looks", "no_hints")
async def test_an_asynchronous_wait_that_no_hint_reaches_hears_at_once_that_the_client_is_closed(
    async_client: AsyncClient, rows: Rows, looks: list[UUID]
) -> None:
    wait = asyncio.create_task(async_client.wait(rows.queued()))
    await eventually(lambda: len(looks) == 1)
    await async_client.aclose()
    with pytest.raises(NotAllowed, match="closed"):
        await asyncio.wait_for(wait, AT_ONCE)


def test_a_call_under_way_ends_though_the_client_is_closed(closing: Client, rows: Rows) -> None:
    cancelled = rows.queued()
    with ThreadPoolExecutor(1) as threads:
        with locked(rows, cancelled):
            call = threads.submit(closing.cancel, cancelled)
            until(lambda: blocked(rows) == 1)
            closing.close()
            assert not call.done()
        assert call.result(20).status is Status.CANCELLED


@pytest.fixture
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is no Redis."""
    monkeypatch.setattr(Hints, "possible", False)


@pytest.mark.usefixtures("no_looks", "no_hints")
def test_a_wait_that_no_hint_reaches_hears_at_once_that_its_client_is_closed(
    closing: Client, rows: Rows, looks: list[UUID]
) -> None:
    with ThreadPoolExecutor(1) as threads, closing:
        wait = threads.submit(closing.wait, rows.queued())
        until(lambda: len(looks) == 1)
        closing.close()
        assert isinstance(wait.exception(AT_ONCE), NotAllowed)


@pytest.mark.usefixtures("no_looks")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_wait_goes_on_though_another_process_closes_its_copy_of_the_client(
    closing: Client, client: Client, rows: Rows, redis: Redis
) -> None:
    run_id, fork = rows.queued(), multiprocessing.get_context("fork")
    channel = closing.hints.channel(run_id)
    with ThreadPoolExecutor(1) as threads, closing:
        wait = threads.submit(closing.wait, run_id)
        until(lambda: redis.pubsub_numsub(channel) == [(channel, 1)])
        child = fork.Process(target=closing.close)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        client.cancel(run_id)
        redis.publish(channel, "settled")
        assert wait.result(20).status is Status.CANCELLED


@pytest.mark.usefixtures("no_looks")
@pytest.mark.parametrize("verb", ["wait", "result"])
def test_all_who_wait_hear_at_once_that_their_client_is_closed_and_keep_no_connection(
    closing: Client, rows: Rows, redis: Redis, verb: str, looks: list[UUID]
) -> None:
    run_id = rows.queued()
    channel = closing.hints.channel(run_id)
    # Whatever happens, the client is closed before its threads are waited for: they would wait for ever.
    with ThreadPoolExecutor(3) as threads, closing:
        waits = [threads.submit(getattr(closing, verb), run_id) for _ in range(3)]
        until(lambda: redis.pubsub_numsub(channel) == [(channel, 3)] and len(looks) == 6)
        closing.hints.close()
        assert redis.pubsub_numsub(channel) == [(channel, 3)], "closing takes no connection from who reads from it"
        closing.close()
        refused = [wait.exception(AT_ONCE) for wait in waits]
    assert [type(each) for each in refused] == [NotAllowed] * 3
    until(lambda: redis.pubsub_numsub(channel) == [(channel, 0)])


async def test_calls_that_have_no_thread_yet_end_though_the_asynchronous_client_is_closed(
    async_client: AsyncClient, rows: Rows
) -> None:
    most = async_client._client.settings.max_connections
    runs = [rows.queued() for _ in range(most + 2)]
    with locked(rows, *runs):
        calls = [asyncio.create_task(async_client.cancel(run_id)) for run_id in runs]
        await eventually(lambda: blocked(rows) == most)
        await async_client.aclose()
    assert [run.status for run in await asyncio.gather(*calls)] == [Status.CANCELLED] * len(runs)


def test_a_call_that_was_under_way_when_its_database_was_closed_leaves_no_pool_behind(settings: Settings) -> None:
    database = Database(settings.require_database(), name="agentrun leaving")
    assert database.pooled is False
    database.close()
    assert database.pooled is False
    assert not database._pools  # pyright: ignore[reportPrivateUsage]
    names = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agentrun leaving'"
    with psycopg.connect(settings.require_database()) as connection:
        until(lambda: connection.execute(names).fetchone() == (0,), 5)
