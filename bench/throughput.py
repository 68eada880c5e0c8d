"""Runs and steps per second, drained from a full queue by warm workers; bare Celery's no-op tasks drained likewise."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence

import psycopg

from bench import bare
from bench.common import FULL, WARM, Bench
from bench.measure import CELERY, FLOOR, OURS, Row, at_least_times, at_most_times, measures, pace
from bench.nodes import POOL, Node
from bench.ticks import Ticks

IN_FLIGHT = 200
_WARM_RUNS = 100

_FLOOR_TABLE = """
    CREATE SCHEMA IF NOT EXISTS bench;
    DROP TABLE IF EXISTS bench.steps;
    CREATE TABLE bench.steps (
        run_id uuid NOT NULL, key text NOT NULL, name text NOT NULL, status text NOT NULL, result json,
        finished_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (run_id, key)
    )
"""
_FLOOR_INSERT = "INSERT INTO bench.steps (run_id, key, name, status, result) VALUES (%s, %s, 'one', 'completed', %s)"


@measures("noop", Row("noop", "no-op runs, draining a full queue", "/s", at_least_times(0.65), CELERY))
def noop(bench: Bench) -> None:
    count = bench.size(4000, 600)
    ticks = Ticks(bench.directory / "noop.ticks")
    for _ in bench.rounds():
        bench.samples.add("noop", CELERY, pace(drain_bare(bench, ticks, bare.NOOP, list(range(count)))))
        bench.samples.add("noop", OURS, pace(drain(bench, "bench.noop", list(range(count)))))


@measures("ten", Row("ten", "runs of 10 steps, draining a full queue", "/s"))
def ten(bench: Bench) -> None:
    count = bench.size(2000, 300)
    for _ in bench.rounds():
        bench.samples.add("ten", OURS, pace(drain(bench, "bench.steps", [10] * count)))


@measures("steps", Row("steps", f"steps in runs of 100 steps, {IN_FLIGHT} in flight", "/s", at_least_times(0.4), FLOOR))
def steps(bench: Bench) -> None:
    count = bench.size(4 * IN_FLIGHT, 2 * IN_FLIGHT)
    for _ in bench.rounds():
        bench.samples.add("steps", FLOOR, _pipelined_inserts(bench))
        drain(bench, "bench.steps", [100] * count, pool=IN_FLIGHT)
        times = bench.column("SELECT extract(epoch FROM finished_at)::float8 FROM agentrun.steps ORDER BY 1")
        # Up to the last moment at which all slots were taken.
        bench.samples.add("steps", OURS, pace(times, end=1 - IN_FLIGHT / count))


@measures("slots", Row("slots", "60 runs of 0.2 s on 4 slots (at best 3 s)", "s", at_most_times(1.2), CELERY))
def slots(bench: Bench) -> None:
    """Whether a slot that becomes free is taken at once."""
    ticks, (seconds, count, pool) = Ticks(bench.directory / "slots.ticks"), (0.2, 60, 4)
    for _ in bench.rounds():
        times = drain_bare(bench, ticks, bare.NAP, [seconds] * count, pool=pool)
        bench.samples.add("slots", CELERY, times[-1] - times[0] + seconds)
        times = drain(bench, "bench.wait", [seconds] * count, pool=pool)
        bench.samples.add("slots", OURS, times[-1] - times[0] + seconds)


@measures("scale-out", Row("scale", "runs of 10 steps, two workers over one", "/s", at_least_times(1.5), "one worker"))
def scale_out(bench: Bench) -> None:
    count = bench.size(2000, 300)
    for _ in bench.rounds():
        bench.samples.add("scale", "one worker", pace(drain(bench, "bench.steps", [10] * count)))
        bench.clear()
        bench.samples.add("scale", OURS, pace(drain(bench, "bench.steps", [10] * count, workers=2)))


def drain(bench: Bench, kind: str, requests: Sequence[float], *, workers: int = 1, pool: int = POOL) -> list[float]:
    """Warm up, fill the queue, open it to the workers; when each run completed."""
    with bench.workers(workers, pool=pool) as nodes, bench.client() as client:
        client.enqueue_many("bench.steps", [10] * _WARM_RUNS, queue=WARM)
        bench.until(bench.ended, nodes)
        bench.clear()
        client.enqueue_many(kind, requests, queue=FULL)
        bench.open(FULL, nodes)
        bench.until(bench.ended, nodes)
        return bench.finish_times(len(requests))


def drain_bare(
    bench: Bench, ticks: Ticks, task: str, requests: Sequence[float], *, pool: int = POOL, each: int = 1
) -> list[float]:
    """The same for bare Celery's tasks; when each noted its end. `each` is how many a request makes."""
    ticks.clear()
    with bench.bare_workers(ticks, pool=pool) as nodes:
        _send(bench, bare.NOOP, range(_WARM_RUNS), WARM)
        _until_noted(bench, ticks, _WARM_RUNS, nodes)
        ticks.clear()
        _send(bench, task, requests, FULL)
        bench.open(FULL, nodes)
        _until_noted(bench, ticks, each * len(requests), nodes)
        return ticks.times()


def _send(bench: Bench, task: str, requests: Iterable[float], queue: str) -> None:
    with bench.control.producer_or_acquire() as producer:
        for request in requests:
            bench.control.send_task(task, (request,), queue=queue, producer=producer)


def _until_noted(bench: Bench, ticks: Ticks, count: int, nodes: Sequence[Node]) -> None:
    bench.until(lambda: len(ticks) >= count, nodes)


def _pipelined_inserts(bench: Bench) -> float:
    """What one connection can insert and commit: batches as large as ours can become, nothing guarded."""
    runs = [uuid.uuid4() for _ in range(IN_FLIGHT)]
    batches = bench.size(200, 40)
    with psycopg.connect(bench.servers.database_url, autocommit=True, application_name="bench") as connection:
        connection.execute(_FLOOR_TABLE)
        began = time.monotonic()
        for number in range(batches):
            with connection.transaction():
                connection.cursor().executemany(_FLOOR_INSERT, [(run, f"#{number}", str(number)) for run in runs])
        return batches * IN_FLIGHT / (time.monotonic() - began)
