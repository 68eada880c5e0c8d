"""What grows with what: steps per second with the runs in flight, and the cost of an operation with the history."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from psycopg import sql

from agentrun.runtime.upkeep import Sweep
from bench.common import FULL, Bench
from bench.measure import OURS, Row, measures, median, pace
from bench.nodes import BenchError
from bench.throughput import drain

IN_FLIGHT = (1, 10, 50, 100, 200, 500)
SIZES = (0, 10_000, 100_000, 1_000_000, 10_000_000)
"""Finished runs in the table: as many of these as --history allows. The second is for --quick."""

OPERATIONS = {"enqueue": "enqueue", "segment": "claim to settle of a no-op run", "sweep": "sweep"}
_STEPS = 100
_WARM_CALLS, _CALLS = 50, 300
_BATCH = 250_000


@measures(
    "in-flight",
    *(Row(f"in_flight {number}", f"steps in runs of 100 steps, {number} in flight", "/s") for number in IN_FLIGHT),
)
def in_flight(bench: Bench) -> None:
    for _ in bench.rounds():
        for number in IN_FLIGHT:
            bench.clear()
            runs = max(20, min(4 * number, number + bench.size(600, 200)))
            drain(bench, "bench.steps", [_STEPS] * runs, pool=number)
            times = bench.column("SELECT extract(epoch FROM finished_at)::float8 FROM agentrun.steps ORDER BY 1")
            # Up to the last moment at which all slots were taken.
            bench.samples.add(f"in_flight {number}", OURS, pace(times, end=1 - number / runs))


@measures(
    "history",
    *(
        Row(f"history {name} {size}", f"{what}, {size:,} finished runs in the table", "ms")
        for name, what in OPERATIONS.items()
        for size in SIZES
    ),
)
def history(bench: Bench) -> None:
    """In this process, without Celery's worker: what is left is what the database does."""
    bench.clear()
    there = 0
    for size in [size for size in SIZES if size <= bench.history and (size != 10_000 or bench.quick)]:
        _grow(bench, size - there)
        there = size
        for _ in range(bench.rounds_wanted):
            for name, milliseconds in _costs(bench).items():
                bench.samples.add(f"history {name} {size}", OURS, milliseconds)


def _costs(bench: Bench) -> dict[str, float]:
    """The median of each operation, one at a time."""
    ids: list[UUID] = []
    with bench.engine() as engine, bench.client() as client:
        sweep = Sweep(engine.settings, engine.database, engine.publisher, by="bench")
        found = {
            "enqueue": _median_of(lambda: ids.append(client.enqueue("bench.noop", 1, queue=FULL))),
            "segment": _median_of(lambda: engine.run(ids.pop())),
            "sweep": _median_of(sweep.run),
        }
    if ids or not bench.ended():
        raise BenchError("some of the runs did not end")
    return found


def _median_of(call: Callable[[], object]) -> float:
    """Milliseconds."""
    times: list[float] = []
    for _ in range(_WARM_CALLS + _CALLS):
        began = time.monotonic()
        call()
        times.append(1000 * (time.monotonic() - began))
    return median(times[_WARM_CALLS:])


def _grow(bench: Bench, runs: int) -> None:
    """Add runs that ended an hour ago, each with what a claim, a step and a settling leave behind."""
    for start in range(0, runs, _BATCH):
        bench.database.execute(_HISTORY.format(count=sql.Literal(min(_BATCH, runs - start))))
    bench.database.execute("VACUUM ANALYZE agentrun.runs, agentrun.steps, agentrun.moves")
    bench.database.execute("CHECKPOINT")  # what filling left behind is not theirs


_HISTORY = sql.SQL("""
    WITH grown AS (
        INSERT INTO agentrun.runs
            (id, namespace, kind, status, reason, queue, request, result, epoch, started_at, finished_at)
        SELECT gen_random_uuid(), 'default', 'bench.steps', 'completed', 'completed', 'agentrun', '1', '1', 1,
               now() - interval '1 hour', now() - interval '1 hour'
        FROM generate_series(1, {count})
        RETURNING id, finished_at
    ), told AS (
        INSERT INTO agentrun.moves (run_id, type, at, epoch, by)
        SELECT id, type, finished_at, 1, 'bench' FROM grown, unnest(ARRAY['claimed', 'settled']) AS type
    )
    INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, by, result, seq, finished_at)
    SELECT id, 'one#1', 'step', 'one', 'read_only', 'completed', 1, 'bench', '1', 1, finished_at FROM grown
""")
