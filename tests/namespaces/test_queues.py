"""Queues: unset means `default` for all alike, and a named queue belongs to one namespace, on the wire too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg import sql

from agentrun import Client, Context, durable, remote_step
from agentrun.runtime.engine import Engine
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.nodes import Node


def test_unset_means_default_for_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTRUN_NAMESPACE", raising=False)
    assert Settings().namespace == "default"
    assert (Settings().queue, Settings().queue_of("gpu")) == ("agentrun", "gpu")


@pytest.mark.parametrize(
    ("named", "queue"),
    [("gpu", "gpu.team"), (None, "agentrun.team"), ("agentrun", "agentrun.team"), ("gpu.team", "gpu.team")],
)
def test_a_named_queue_ends_with_its_namespace(named: str | None, queue: str) -> None:
    assert Settings(namespace="team").queue_of(named) == queue


@pytest.mark.settings(namespace="team")
def test_runs_steps_and_children_are_sent_to_queues_of_their_namespace(
    client: Client, engine: Engine, publisher: RecordingPublisher, database: Database
) -> None:
    @durable("child", queue="cpu")
    async def child(ctx: Context) -> None: ...

    @remote_step("far")
    def far() -> None: ...

    @durable("parent", queue="cpu")
    async def parent(ctx: Context) -> None:
        await ctx.spawn("child")
        await ctx.gather(ctx.remote("far", queue="gpu"), ctx.spawn("child", queue="gpu"))

    run_id = client.enqueue("parent")
    assert client.status(run_id).queue == "cpu.team"
    engine.run(run_id)
    until(lambda: len({wake.queue for wake in publisher.wakes}) == 2)
    assert {wake.queue for wake in publisher.wakes} == {"cpu.team", "gpu.team"}


@pytest.mark.processes
def test_two_pools_on_one_database_and_one_redis_never_take_from_each_other(
    client: Client, worker: Callable[..., Node], settings: Settings, database: Database
) -> None:
    """Each has its usual queue and one that both call `gpu`."""
    theirs = settings.model_copy(update={"namespace": "team"})
    nodes = [
        worker(concurrency=4, queues=f"{each.queue},{each.queue_of('gpu')}", settings=each, wait=False,
               imports=["tests.bodies.basic"])
        for each in (settings, theirs)
    ]  # fmt: skip
    for node in nodes:
        node.container.wait_ready()
    with Client(settings=theirs) as team:
        ids = {
            each: [each.enqueue("echo", str(number), queue="gpu" if number % 2 else None) for number in range(20)]
            for each in (client, team)
        }
        for each, runs in ids.items():
            assert [each.wait(run_id, timeout=20).result for run_id in runs] == [str(number) for number in range(20)]
    with database.connection() as connection:
        rows = connection.execute(
            sql.SQL(
                "SELECT r.namespace, m.by FROM agentrun.moves m JOIN agentrun.runs r ON r.id = m.run_id"
                " WHERE m.type = 'claimed' GROUP BY 1, 2"
            )
        ).fetchall()
    assert len(rows) == len({row["by"] for row in rows}) == 2, "each namespace by its own worker"
    assert [node.logs().count("changed nothing") for node in nodes] == [0, 0]
