"""The crash measured for other libraries: five writes of a second, SIGKILL in the third, another worker idle."""

from __future__ import annotations

import time
from uuid import UUID

from agentrun import Client, Status
from bench.common import WARM, Bench
from bench.measure import OURS, Row, at_most, measures


@measures(
    "crash",
    Row("crash_taken_over", "SIGKILL in the third of five writes: taken over after", "s", at_most(40)),
    Row("crash_reconciled", "… with reconcile: how often each of the five happened (11111)", ""),
    Row("crash_stopped", "… without: the run stops and names the write (11100)", ""),
    Row("crash_resolved", "… and after `resolve --applied` (11111)", ""),
)
def crash(bench: Bench) -> None:
    """At default settings, as the others were; with --quick, a lease of 3 s."""
    short = {"AGENTRUN_LEASE_SECONDS": "3", "AGENTRUN_HEARTBEAT_SECONDS": "0.5", "AGENTRUN_SWEEP_SECONDS": "1"}
    variables = short if bench.quick else {}
    for _ in bench.rounds():
        _crash(bench, variables, reconciled=True)
        _crash(bench, variables, reconciled=False)


def _crash(bench: Bench, variables: dict[str, str], *, reconciled: bool) -> None:
    bench.clear()
    bench.database.execute("DROP TABLE IF EXISTS effects; CREATE TABLE effects (number int, key text)")
    queues = (WARM, "agentrun.system")
    workers = bench.workers(2, pool=4, queues=queues, variables=variables)
    with bench.client() as client, workers as nodes, bench.beat(variables):
        run_id = client.enqueue("bench.five", reconciled, queue=WARM)
        bench.until(lambda: bench.value("SELECT count(*) = 3 FROM effects"), nodes, every=0.01)
        victim = next(node for node in nodes if (client.status(run_id).claimed_by or "").endswith(f":{node.pid}"))
        survivors = [node for node in nodes if node is not victim]
        victim.kill()
        killed = time.monotonic()
        moved = "SELECT status <> 'running' OR epoch > 1 FROM agentrun.runs"
        bench.until(lambda: bench.value(moved), survivors, seconds=120, every=0.01)
        bench.samples.add("crash_taken_over", OURS, time.monotonic() - killed)
        _finished(bench, client, run_id, reconciled=reconciled)


def _finished(bench: Bench, client: Client, run_id: UUID, *, reconciled: bool) -> None:
    run = client.wait(run_id, timeout=60)
    if reconciled:
        bench.samples.add("crash_reconciled", OURS, _digits(bench))
        return
    if run.status is Status.FAILED and run.pending_effect is not None:
        bench.samples.add("crash_stopped", OURS, _digits(bench))
        client.resolve(run_id, applied=True, result="done")
        client.wait(run_id, timeout=60)
    bench.samples.add("crash_resolved", OURS, _digits(bench))


def _digits(bench: Bench) -> float:
    """How often each of the five writes happened, a digit each."""
    digits = (
        "SELECT sum(count * 10 ^ (4 - number))::float8 FROM (SELECT number, count(*) FROM effects GROUP BY 1) AS each"
    )
    return bench.value(digits)
