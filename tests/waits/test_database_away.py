"""A database that cannot be reached is told of by one class of error, whatever was asked, after waiting once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg_pool import ConnectionPool, PoolTimeout

from agentrun import AsyncClient, Client, Context, Settings, durable
from agentrun.core.errors import ConfigurationError
from agentrun.embedded.postgres import StopMode
from agentrun.store import database as module
from agentrun.testing import until
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers
from tests.waits.conftest import Parked

VERBS: dict[str, Callable[[Client, UUID], Any]] = {
    "enqueue": lambda client, run_id: client.enqueue("digest"),
    "enqueue_many": lambda client, run_id: client.enqueue_many("digest", [1]),
    "signal": lambda client, run_id: client.signal(run_id, "go"),
    "signal_many": lambda client, run_id: client.signal_many([run_id], "go"),
    "approve": lambda client, run_id: client.approve(run_id, by="ada"),
    "resolve": lambda client, run_id: client.resolve(run_id, applied=True),
    "resume": lambda client, run_id: client.resume(run_id),
    "cancel": lambda client, run_id: client.cancel(run_id),
    "list": lambda client, run_id: client.list(),
    "wait": lambda client, run_id: client.wait(run_id),
    "inbox": lambda client, run_id: client.inbox(),
    "set_budget": lambda client, run_id: client.set_budget("joe", period="day", max_cost=Decimal(1)),
    "purge": lambda client, run_id: client.purge(older_than=60),
}


@pytest.mark.own_servers
async def test_each_verb_waits_once_for_a_connection_and_says_which_url_leads_nowhere(
    client: Client, async_client: AsyncClient, agentrun_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agentrun_servers.embedded is not None
    monkeypatch.setattr(module, "CONNECTION_SECONDS", 0.5)
    waited_in_vain = counted_timeouts(monkeypatch)
    client.list()
    await async_client.list()
    postgres = agentrun_servers.embedded.postgres
    postgres.stop(StopMode.IMMEDIATE)
    try:
        with ThreadPoolExecutor(len(VERBS)) as threads:
            calls = {name: threads.submit(verb, client, uuid4()) for name, verb in VERBS.items()}
            errors = {name: call.exception(60) for name, call in calls.items()}
        with pytest.raises(ConfigurationError, match="cannot be reached"):
            await async_client.signal(uuid4(), "go")
    finally:
        postgres.start()
    assert {name: type(error) for name, error in errors.items()} == dict.fromkeys(VERBS, ConfigurationError)
    assert all("AGENTRUN_DATABASE_URL cannot be reached" in str(error) for error in errors.values())
    (pool,) = client.held.database._pools.values()  # pyright: ignore[reportPrivateUsage]
    assert waited_in_vain.count(pool) == len(VERBS), "no call waits for a connection twice"


def counted_timeouts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pool of each wait in vain: its own figure is counted without a lock, and loses some of one moment."""
    timeouts, getconn = list[Any](), ConnectionPool.getconn

    def counted(self: Any, timeout: float | None = None) -> Any:
        try:
            return getconn(self, timeout)
        except PoolTimeout:
            timeouts.append(self)
            raise

    monkeypatch.setattr(ConnectionPool, "getconn", counted)
    return timeouts


def test_a_connection_that_breaks_while_an_answer_is_recorded_is_told_of_by_the_same(
    client: Client, parked: Parked, rows: Rows
) -> None:
    @durable("careful")
    async def careful(ctx: Context, request: Any) -> bool:
        return (await ctx.approval("sure?")).approved

    run_id = parked("careful")
    with ThreadPoolExecutor(1) as threads, rows.database.transaction() as connection:
        connection.execute("SELECT 1 FROM agentrun.runs WHERE id = %s FOR UPDATE", [run_id])
        call = threads.submit(client.approve, run_id, by="ada")
        until(lambda: ended_sessions(rows))
        error = call.exception(20)
    assert type(error) is ConfigurationError
    assert "terminating connection" in str(error)
    assert client.approve(run_id, by="ada").status == "queued"


def ended_sessions(rows: Rows) -> int:
    blocked = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'agentrun client%' AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(rows.database.url, autocommit=True) as connection:
        (count,) = connection.execute(blocked).fetchone() or (0,)
        return count


def test_a_statement_that_a_limit_ended_is_told_as_such(settings: Settings, database_url: str) -> None:
    limited = f"{database_url}?options=-c%20statement_timeout%3D100"
    with psycopg.connect(database_url) as holder, Client(settings=settings, database_url=limited) as client:
        holder.execute("LOCK TABLE agentrun.runs")
        with pytest.raises(
            ConfigurationError, match=r"ended a statement unfinished \(canceling statement due to"
        ) as said:
            client.list()
    assert "cannot be reached" not in str(said.value)
