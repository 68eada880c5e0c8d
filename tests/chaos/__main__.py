"""Chaos with real processes: `python -m tests.chaos --seed 7 --scale 1.0`. Exit 1 where a promise breaks.

At scale 1: 300 runs of 5 writes, 30 SIGKILLs among three workers, two flushes of Redis, one restart of PostgreSQL.
Runs of some kinds do their writes in steps, those of others in remote steps that any of the workers takes.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from agentrun import Settings
from agentrun.testing import environment
from agentrun.testing.servers import embedded_only
from tests.chaos.run import chaos
from tests.chaos.storm import Plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=7, help="decides the order of the faults and where they fall")
    parser.add_argument("--scale", type=float, default=1.0, help="1.0: 300 runs and 30 kills")
    given = parser.parse_args()
    plan = Plan.scaled(given.seed, given.scale)
    print(f"seed {plan.seed}: {plan.runs} runs x 5 writes, {plan.kills} kills, {plan.flushes} flushes, 1 restart")
    environment.take_away()
    # The pools of this process tell of every connection that the restart broke.
    logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())
    with embedded_only() as servers, tempfile.TemporaryDirectory(prefix="agentrun-chaos-") as directory:
        assert servers.embedded is not None
        settings = Settings(database_url=servers.create_database(), broker_url=servers.broker_url)
        try:
            done = chaos(plan, settings, servers.embedded.postgres, Path(directory), _say)
        except AssertionError as broken:
            print(f"\nBROKEN with seed {plan.seed}, scale {given.scale}:\n{broken}")
            return 1
    print(f"\nseed {plan.seed}: every run is completed and every effect is there exactly once")
    for what, number in sorted(done.items()):
        print(f"  {what:<40} {number:>6}")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
