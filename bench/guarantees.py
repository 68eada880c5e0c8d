"""What the guarantees cost: a fenced write beside a plain step, take-over after a crash, replaying a journal."""

from __future__ import annotations

import time
from uuid import UUID

from agentrun.runtime.engine import Engine
from bench.common import WARM, Bench
from bench.measure import OURS, Row, at_most, at_most_times, measures
from bench.nodes import BenchError
from bench.throughput import drain

UNFENCED = "plain step"
_REPLAYED = 1000


@measures(
    "writes",
    Row("write_trips", "round trips of a fenced write, beyond a step's", "", at_most(1)),
    Row("write_alone", "a fenced write, in a lone run", "ms", None, UNFENCED),
    Row("write_under_load", "a fenced write, 100 runs side by side", "ms", at_most_times(1.6), UNFENCED),
)
def writes(bench: Bench) -> None:
    """A write is fenced and finished: at most one more round trip than a step, which is only recorded."""
    alone, runs, each = bench.size(300, 60), bench.size(300, 100), 20
    for _ in bench.rounds():
        for side, kind in ((UNFENCED, "bench.steps"), (OURS, "bench.writes")):
            bench.clear()
            drain(bench, kind, [alone])
            bench.samples.add("write_alone", side, 1000 * _spent(bench) / alone)
            bench.clear()
            drain(bench, kind, [each] * runs)
            bench.samples.add("write_under_load", side, 1000 * _spent(bench) / (each * runs))
        trips = {kind: _trips(bench, kind, alone) for kind in ("bench.steps", "bench.writes")}
        bench.samples.add("write_trips", OURS, trips["bench.writes"] - trips["bench.steps"])


def _trips(bench: Bench, kind: str, count: int) -> float:
    """Commits that a lone run waits for, for each step."""
    bench.clear()
    with bench.engine() as engine, bench.client() as client:
        run_id = client.enqueue(kind, count)
        engine.run(run_id)
        return (engine.writer.batches - 2) / count  # without the claim and the settlement


@measures(
    "take-over",
    Row("take_over", "take-over after SIGKILL, default lease (30 s, sweep 5 s)", "s", at_most(35)),
    Row("take_over_short", "take-over after SIGKILL, lease 2 s, sweep 1 s", "s", at_most(3)),
)
def take_over(bench: Bench) -> None:
    """From the kill to the claim by the worker that is left."""
    short = {"AGENTRUN_LEASE_SECONDS": "2", "AGENTRUN_HEARTBEAT_SECONDS": "0.5", "AGENTRUN_SWEEP_SECONDS": "1"}
    for _ in bench.rounds():
        if not bench.quick:
            bench.samples.add("take_over", OURS, _take_over(bench, {}))
            bench.clear()
        bench.samples.add("take_over_short", OURS, _take_over(bench, short))


@measures(
    "replay",
    Row("replay_own", f"replay of a run with {_REPLAYED:,} steps: processor time of the segment", "ms", at_most(50)),
    Row("replay", f"replay of a run with {_REPLAYED:,} steps: claim, replay and settle", "ms"),
    Row("replay_statements", "statements in a segment that only replays: claim, one query, settle", "", at_most(3)),
)
def replay(bench: Bench) -> None:
    """In this process, without Celery: nothing else runs in it meanwhile."""
    with bench.engine(backoff_base_seconds=0.001, backoff_max_seconds=0.001) as engine, bench.client() as client:
        for _ in bench.rounds():
            run_id = client.enqueue("bench.replay", _REPLAYED)
            engine.run(run_id)
            bench.until(lambda: bench.value("SELECT max(due_at) < now() FROM agentrun.runs"), ())
            _replay(bench, engine, run_id)


def _replay(bench: Bench, engine: Engine, run_id: UUID) -> None:
    statements, processor, began = engine.writer.writes, time.process_time(), time.monotonic()
    report = engine.run(run_id)
    seconds, spent = time.monotonic() - began, time.process_time() - processor
    if (report.outcome, report.replayed, report.executed) != ("completed", _REPLAYED, 0):
        raise BenchError(f"not a replay: {report}")
    bench.samples.add("replay", OURS, 1000 * seconds)
    bench.samples.add("replay_own", OURS, 1000 * spent)
    bench.samples.add("replay_statements", OURS, engine.writer.writes - statements)


def _spent(bench: Bench) -> float:
    """Seconds from the first claim to the last end."""
    span = "SELECT extract(epoch FROM max(finished_at) - min(claimed_at))::float8 FROM agentrun.runs"
    return bench.value(span)


def _take_over(bench: Bench, variables: dict[str, str]) -> float:
    queues = (WARM, "agentrun.system")
    claimed = "SELECT max(epoch) >= %(epoch)s AND bool_and(status = 'running') FROM agentrun.runs"
    with bench.client() as client, bench.workers(pool=4, queues=queues, variables=variables) as (victim,):
        client.enqueue("bench.naps", 1000, queue=WARM)
        bench.until(lambda: bench.value(claimed, {"epoch": 1}), (victim,))
        with bench.workers(pool=4, queues=queues, variables=variables) as survivors, bench.beat(variables):
            time.sleep(1)  # somewhere between two heartbeats
            victim.kill()
            killed = time.monotonic()
            bench.until(lambda: bench.value(claimed, {"epoch": 2}), survivors, seconds=120, every=0.01)
            return time.monotonic() - killed
