"""The benchmark still works: what it measures can be asked for, shown and stored. It tells itself how fast that is."""

from __future__ import annotations

import contextlib
import io
import json
import os
import py_compile
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

import bench.__main__  # it imports every measurement
from agentrun.store.writer import Writer
from bench import report
from bench.batches import Watched
from bench.common import FULL, Bench
from bench.measure import FLOOR, OURS, Measurement, Peer, Row, Samples, at_least, at_least_times, beside_peers, registry
from bench.nodes import ROOT, BenchError
from bench.peers import comparison
from bench.peers.catalogue import ABSURD, ABSURD_SYNC, DBOS, DURABLE, OBAN, QUEUES, side
from bench.peers.libraries import Library, Producer
from bench.peers.sides import Side
from bench.peers.waiting import steady_rate
from bench.profile import side_by_side

THEIRS = Peer("somebody else's")
FACTS = {
    "machine": {"system": "Linux x86_64", "cores": 2, "memory_gb": 24},
    "versions": {"python": "3.11.7"},
    "postgresql": {"server_version": "18.4"},
}


class TinyBench(Bench):
    def size(self, full: int, quick: int) -> int:
        return min(quick, 30)


@pytest.fixture
def tiny(database_url: str, broker_url: str, tmp_path: Path) -> Iterator[Bench]:
    servers: Any = SimpleNamespace(database_url=database_url, broker_url=broker_url)
    found = TinyBench(servers, tmp_path, rounds=2, quick=True, history=0)
    with contextlib.closing(found.database), contextlib.closing(found.redis), contextlib.closing(found.control):
        yield found


def measured() -> tuple[Samples, list[Measurement]]:
    samples = Samples()
    for ours, floor, peer in ((100.0, 50.0, 10.0), (90.0, 100.0, 30.0), (80.0, 40.0, 40.0)):
        samples.add("fast", OURS, ours)
        samples.add("fast", FLOOR, floor)
        samples.add("faster", OURS, ours)
        samples.add("faster", THEIRS, peer)
        samples.add("alone", OURS, ours)
    rows = (
        Row("fast", "as fast as can be", "/s", at_least_times(2.5), FLOOR),
        Row("faster", "faster than others", "/s", at_least_times(3), THEIRS),
        Row("alone", "by itself", "/s", at_least(95)),
        Row("never", "not measured", "/s", at_least(1)),
    )
    return samples, [Measurement("some", lambda bench: None, rows)]


def shown(samples: Samples, measurements: list[Measurement]) -> list[str]:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(report.table(samples, measurements))
    return cast("io.StringIO", console.file).getvalue().splitlines()


def test_every_measurement_has_rows_and_no_metric_is_shown_twice() -> None:
    assert {"enqueue", "noop", "ten", "steps", "sweep", "in-flight", "history"} <= registry.keys()
    assert {"runs", "steps", "noops", "enqueues", "bulk", "idle"} == beside_peers.keys()
    for measurements in (registry, beside_peers):
        metrics = Counter(row.metric for measurement in measurements.values() for row in measurement.rows)
        assert [metric for metric, times in metrics.items() if times > 1] == []
        assert all(measurement.rows for measurement in measurements.values())


def test_the_goals_beside_other_libraries_are_those_that_were_set() -> None:
    rows = [row for name in ("runs", "steps") for row in beside_peers[name].rows if row.goal]
    assert {(row.metric.partition(" ")[0], row.against): str(row.goal) for row in rows} == {
        ("ten_more", "DBOS"): "≥ 10 x",
        ("ten_more", "Absurd async"): "≥ 4 x",
        ("steps", "DBOS"): "≥ 25 x",
        ("steps", "Absurd async"): "≥ 10 x",
    }


def test_the_table_has_floors_and_peers_in_columns_of_their_own_and_says_what_was_reached() -> None:
    lines = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in shown(*measured()) if "│" in line]
    assert lines == [
        ["as fast as can be", "50 /s (40 - 100)", "", "90 /s (80 - 100)", "2.00 x", "≥ 2.5 x", "no"],
        ["faster than others", "", "somebody else's 30 /s (10 - 40)", "90 /s (80 - 100)", "3.00 x", "≥ 3 x", "yes"],
        ["by itself", "", "", "90 /s (80 - 100)", "", "≥ 95", "no"],
    ]


def test_a_ratio_is_taken_within_each_round() -> None:
    samples, _ = measured()
    assert samples.ratios("fast", FLOOR) == [2.0, 0.9, 2.0]


def test_a_results_file_holds_figures_goals_versions_and_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    samples, measurements = measured()
    path = report.save(samples, measurements, FACTS | {"peers": {"theirs": "1.0"}}, {"rounds": 3}, label="-peers")
    found = json.loads(path.read_text())
    assert path.name.endswith("linux-x86_64-2cores-24gb-python3.11-postgresql18.4-peers.json")
    assert found["peers"] == {"theirs": "1.0"}
    assert found["samples"]["fast"] == {OURS: [100.0, 90.0, 80.0], FLOOR: [50.0, 100.0, 40.0]}
    assert found["results"]["faster"] == {
        "what": "faster than others",
        "unit": "/s",
        "agentrun": 90.0,
        "against": "somebody else's",
        "ratio": 3.0,
        "goal": "≥ 3 x",
        "reached": True,
    }


