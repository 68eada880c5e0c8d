"""An idle system: from the call of enqueue to the first line of the body, beside bare Celery's `send_task`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from bench import bare
from bench.common import WARM, Bench
from bench.measure import CELERY, FLOOR, OURS, Row, at_most_times, measures, median, percentile
from bench.nodes import BenchError
from bench.ticks import VARIABLE, Ticks

_LONGEST = 30.0
_STARTS = 150
"""Of each side in a round: with 60, the p95 hangs on three of them."""

_THEIRS = "bench.idle"


@measures(
    "latency",
    Row("latency_p50", "idle enqueue to first line of the body, p50", "ms", at_most_times(1.5), CELERY),
    Row("latency_p95", "idle enqueue to first line of the body, p95", "ms", at_most_times(1.5), CELERY),
    Row("latency_least", "the same p50, beside bare Celery's and two rows committed", "ms", None, FLOOR),
)
def latency(bench: Bench) -> None:
    """Both workers are up the whole time, and are asked by turns.

    A run is stored before its message is sent, and claimed before its body begins: what two commits of one row take on
    the idle system stands beside bare Celery's time. The body need not wait for the second.
    """
    bench.database.execute("CREATE SCHEMA IF NOT EXISTS bench")
    bench.database.execute("CREATE TABLE IF NOT EXISTS bench.commits (id uuid PRIMARY KEY)")
    ours, theirs = Ticks(bench.directory / "ours.ticks"), Ticks(bench.directory / "theirs.ticks")
    with (
        bench.workers(variables={VARIABLE: str(ours.path)}),
        bench.bare_workers(theirs, queues=(_THEIRS,)),
        bench.client() as client,
    ):
        for round_number in bench.rounds():
            sides: dict[str, list[float]] = {OURS: [], CELERY: []}
            commits: list[float] = []
            for number in range(bench.size(_STARTS, 10) + 5):
                waited = {
                    OURS: _one(ours, lambda n=number: client.enqueue("bench.tick", n, queue=WARM)),
                    CELERY: _one(theirs, lambda n=number: bench.control.send_task(bare.NOOP, (n,), queue=_THEIRS)),
                }
                commits.append(1000 * _commit(bench))
                if round_number or number >= 5:  # the very first ones open connections
                    for side, seconds in waited.items():
                        sides[side].append(seconds * 1000)
            for side, values in sides.items():
                bench.samples.add("latency_p50", side, median(values))
                bench.samples.add("latency_p95", side, percentile(values, 0.95))
            bench.samples.add("latency_least", OURS, median(sides[OURS]))
            bench.samples.add("latency_least", FLOOR, median(sides[CELERY]) + 2 * median(commits))


def _commit(bench: Bench) -> float:
    time.sleep(random.uniform(0.05, 0.15))
    began = time.monotonic()
    bench.database.execute("INSERT INTO bench.commits VALUES (gen_random_uuid())")
    return time.monotonic() - began


def _one(ticks: Ticks, enqueue: Callable[[], object]) -> float:
    time.sleep(random.uniform(0.05, 0.15))
    before, began = len(ticks), time.monotonic()
    enqueue()
    while len(ticks) == before:
        if time.monotonic() > began + _LONGEST:
            raise BenchError(f"nothing started within {_LONGEST:.0f} s on an idle system")
        time.sleep(0.001)
    return ticks.times()[-1] - began
