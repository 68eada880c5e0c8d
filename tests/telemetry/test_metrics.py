"""`agentrun metrics`: what was arranged is what is told, out of the rows, with labels that do not grow."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentrun import Client, Effect, Reason, Settings, Status
from agentrun.broker import CeleryPublisher
from agentrun.core.wake import Wake
from agentrun.runtime.engine import Engine
from agentrun.telemetry.gauges import GAUGES
from agentrun.testing import environment
from agentrun.testing.rows import Rows
from tests.docs.pages import ROOT
from tests.telemetry.conftest import Cli, Past, Worker

Sql = Callable[..., None]
Metrics = Callable[..., "Told"]


class Told(dict[str, Mapping[frozenset[Any], float]]):
    """Metrics by name, their values by labels. `namespace` is left out where it is the usual one."""

    def of(self, name: str, **labels: str) -> float | None:
        return self[f"agentrun_{name}"].get(frozenset(labels.items()))


def parsed(text: str) -> Told:
    return Told(
        {
            family.name: {
                frozenset(item for item in sample.labels.items() if item != ("namespace", "default")): sample.value
                for sample in family.samples
            }
            for family in text_string_to_metric_families(text)
        }
    )


@pytest.fixture
def metrics(cli: Cli) -> Metrics:
    def call(*options: str, **env: str | None) -> Told:
        said = cli("metrics", *options, env=env)
        assert said.code == 0, said.err
        return parsed(said.out)

    return call


def test_runs_are_told_by_queue_and_status(healthy: Engine, metrics: Metrics, rows: Rows, past: Past) -> None:
    for _ in range(3):
        rows.queued()
    past.run(rows.queued(queue="gpu"))
    rows.queued(queue="gpu", due_at=datetime.now(UTC) + timedelta(hours=1))
    rows.expire_lease(rows.running())
    rows.running(queue="gpu")
    for on in ("signal:go", "signal:4111", "approval", "child:k + timer", "timer"):
        rows.waiting(waiting_on=on)
    rows.final(Status.COMPLETED)
    told = metrics()
    assert (told.of("up"), told.of("broker_up")) == (1, 1)
    assert told["agentrun_runs"] == {
        frozenset({("queue", "agentrun"), ("status", "queued")}): 3,
        frozenset({("queue", "gpu"), ("status", "queued")}): 2,
        frozenset({("queue", "agentrun"), ("status", "running")}): 1,
        frozenset({("queue", "gpu"), ("status", "running")}): 1,
        frozenset({("queue", "agentrun"), ("status", "waiting")}): 5,
    }
    assert (told.of("due_runs", queue="agentrun"), told.of("due_runs", queue="gpu")) == (3, 1)
    assert 3500 < (told.of("due_age_seconds", queue="gpu") or 0) < 3700
    assert (told.of("queue_workers", queue="agentrun"), told.of("queue_workers", queue="gpu")) == (1, 0)
    assert {on: told.of("waiting_runs", on=on) for on in ("signal", "approval", "several", "timer", "child")} == {
        "signal": 2, "approval": 1, "several": 1, "timer": 1, "child": None,
    }  # fmt: skip
    assert told.of("expired_leases") == 1


def test_an_empty_queue_that_somebody_consumes_is_told_with_zeros(healthy: Engine, metrics: Metrics) -> None:
    told = metrics()
    assert [told.of(name, queue="agentrun") for name in ("due_runs", "due_age_seconds", "queue_workers")] == [0, 0, 1]
    assert told.of("expired_leases") == 0
    assert told.of("spend_today_dollars") == 0
    assert {cause: told.of("dead_letters", cause=cause) for cause in ("write", "crashes", "lost_step", "other")} == {
        "write": 0, "crashes": 0, "lost_step": 0, "other": 0,
    }  # fmt: skip


def test_failures_are_told_by_reason_and_dead_letters_until_somebody_puts_them_back(
    metrics: Metrics, rows: Rows, past: Past, client: Client
) -> None:
    rows.final(Status.FAILED, Reason.DEADLINE_EXCEEDED)
    past.run(rows.final(Status.FAILED, Reason.DEADLINE_EXCEEDED), hours=2)
    dead = rows.final(Status.FAILED)
    past.run(rows.final(Status.FAILED), hours=2)
    write = rows.final(Status.FAILED)
    with rows.database.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, started_seq)"
            " VALUES (%s, 'w', 'write', 'pay', %s, 'started', 1, 1)",
            [write, str(Effect.NON_IDEMPOTENT_WRITE)],
        )
    told = metrics()
    assert told.of("failed_runs_last_hour", reason="deadline_exceeded") == 1
    assert told.of("failed_runs_last_hour", reason="not_retryable") == 2
    assert (told.of("dead_letters", cause="other"), told.of("dead_letters", cause="write")) == (2, 1)
    client.redrive(dead)
    assert metrics().of("dead_letters", cause="other") == 1


def test_workers_are_told_by_state_with_their_slots(
    seen_worker: Worker, metrics: Metrics, rows: Rows, run_sql: Sql
) -> None:
    threads = {"pool": "threads", "concurrency": 100}
    busy = seen_worker(about=threads)
    seen_worker(about={"pool": "prefork", "concurrency": 8})
    drains, late, _gone = (seen_worker(about=threads) for _ in range(3))
    seen_worker(queues=())
    for changed, engine in (("draining = true", drains), ("seen_at = now() - interval '50 s'", late)):
        run_sql(f"UPDATE agentrun.processes SET {changed} WHERE id = %s", engine.id)
    run_sql("UPDATE agentrun.processes SET seen_at = now() - interval '2 minutes' WHERE id = %s", _gone.id)
    run_sql("UPDATE agentrun.processes SET holds = 7 WHERE id = %s", busy.id)
    told = metrics()
    assert {state: told.of("workers", state=state) for state in ("alive", "late", "draining")} == {
        "alive": 2, "late": 1, "draining": 1,
    }  # fmt: skip
    assert (told.of("worker_slots"), told.of("worker_slots_taken")) == (201, 7)
    assert told.of("queue_workers", queue="agentrun") == 3


def test_the_sweeps_age_is_told_and_infinite_where_there_was_none(
    metrics: Metrics, sweep: Callable[[], Any], run_sql: Sql
) -> None:
    assert metrics().of("sweep_age_seconds") == float("inf")
    sweep()
    run_sql("UPDATE agentrun.sweeps SET swept_at = now() - interval '70 s'")
    assert 69 < (metrics().of("sweep_age_seconds") or 0) < 90


def test_notices_are_told_until_they_are_delivered_or_given_up(metrics: Metrics, rows: Rows, run_sql: Sql) -> None:
    run_id = rows.waiting()
    for subject, ending in (("a", None), ("b", "delivered"), ("c", "given_up"), ("d", None)):
        run_sql(
            "INSERT INTO agentrun.notices (namespace, run_id, occasion, subject, hook, due_at, ended_at, ending,"
            " created_at) VALUES ('default', %s, 'waiting', %s, 'mail', now() + %s::interval,"
            " CASE WHEN %s::text IS NOT NULL THEN now() END, %s, now() - interval '1 hour')",
            run_id, subject, "1 hour" if subject == "d" else "-1 s", ending, ending,
        )  # fmt: skip
    told = metrics()
    assert (told.of("due_notices"), told.of("notices_given_up_last_day", hook="mail")) == (1, 1)
    assert 3500 < (told.of("notice_age_seconds") or 0) < 3700


def test_todays_spend_is_told_of_all_owners_together(metrics: Metrics, rows: Rows, run_sql: Sql) -> None:
    run_id = rows.running()
    day = "date_trunc('day', timezone('UTC', now()))"
    for owner, when, cost in (("ann", day, 1.5), ("bob", day, 0.25), ("ann", f"{day} - interval '1 day'", 100)):
        run_sql(
            "INSERT INTO agentrun.spend (namespace, owner, day, run_id, tokens, cost)"
            f" VALUES ('default', %s, {when}, %s, 10, %s)",
            owner, run_id, cost,
        )  # fmt: skip
    told = metrics()
    assert (told.of("spend_today_dollars"), told.of("spend_today_tokens")) == (1.75, 20)


def test_messages_are_told_by_queue_and_nothing_where_the_broker_is_away(
    metrics: Metrics, settings: Settings, rows: Rows
) -> None:
    run_id = rows.queued(queue="gpu")
    with contextlib.closing(CeleryPublisher(settings)) as publisher:
        assert publisher.wake(Wake(run_id, "gpu"), Wake(run_id, "gpu")) == 2
    told = metrics()
    assert (told.of("broker_messages", queue="gpu"), told.of("broker_messages", queue="agentrun")) == (2, 0)
    told = metrics(AGENTRUN_BROKER_URL="redis://127.0.0.1:1/0")
    assert (told.of("up"), told.of("broker_up"), told["agentrun_broker_messages"]) == (1, 0, {})


def test_a_database_that_is_away_is_told_and_is_no_error(cli: Cli) -> None:
    said = cli("metrics", env={"AGENTRUN_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})
    told = parsed(said.out)
    assert (said.code, told.of("up"), told.of("broker_up")) == (0, 0, 1)
    assert told["agentrun_runs"] == {}


def test_another_schema_is_told_as_a_database_that_does_not_answer(metrics: Metrics, empty_database_url: str) -> None:
    assert metrics(AGENTRUN_DATABASE_URL=empty_database_url).of("up") == 0


def test_every_namespace_is_told_where_it_is_asked_for(metrics: Metrics, rows: Rows, run_sql: Sql) -> None:
    rows.queued()
    run_sql("UPDATE agentrun.runs SET namespace = 'other' WHERE id = %s", rows.queued())
    told = metrics()
    assert told.of("due_runs", queue="agentrun") == 1
    assert told.of("due_runs", queue="agentrun", namespace="other") is None
    told = metrics("--all-namespaces")
    assert told.of("due_runs", queue="agentrun") == 1
    assert told.of("due_runs", queue="agentrun", namespace="other") == 1


def test_every_metric_has_a_help_text_and_labels_without_runs_or_owners(metrics: Metrics, cli: Cli) -> None:
    text = cli("metrics").out
    assert set(metrics()) == {f"agentrun_{name}" for name in GAUGES}
    for name, (labels, told) in GAUGES.items():
        assert f"# HELP agentrun_{name} {told}\n" in text
        assert set(labels) <= {"namespace", "queue", "status", "on", "reason", "cause", "state", "hook"}


def test_the_guide_names_no_metric_that_there_is_not() -> None:
    text = (ROOT / "docs/guides/observability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`[^`]*?\b(agentrun_\w+[a-z])", text)) - {"agentrun_spend_today"}
    in_alerts = {
        name for line in text.splitlines() if line.count("|") > 5 for name in re.findall(r"agentrun_\w+", line)
    }
    assert named | in_alerts <= {f"agentrun_{name}" for name in GAUGES}
    assert len(in_alerts) > 10


@pytest.mark.parametrize(
    ("by", "address"), [(signal.SIGINT, "127.0.0.1:0"), (signal.SIGTERM, "127.0.0.1:0"), (signal.SIGTERM, "[::1]:0")]
)
def test_it_is_served_until_somebody_ends_it(settings: Settings, rows: Rows, by: signal.Signals, address: str) -> None:
    rows.queued()
    with subprocess.Popen(
        [sys.executable, "-m", "agentrun.cli", "metrics", "--serve", address],
        env={**os.environ, **environment.variables(settings)}, stderr=subprocess.PIPE, text=True,
    ) as served:  # fmt: skip
        assert served.stderr is not None
        said = served.stderr.readline()
        url = said.split()[2].rstrip(",")
        assert url.startswith(f"http://{address.removesuffix('0')}")
        for _ in range(2):
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert parsed(answer.read().decode()).of("due_runs", queue="agentrun") == 1
        root = url.removesuffix("/metrics")
        with urllib.request.urlopen(f"{root}/", timeout=30) as answer:
            assert answer.read() == b"agentrun's metrics are at /metrics\n"
        for nothing in ("/healthz", "/metrics/more", "/favicon.ico"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(root + nothing, timeout=30)
            with contextlib.closing(refused.value) as answered:
                assert answered.code == 404
        served.send_signal(by)
        assert served.wait(30) == 0


@pytest.mark.parametrize("address", ["9464", "localhost:", "localhost:http", ":1", "h:70000"])
def test_an_address_that_is_none_is_refused(cli: Cli, address: str) -> None:
    said = cli("metrics", "--serve", address)
    assert said.code == 2
    assert "HOST:PORT" in said.err


def test_a_port_that_is_taken_is_named(cli: Cli) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        said = cli("metrics", "--serve", f"127.0.0.1:{taken.getsockname()[1]}")
    assert said.code == 3
    assert "give --serve another" in said.err
