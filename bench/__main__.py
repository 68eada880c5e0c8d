"""`python -m bench`: everything side by side, a table, a results file. `peers` takes other libraries beside it.

`profile` and `statements` help to see why.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.common import Bench
from bench.counts import counts
from bench.machine import described
from bench.measure import Measurement, beside_peers, registry
from bench.peers import comparison
from bench.peers.catalogue import DURABLE, QUEUES, versions
from bench.profile import WORKLOADS, profile
from bench.report import save, show

for _group in ("producers", "throughput", "latency", "guarantees", "crash", "waiting", "signals", "idle", "curves"):
    importlib.import_module(f"bench.{_group}")  # in the order of the table

console = Console(stderr=True, highlight=False)


def main() -> int:
    """Exit 0 where everything could be measured, whatever the figures."""
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and servers are ended
    sizes = {"rounds": 1 if asked.quick and not asked.rounds else asked.rounds or 3, "quick": asked.quick}
    history = asked.history or (20_000 if asked.quick else 1_000_000)
    with (
        tempfile.TemporaryDirectory(prefix="agentrun-bench-") as directory,
        Bench.started(Path(directory), **sizes, history=history) as bench,
    ):
        match asked.command:
            case "profile":
                profile(bench, asked.workload, runs=asked.runs, in_flight=asked.in_flight, lines=asked.lines)
            case "statements":
                counts(bench)
            case "peers":
                comparison.only.extend(asked.peer)
                partial = bool(asked.only or asked.peer)
                return _measured(bench, beside_peers, asked.only, {"peers": versions()}, partial=partial)
            case _:
                return _measured(bench, registry, asked.only, {}, partial=bool(asked.only))
    return 0


def _measured(
    bench: Bench, all_of_them: dict[str, Measurement], only: list[str], more: dict[str, Any], *, partial: bool
) -> int:
    chosen = [measurement for name, measurement in all_of_them.items() if not only or name in only]
    facts, failures = described(bench) | more, dict[str, str]()
    for measurement in chosen:
        began = time.monotonic()
        try:
            measurement.run(bench)
        except Exception as error:
            # The others are still worth having.
            failures[measurement.name] = f"{type(error).__name__}: {error}"
        console.print(f"{measurement.name}: {failures.get(measurement.name, 'done')}, {time.monotonic() - began:.0f} s")
    show(bench.samples, chosen)
    label = ("-peers" if more else "") + ("-quick" if bench.quick else "")
    label += f"-only-{'-'.join(measurement.name for measurement in chosen)}" if partial else ""
    notes = bench.notes | {"trouble": bench.trouble, "rounds": bench.rounds_wanted, "failures": failures}
    console.print(f"written to {save(bench.samples, chosen, facts, notes, label=label)}")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    _add_sizes(parser, registry)
    parser.add_argument("--history", type=_count, help="finished runs under the sweep; default 1,000,000")
    commands = parser.add_subparsers(dest="command", metavar="[peers | profile | statements]")
    peers = commands.add_parser("peers", help="beside other libraries; `make bench-peers` installs them")
    _add_sizes(peers, beside_peers)
    names = [str(name) for name in (*DURABLE, *QUEUES)]
    peers.add_argument("--peer", action="append", default=[], choices=names, help="repeat for several")
    aid = commands.add_parser("profile", help="a worker's workload in this process, under cProfile")
    aid.add_argument("workload", choices=list(WORKLOADS))
    aid.add_argument("--runs", type=_count)
    aid.add_argument("--in-flight", type=_count, default=200)
    aid.add_argument("--lines", type=_count, default=25)
    commands.add_parser("statements", help="how many statements each operation sends")
    return parser.parse_args()


def _add_sizes(parser: argparse.ArgumentParser, measurements: dict[str, Measurement]) -> None:
    parser.add_argument("--only", action="append", default=[], choices=list(measurements), help="repeat for several")
    parser.add_argument("--rounds", type=_count, help="of each measurement; default 3, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, measures little")


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text!r}")
    return number


if __name__ == "__main__":
    sys.exit(main())
