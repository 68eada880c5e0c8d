"""What a producer pays: one by one, many at once. No worker runs meanwhile."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable

import psycopg

from bench import bare
from bench.common import FULL, Bench
from bench.measure import CELERY, FLOOR, OURS, Row, at_least, at_least_times, measures
from bench.nodes import BenchError

_TABLE = """
    CREATE SCHEMA IF NOT EXISTS bench;
    DROP TABLE IF EXISTS bench.runs;
    CREATE TABLE bench.runs (
        id uuid PRIMARY KEY, kind text NOT NULL, status text NOT NULL, queue text NOT NULL, request json,
        due_at timestamptz NOT NULL DEFAULT now(), created_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX ON bench.runs (queue, due_at) WHERE status = 'queued'
"""
_INSERT = "INSERT INTO bench.runs (id, kind, status, queue, request) VALUES (%s, 'bench.noop', 'queued', %s, %s)"
_WARM_CALLS = 50


@measures("enqueue", Row("enqueue", "enqueue, one by one", "/s", at_least_times(0.85), FLOOR))
def enqueue(bench: Bench) -> None:
    """Beside one INSERT and one `send_task`, from one client as well."""
    count = bench.size(2000, 300)
    for _ in bench.rounds():
        bench.samples.add("enqueue", FLOOR, _insert_and_send(bench, count))
        bench.clear()
        bench.samples.add("enqueue", OURS, _enqueue(bench, count))


@measures("enqueue-many", Row("enqueue_many", "enqueue_many: rows stored and wakes sent", "/s", at_least(5000), CELERY))
def enqueue_many(bench: Bench) -> None:
    """Beside bare Celery's `send_task` on one connection, which stores nothing."""
    count = bench.size(10_000, 2_000)
    for _ in bench.rounds():
        bench.samples.add("enqueue_many", CELERY, _send_many(bench, count))
        bench.clear()
        bench.samples.add("enqueue_many", OURS, _enqueue_many(bench, count))


def _insert_and_send(bench: Bench, count: int) -> float:
    with psycopg.connect(bench.servers.database_url, autocommit=True, application_name="bench") as connection:
        connection.execute(_TABLE)

        def once(number: int) -> None:
            run_id = uuid.uuid4()
            connection.execute(_INSERT, (run_id, FULL, json.dumps(number)))
            bench.control.send_task(bare.NOOP, (str(run_id),), queue=FULL)

        return _rate(once, count)


def _enqueue(bench: Bench, count: int) -> float:
    with bench.client() as client:
        return _rate(lambda number: client.enqueue("bench.noop", number, queue=FULL), count)


def _rate(call: Callable[[int], object], count: int) -> float:
    for number in range(_WARM_CALLS):
        call(number)
    began = time.monotonic()
    for number in range(count):
        call(number)
    return count / (time.monotonic() - began)


def _send_many(bench: Bench, count: int) -> float:
    with bench.control.producer_or_acquire() as producer:
        began = time.monotonic()
        for number in range(count):
            bench.control.send_task(bare.NOOP, (number,), queue=FULL, producer=producer)
        return count / (time.monotonic() - began)


def _enqueue_many(bench: Bench, count: int) -> float:
    with bench.client() as client:
        client.enqueue_many("bench.noop", list(range(_WARM_CALLS)), queue=FULL)
        bench.clear()
        began = time.monotonic()
        client.enqueue_many("bench.noop", list(range(count)), queue=FULL)
        seconds = time.monotonic() - began
    stored, waiting = bench.value("SELECT count(*) FROM agentrun.runs"), bench.redis.llen(FULL)
    if (stored, waiting) != (count, count):
        raise BenchError(f"of {count} runs, {stored} were stored and {waiting} wakes were sent")
    return count / seconds