def test_the_cheapest_measurement_gives_a_figure_per_round_for_both_sides(tiny: Bench) -> None:
    registry["enqueue"].run(tiny)
    assert {side: len(values) for side, values in tiny.samples.all["enqueue"].items()} == {OURS: 2, FLOOR: 2}
    assert all(value > 0 for values in tiny.samples.all["enqueue"].values() for value in values)


def test_a_profile_tells_what_postgres_works_on_and_who_computes_meanwhile(tiny: Bench) -> None:
    count = 60
    with tiny.engine() as engine, tiny.client() as client:
        ids = client.enqueue_many("bench.writes", [2] * count, queue=FULL)
        methods = Writer.__dict__["_pipelined"], Writer.__dict__["_tell"]
        with Watched(engine.writer).watching() as batches:
            engine.submit(side_by_side(engine, ids, count)).result()
        assert (Writer.__dict__["_pipelined"], Writer.__dict__["_tell"]) == methods
    written = [batch for batch in batches if "fence" in batch.statements]
    assert sum(batch.writes for batch in written) >= 2 * count
    assert all(batch.working > 0 for batch in written)
    assert {"fence", "finish"} <= {name for batch in batches for name in batch.answered.split(", ")}


@pytest.mark.parametrize("number", ["-1", "0", "two", "1.5", ""])
@pytest.mark.parametrize(
    ("before", "option"),
    [
        ((), "--rounds"),
        (("--quick",), "--rounds"),
        ((), "--history"),
        (("peers",), "--rounds"),
        (("profile", "noop"), "--runs"),
        (("profile", "noop"), "--in-flight"),
        (("profile", "noop"), "--lines"),
    ],
)
def test_less_than_one_of_anything_is_refused_before_anything_starts(
    before: tuple[str, ...],
    option: str,
    number: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Bench, "started", None)
    monkeypatch.setattr(sys, "argv", ["bench", *before, f"{option}={number}"])
    with pytest.raises(SystemExit) as ended:
        bench.__main__.main()
    assert ended.value.code == 2
    assert f"argument {option}: must be a whole number, 1 or more, not {number!r}" in capsys.readouterr().err


@pytest.mark.parametrize("peer", [*DURABLE, *QUEUES])
def test_every_peer_has_a_script_that_compiles(peer: Peer, tmp_path: Path) -> None:
    found = side(cast("Bench", None), peer)
    assert found.name == peer
    if isinstance(found, Library):
        py_compile.compile(str(ROOT / f"bench/peers/{found.script}.py"), str(tmp_path / "compiled"), doraise=True)


def test_runs_that_end_in_waves_are_counted_in_whole_waves() -> None:
    waves = [float(wave) for wave in range(1, 11) for _ in range(100)]
    assert steady_rate(waves, 100) == 100
    assert steady_rate([number / 40 for number in range(400)], 10) == pytest.approx(40)


def test_each_peer_is_measured_next_to_agentrun_and_one_that_fails_takes_only_its_own_row_along(
    tiny: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def rate(side: Side) -> float:
        asked.append(side.name)
        if side.name == ABSURD:
            raise ValueError("out of order")
        return float(len(asked))

    monkeypatch.setattr(comparison, "installed", lambda: [DBOS, ABSURD, ABSURD_SYNC])
    with pytest.raises(BenchError, match="Absurd async: ValueError: out of order; Absurd async"):
        comparison.compare(tiny, "ten", (DBOS, ABSURD, ABSURD_SYNC, OBAN), rate)
    first = [DBOS, OURS, ABSURD, ABSURD_SYNC, OURS]
    assert asked == [*first, ABSURD, OURS, DBOS, OURS, ABSURD_SYNC]
    assert tiny.samples.all == {
        f"ten {DBOS}": {DBOS: [1.0, 8.0], OURS: [2.0, 7.0]},
        f"ten {ABSURD_SYNC}": {ABSURD_SYNC: [4.0, 10.0], OURS: [5.0, 9.0]},
    }


PEER = """
import sys
from bench.peers import protocol

class Peer:
    async def connect(self):
        self.enqueued = []

    async def enqueue(self, kind, count):
        self.enqueued.append((kind, count))

    def enqueue_many(self, kind, count, runs):
        assert self.enqueued == [("noop", 3)] * 2
        print("libraries talk", runs)

protocol.main(Peer())
"""


def test_a_producer_answers_each_request_with_its_seconds_and_its_end_is_an_error(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    producer = Producer("a peer", [sys.executable, "-c", PEER], environment, tmp_path)
    try:
        assert 0 <= producer.enqueue("noop", 3, 2) < 60
        assert 0 <= producer.enqueue("noop", 3, 5, at_once=True) < 60
        producer.enqueue("noop", 3, 1)
        with pytest.raises(BenchError, match="a peer: its producer ended with code 1"):
            producer.enqueue("noop", 3, 1, at_once=True)
    finally:
        producer.end()
