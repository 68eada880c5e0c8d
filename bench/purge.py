"""How fast `agentrun purge` removes history, and the plan by which it does: `python -m bench.purge [--runs N]`.

Runs of ten steps that ended long ago, among as many that ended just now; one in twenty is a dead letter and stays.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from agentrun.core.records import Purged
from bench.common import Bench

STEPS = 10
FILL = (
    """
    INSERT INTO agentrun.runs (id, namespace, kind, status, reason, request, result, queue, epoch, created_at,
           finished_at)
    SELECT gen_random_uuid(), 'default', 'k', CASE WHEN n %% 20 = 0 THEN 'failed' ELSE 'completed' END,
           CASE WHEN n %% 20 = 0 THEN 'not_retryable' ELSE 'completed' END, '{"order": 17}', '"done"', 'agentrun', 1,
           at, at + interval '1 s'
    FROM generate_series(1, 2 * %(runs)s) AS n,
         LATERAL (SELECT now() - CASE WHEN n > %(runs)s THEN interval '0' ELSE interval '100 days' END
                  - (n %% %(runs)s) * interval '10 ms' - interval '2 s' AS at) AS born
    """,
    """
    INSERT INTO agentrun.moves (run_id, type, at, epoch, by, data)
    SELECT id, type, finished_at, 1, 'worker:host:1:abc', '{"reason": "completed"}'
    FROM agentrun.runs, unnest(array['claimed', 'settled']) AS type
    """,
    """
    INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, by, args_digest, result, seq,
           started_at, finished_at)
    SELECT id, '#' || n, 'step', 'look', 'read_only', 'completed', 1, 'worker:host:1:abc', md5(n::text),
           '{"page": 1, "text": "a line of what a step has found"}', n, finished_at, finished_at
    FROM agentrun.runs, generate_series(1, %(steps)s) AS n
    """,
    "VACUUM ANALYZE agentrun.runs, agentrun.moves, agentrun.steps",
)


def main() -> None:
    """Fill, purge, print one line of JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=100_000)
    options.add_argument("--batch", type=int, default=500)
    given = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        Bench.started(Path(directory), rounds=1, quick=False, history=0) as bench,
    ):
        for statement in FILL:
            bench.database.execute(statement, {"runs": given.runs, "steps": STEPS} if "%" in statement else None)  # type: ignore[arg-type]
        print(json.dumps(measured(bench, given.runs, given.batch)))


def measured(bench: Bench, runs: int, batch: int) -> dict[str, Any]:
    """One purge of everything older than 90 days; and what the database said of its statement."""
    longest, last = 0.0, time.monotonic()
    batches: list[float] = []

    def told(_: Purged) -> None:
        nonlocal last
        batches.append(time.monotonic() - last)
        last = time.monotonic()

    with bench.client() as client:
        counted = client.purge(older_than=90 * 86_400, dry_run=True)
        began = last = time.monotonic()
        gone = client.purge(older_than=90 * 86_400, batch=batch, told=told)
        took = time.monotonic() - began
    # Every second moment is a pause, as long as the batch before it.
    longest = sorted(batches)[int(len(batches) * 0.99)] / 2
    rows = gone.runs + gone.steps + gone.events
    left = bench.value("SELECT count(*) FROM agentrun.runs")
    assert counted.runs == gone.runs == runs - runs // 20
    assert left == 2 * runs - gone.runs
    return {
        "runs": gone.runs, "rows": rows, "seconds": round(took, 1), "runs_per_second": round(gone.runs / took),
        "rows_per_second": round(rows / took), "batch": batch, "batch_p99_ms": round(longest * 1000),
    }  # fmt: skip


if __name__ == "__main__":
    main()
