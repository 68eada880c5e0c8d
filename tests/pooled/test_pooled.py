"""Everything works through a pooler in transaction mode, with three connections to PostgreSQL for all processes."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest
from typer.testing import CliRunner

from agentrun import Client, Context, Effect, Settings, Status, durable, remote_step
from agentrun.cli import app
from agentrun.core.errors import ConfigurationError
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.segment import run_segment
from agentrun.store import schema
from agentrun.store.connect import connect_async
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher, environment, until
from agentrun.testing.nodes import Node
from agentrun.testing.servers import Servers
from bench.pgbouncer import CONNECTIONS
from tests.pooled.conftest import strict

OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()"


Go = Callable[..., Any]


async def one(number: int) -> int:
    return number


@pytest.fixture(autouse=True)
def bodies(kinds: Registry) -> None:
    @durable("pooled.work")
    async def work(ctx: Context, number: int) -> int:
        for each in range(4):
            await ctx.step(one, each)
        return await ctx.write(one, number, effect=Effect.NON_IDEMPOTENT_WRITE)

    @remote_step("pooled.elsewhere", effect=Effect.READ_ONLY)
    def elsewhere(number: int) -> int:
        return number

    @durable("pooled.waits")
    async def waits(ctx: Context) -> list[Any]:
        answers = await ctx.gather(
            ctx.signal("go"), ctx.sleep(0.01), ctx.child("pooled.work", 7), ctx.remote("pooled.elsewhere", 8)
        )
        said = await ctx.approval("may it?")
        return [*answers, said.by]

    @durable("pooled.transaction")
    async def transaction(ctx: Context) -> int:
        return await ctx.transaction(lambda connection: connection.execute("SELECT 5 AS five").fetchone()["five"])


@pytest.fixture
def look(direct_url: str) -> Iterator[Callable[[str], Any]]:
    """The first column of the first row, asked past the pooler."""
    with psycopg.connect(direct_url, autocommit=True) as connection:
        yield lambda statement: (connection.execute(statement).fetchone() or [None])[0]  # type: ignore[arg-type]


@pytest.fixture
def going(
    engine: Engine, client: Client, publisher: RecordingPublisher, sweep: Callable[[], Any]
) -> Callable[..., Any]:
    """Executes whatever is sent until a run is final or asks for something; returns it."""

    def go(run_id: UUID, *, until_asked: bool = False) -> Any:
        engine.run(run_id)

        def done() -> Any:
            while publisher.wakes:
                wake = publisher.wakes.pop(0)
                engine.run_step(wake.run_id, wake.step_key) if wake.step_key else engine.run(wake.run_id)
            sweep()
            run = client.status(run_id)
            return run if run.status.final or (until_asked and client.inbox()) else None

        return until(done, 20, tell=lambda: client.status(run_id))

    return go


def test_many_runs_side_by_side_share_three_connections(
    client: Client, engine: Engine, look: Callable[[str], Any]
) -> None:
    runs = client.enqueue_many("pooled.work", list(range(60)))
    reports = [engine.submit(run_segment(engine, run_id)) for run_id in runs]
    assert {report.result(20).outcome for report in reports} == {"completed"}
    assert [client.status(run_id).result for run_id in runs] == list(range(60))
    assert look(OTHERS) <= CONNECTIONS


def test_waits_of_every_sort_end_through_a_pooler(client: Client, going: Go, look: Any) -> None:
    run_id = client.enqueue("pooled.waits", idempotency_key="once")
    assert client.enqueue("pooled.waits", idempotency_key="once") == run_id
    client.signal(run_id, "go", "went")
    going(run_id, until_asked=True)
    client.approve(run_id, by="ann")
    assert going(run_id).result == ["went", None, 7, 8, "ann"]
    assert {event.type for event in client.events(run_id)} >= {"enqueued", "settled"}


def test_a_step_within_a_transaction_of_the_database_has_one(client: Client, engine: Engine) -> None:
    run_id = client.enqueue("pooled.transaction")
    engine.run(run_id)
    assert client.status(run_id).result == 5


def test_leases_are_renewed_and_the_dead_are_swept(client: Client, engine: Engine, rows: Any, sweep: Any) -> None:
    run_id = rows.running(kind="pooled.work")
    rows.expire_lease(run_id)
    assert sweep().requeued == 1
    for _ in range(8):
        engine.heartbeat.beat()
    assert client.status(run_id).status is Status.QUEUED


@pytest.fixture
def cli(settings: Settings, tmp_path: Any) -> Callable[..., Any]:
    variables = environment.variables(settings) | {"AGENTRUN_STATE_DIR": str(tmp_path / "nothing is up here")}

    def call(*arguments: str) -> Any:
        said = CliRunner().invoke(app, [*arguments, "--json"], env=variables)
        assert said.exit_code in (0, 1), said.output
        return [json.loads(line) for line in said.stdout.splitlines()]

    return call


def test_the_command_line_works_and_check_says_that_there_is_a_pooler(
    client: Client, engine: Engine, cli: Callable[..., Any]
) -> None:
    run_id = client.enqueue("pooled.work", 1)
    engine.run(run_id)
    (checked,) = cli("check")
    assert "through a pooler" in next(each["says"] for each in checked["findings"] if each["about"] == "database")
    (wrong,) = cli("doctor")
    assert not [each for each in wrong["findings"] if each["severity"] == "error"]
    assert [event["type"] for event in cli("tail", str(run_id))][-1] == "settled"
    (swept,) = cli("sweep")
    assert swept["requeued"] == 0


def test_a_migration_may_go_through_the_pooler(agentrun_servers: Servers, empty_database_url: str) -> None:
    with strict(empty_database_url) as url:
        assert schema.migrate(url) == schema.head()
        assert schema.migrate(url) == schema.head()
        schema.require_head(url)


def test_nothing_is_prepared_through_a_pooler_and_straight_it_is(
    make_engine: Callable[..., Engine], settings: Settings, direct_url: str
) -> None:
    straight = settings.model_copy(update={"database_url": direct_url})
    for chosen, prepares in ((settings, False), (straight, True)):
        engine = make_engine(settings=chosen)
        with engine.database.connection() as connection:
            for number in range(10):
                connection.execute("SELECT %s::int", [number])
            prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert (prepared == {"count": 1}, engine.database.pooled) == (prepares, not prepares)


@pytest.fixture
def at_will(direct_url: str) -> Iterator[Callable[[str], object]]:
    """Executes a statement past the pooler; what it says of the user is taken back."""
    with psycopg.connect(direct_url, autocommit=True) as connection:
        yield lambda statement: connection.execute(statement)  # pyright: ignore[reportArgumentType]
        connection.execute("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")


async def test_sessions_of_a_stricter_level_are_refused_until_the_command_that_is_named_was_run(
    direct_url: str, at_will: Callable[[str], object]
) -> None:
    at_will(f"ALTER DATABASE \"{urlsplit(direct_url).path[1:]}\" SET default_transaction_isolation = 'serializable'")
    with strict(direct_url) as url:
        with pytest.raises(ConfigurationError, match="SERIALIZABLE") as refused:
            _ = Database(url).pooled
        with pytest.raises(ConfigurationError, match="READ COMMITTED"):
            await connect_async(url, name="as the writer's")
        assert schema.current(url) == schema.head(), "what says its level itself is not refused"
    (command,) = re.findall("`(ALTER ROLE .*?)`", str(refused.value))
    at_will(command)
    with strict(direct_url) as url, contextlib.closing(Database(url)) as database, database.connection() as connection:
        assert connection.execute("SHOW transaction_isolation").fetchone() == {
            "transaction_isolation": "read committed"
        }


def test_a_client_that_prepares_breaks_here(database_url: str) -> None:
    """The control: the pooler is as strict as it has to be."""
    with pytest.raises(psycopg.ProgrammingError, match="prepared statement"):
        _prepare_on_two(database_url)


def _prepare_on_two(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as other:
        for number in range(40):
            (one, other)[number % 2].execute("SELECT %s::int + 1", [number])


def test_who_enqueues_in_a_transaction_hears_that_the_sweep_wakes_the_run(
    client: Client, database_url: str, sweep: Any, publisher: RecordingPublisher, caplog: pytest.LogCaptureFixture,
    look: Callable[[str], Any],
) -> None:  # fmt: skip
    began = time.monotonic()
    with caplog.at_level(logging.WARNING), psycopg.connect(database_url) as connection:
        for number in range(2):
            run_id = client.enqueue("pooled.work", number, connection=connection)
    assert time.monotonic() - began < 4, "nobody waits for somebody to listen"
    assert caplog.text.count("commits cannot be listened for through a pooler") == 1
    assert look("SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'listen%'") == 0
    look("UPDATE agentrun.runs SET due_at = due_at - interval '5 s' RETURNING 1")
    sweep()
    assert publisher.causes(run_id) == ["sweep"]


def test_past_the_pooler_a_commit_is_heard(
    settings: Settings, kinds: Registry, direct_url: str, database_url: str, look: Callable[[str], Any]
) -> None:
    with (
        Client(settings=settings.model_copy(update={"direct_database_url": direct_url}), kinds=kinds) as client,
        psycopg.connect(database_url) as connection,
    ):
        client.enqueue("pooled.work", 1, connection=connection)
        assert look("SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'listen%'") == 1


LOCKS = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
NAMED = "SELECT count(*) FROM agentrun.processes WHERE stable_id = 'pod-0'"


@pytest.mark.settings(stable_id="pod-0")
def test_a_stable_id_is_not_used_through_a_pooler_and_is_past_it(
    make_engine: Callable[..., Engine], settings: Settings, direct_url: str, look: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        make_engine().heartbeat.beat()
    assert (look(LOCKS), look(NAMED)) == (0, 0), "its namesake would take it for dead"
    assert caplog.text.count("AGENTRUN_STABLE_ID does nothing through a pooler") == 1
    make_engine(settings=settings.model_copy(update={"direct_database_url": direct_url})).heartbeat.beat()
    assert (look(LOCKS), look(NAMED)) == (1, 1)


@pytest.mark.processes
def test_a_worker_works_through_a_pooler(
    client: Client, worker: Callable[..., Node], look: Callable[[str], Any]
) -> None:
    node = worker(imports=["tests.bodies.basic"], concurrency=40)
    runs = client.enqueue_many("count", [10] * 60)
    until(lambda: all(run.status.final for run in client.list(limit=100)), 30)
    assert [client.status(run_id).result for run_id in runs] == [10] * 60
    assert look(OTHERS) <= CONNECTIONS
    assert node.terminate() == 0
    assert "prepared statement" not in node.logs()
