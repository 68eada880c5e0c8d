"""`agentrun workers`: who is alive, what each holds and since when; who is gone is shown so, and then forgotten."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from agentrun.runtime.engine import Engine
from agentrun.store.database import Database
from agentrun.testing import until
from agentrun.testing.rows import KIND, Rows
from tests.cli.conftest import Cli
from tests.doctor.conftest import Worker

Sql = Callable[..., None]


def test_a_worker_is_shown_with_what_it_holds(healthy: Engine, cli: Cli, rows: Rows, run_sql: Sql) -> None:
    mine, others = rows.running(), rows.running()
    run_sql("UPDATE agentrun.runs SET claimed_by = %s WHERE id = %s", f"worker:{healthy.owner_suffix}", mine)
    (worker,) = cli("workers", "--json").json["workers"]
    assert (worker["state"], worker["version"], worker["queues"]) == (
        "alive", version("agentrun"), ["agentrun", "agentrun.system"],
    )  # fmt: skip
    assert KIND in worker["kinds"]
    assert [(held["run_id"], held["kind"]) for held in worker["holds"]] == [(str(mine), KIND)]
    assert abs(worker["clock_skew_seconds"]) < 5
    assert worker["about"]["hooks"]["stalled"] == ["agentrun.runtime.tellers.log_line(agentrun.alarms)"]
    out = cli("workers").out
    assert str(mine) in out
    assert str(others) not in out


def test_a_client_that_executes_is_called_as_its_segments_are(
    make_engine: Callable[..., Engine], cli: Cli, rows: Rows
) -> None:
    client = make_engine()
    client.heartbeat.beat()
    (told,) = cli("workers", "--json").json["workers"]
    assert told["name"] == f"interactive:{client.owner_suffix}"


def test_one_that_drains_says_so(healthy: Engine, cli: Cli) -> None:
    healthy.drain(within=60)
    healthy.heartbeat.beat()
    assert [worker["state"] for worker in cli("workers", "--json").json["workers"]] == ["draining"]


def test_one_that_vanished_is_gone_and_is_forgotten_by_the_sweep(
    healthy: Engine, cli: Cli, run_sql: Sql, sweep: Callable[[], Any]
) -> None:
    run_sql("UPDATE agentrun.processes SET seen_at = now() - interval '2 min'")
    sweep()
    assert [worker["state"] for worker in cli("workers", "--json").json["workers"]] == ["gone"]
    run_sql("UPDATE agentrun.processes SET seen_at = now() - interval '61 min'")
    sweep()
    said = cli("workers")
    assert (said.out, said.code) == ("", 0)
    assert "no worker" in said.err


def test_other_namespaces_are_shown_when_all_are_asked_for(
    healthy: Engine, seen_worker: Worker, cli: Cli, database: Database
) -> None:
    seen_worker(settings=healthy.settings.model_copy(update={"namespace": "other"}))
    assert len(cli("workers", "--json").json["workers"]) == 1
    everywhere = cli("workers", "--json", "--all-namespaces").json["workers"]
    assert [each["namespace"] for each in everywhere] == ["default", "other"]
    assert "other" in cli("workers", "--all-namespaces").out


@pytest.mark.processes
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_real_worker_tells_its_queues_pool_and_visibility_timeout(
    pool: str, worker: Callable[..., Any], cli: Cli
) -> None:
    node = worker(pool=pool, concurrency=1, queues="agentrun,gpu")
    (seen,) = until(lambda: cli("workers", "--json").json["workers"], 20)
    assert (seen["queues"], seen["about"]["visibility_timeout"]) == (["agentrun", "gpu"], 3600)
    assert (seen["about"]["pool"], seen["about"]["concurrency"]) == (pool, 1)
    assert (seen["about"]["node"], seen["about"]["pid"]) == (node.hostname(), node.pid)
