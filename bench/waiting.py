"""Many runs that wait, as agents wait for models, in one worker process: memory, leases, and what others still get."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agentrun import Client
from bench.common import WARM, Bench
from bench.measure import OURS, Row, at_least, at_least_times, at_most, measures
from bench.nodes import Node

_FEWER, _MORE = 1000, 2000
_LEASE, _HEARTBEAT = 30.0, 7.0
_PASSES, _EACH = 5, 10
ALONE = "without them"


@measures(
    "waiting",
    Row("waiting", f"{_FEWER:,} bodies that await 5 s: from enqueue to the last end", "s", at_most(10)),
    Row("waiting_memory", f"memory of their worker process, {_FEWER:,} waiting", "MB", at_most(400)),
)
def waiting(bench: Bench) -> None:
    for _ in bench.rounds():
        with bench.workers(pool=_FEWER) as nodes, bench.client() as client:
            client.enqueue_many("bench.wait", [5.0] * _FEWER, queue=WARM)
            memory = bench.watch(nodes[0].memory, bench.ended, nodes)
            bench.finish_times(_FEWER)
            bench.samples.add("waiting", OURS, bench.value(_SPAN))
            bench.samples.add("waiting_memory", OURS, max(memory))


@measures(
    "crowd",
    Row("crowd_memory", f"memory of a worker process, {_MORE:,} waiting", "MB", at_most(600)),
    Row("crowd_lease", f"shortest lease seen, {_MORE:,} waiting", "s", at_least(_LEASE - _HEARTBEAT - 1)),
    Row("crowd_steps", f"steps beside {_MORE:,} waiting, 10 a run", "/s", at_least_times(0.9), ALONE),
)
def crowd(bench: Bench) -> None:
    """A heartbeat is late where a lease has less left than it can have between two of them.

    The crowd waits until its worker is killed: it is there, complete, as long as it is looked at. There is room for all
    the others beside it, so that as many of them are in flight as without it.
    """
    runs = bench.size(600, 200)
    for _ in bench.rounds():
        with bench.workers(pool=_MORE + runs) as nodes, bench.client() as client:
            _span(bench, client, nodes, runs // 2)
            bench.samples.add("crowd_steps", ALONE, _rate(bench, client, nodes, runs))
            client.enqueue_many("bench.wait", [3600.0] * _MORE, queue=WARM)
            bench.until(lambda: bench.value(_WAITING) == _MORE, nodes)
            bench.samples.add("crowd_steps", OURS, _rate(bench, client, nodes, runs))
            leases = bench.watch(lambda: bench.value(_SHORTEST), _after(3 * _HEARTBEAT), nodes)
            bench.samples.add("crowd_memory", OURS, nodes[0].memory())
            bench.samples.add("crowd_lease", OURS, min(leases))


_SPAN = "SELECT extract(epoch FROM max(finished_at) - min(created_at))::float8 FROM agentrun.runs"
_WAITING = "SELECT count(*) FROM agentrun.runs WHERE status = 'running' AND kind = 'bench.wait'"
_SHORTEST = (
    "SELECT extract(epoch FROM min(lease_expires_at) - now())::float8 FROM agentrun.runs WHERE status = 'running'"
)
# By their ids: it is asked again and again, and must not cost more beside the crowd.
_OPEN = "SELECT EXISTS (SELECT FROM agentrun.runs WHERE id = ANY(%(ids)s) AND status || '' IN ('queued', 'running'))"
_STEPS_TOOK = """
    SELECT extract(epoch FROM max(steps.finished_at) - min(steps.finished_at))::float8
    FROM agentrun.steps WHERE run_id = ANY(%(ids)s)
"""


def _after(seconds: float) -> Callable[[], bool]:
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() > ends


def _rate(bench: Bench, client: Client, nodes: Sequence[Node], runs: int) -> float:
    """Steps a second over several passes: one takes a second, too short to be told from the machine's moods."""
    spans = [_span(bench, client, nodes, runs) for _ in range(_PASSES)]
    return _PASSES * runs * _EACH / sum(spans)


def _span(bench: Bench, client: Client, nodes: Sequence[Node], runs: int) -> float:
    """Seconds from the first step's end to the last one's."""
    ids = client.enqueue_many("bench.steps", [_EACH] * runs, queue=WARM)
    bench.until(lambda: not bench.value(_OPEN, {"ids": ids}), nodes)
    return bench.value(_STEPS_TOOK, {"ids": ids})
