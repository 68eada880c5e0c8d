"""What it costs when nothing happens: a fleet without work, and the sweep over a large history and backlog."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from agentrun.broker import CeleryPublisher
from agentrun.runtime.upkeep import LONGEST_COUNTED, Sweep
from agentrun.store.connect import type_of_row
from agentrun.store.database import Database
from agentrun.store.sql import Statement
from bench.common import FULL, WARM, Bench
from bench.measure import OURS, Row, at_most, measures, median
from bench.nodes import BenchError
from bench.statements import counted

_FLEET = 10
_QUEUED = 100_000
_WARM_SWEEPS, _SWEEPS = 5, 10
_SMALL = ("processes", "sweeps")
"""Tables with a row per process or namespace: one page, which an index would only add to."""

WITHOUT_HISTORY = "no history"


@measures("fleet", Row("fleet", f"statements of an idle fleet of {_FLEET} workers and beat", "/s", at_most(5)))
def fleet(bench: Bench) -> None:
    """A multiple of the heartbeat's and the sweep's pauses."""
    seconds = bench.size(35, 14)
    with bench.workers(_FLEET, pool=10, queues=("agentrun", "agentrun.system")), bench.beat():
        time.sleep(bench.size(10, 3))
        for _ in bench.rounds():
            with counted(bench.servers) as statements:
                time.sleep(seconds)
            bench.samples.add("fleet", OURS, statements.total() / seconds)
            bench.notes["fleet"] = {" ".join(who): count for who, count in statements.most_common()}


@measures(
    "sweep",
    Row("sweep", "a sweep over a long backlog, with a long history", "ms", at_most(50), WITHOUT_HISTORY),
    Row("sweep_scans", "sequential scans in the sweep's plans, of tables that grow", "", at_most(0)),
    Row("sweep_wakes", "wakes sent although every queued run has its message", "", at_most(0)),
)
def sweep(bench: Bench) -> None:
    """With and without finished runs (--history); the backlog has its messages in the broker.

    Another queue is as long as a queue can be that the sweep still counts.
    """
    queued = bench.size(_QUEUED, 10_000)
    for side, finished in ((WITHOUT_HISTORY, 0), (OURS, bench.history)):
        bench.clear()
        for queue, count in ((FULL, queued), (WARM, LONGEST_COUNTED)):
            _fill(bench, "queued", count, queue)
        _fill(bench, "completed", finished)
        bench.database.execute("VACUUM ANALYZE agentrun.runs")
        bench.database.execute("CHECKPOINT")  # what filling left behind is not the sweep's
        for _ in range(bench.rounds_wanted):
            seconds, woken, scans = _sweeps(bench)
            bench.samples.add("sweep", side, 1000 * seconds)
            if side == OURS:
                bench.samples.add("sweep_wakes", OURS, woken)
                bench.samples.add("sweep_scans", OURS, scans)
    bench.notes["sweep"] = {"queued": queued, "finished": bench.history}


_ROW = sql.SQL("""
    INSERT INTO agentrun.runs (id, namespace, kind, status, queue, request, due_at, reason, finished_at, started_at)
    SELECT gen_random_uuid(), 'default', 'bench.noop', {status}, {queue}, '1', {due}, {reason}, {ended}, {ended}
    FROM generate_series(1, {count})
""")


def _fill(bench: Bench, status: str, count: int, queue: str = FULL) -> None:
    """Rows as enqueue or settle leaves them; a queued run with its message."""
    queued = status == "queued"
    now, nothing = sql.SQL("now() - interval '1 hour'"), sql.SQL("NULL")
    values = {
        "due": now if queued else nothing,
        "ended": nothing if queued else now,
        "reason": nothing if queued else sql.Literal("completed"),
    }
    for start in range(0, count, 500_000):
        part = sql.Literal(min(500_000, count - start))
        bench.database.execute(_ROW.format(status=sql.Literal(status), queue=sql.Literal(queue), count=part, **values))
    for start in range(0, count if queued else 0, 10_000):
        bench.redis.rpush(queue, *["a message"] * min(10_000, count - start))


class _Asked(Database):
    """Remembers what was asked, by name, with the parameters."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: dict[str, tuple[Statement, Mapping[str, Any]]] = {}

    def rows(self, statement: Statement, params: Mapping[str, Any] | None = None) -> list[type_of_row]:
        self.asked[statement.name] = (statement, params or {})
        return super().rows(statement, params)


def _sweeps(bench: Bench) -> tuple[float, int, int]:
    """Of several sweeps: the median of seconds, wakes that were sent, sequential scans in their plans."""
    settings = bench.settings()
    database, publisher = _Asked(settings.require_database()), CeleryPublisher(settings)
    times, woken = list[float](), 0
    try:
        for number in range(_WARM_SWEEPS + _SWEEPS):
            began = time.monotonic()
            found = Sweep(settings, database, publisher, by="bench").run()
            if number >= _WARM_SWEEPS:
                times.append(time.monotonic() - began)
            woken += found.woken
    finally:
        publisher.close()
        database.close()
    return median(times), woken, _sequential_scans(bench, database)


def _sequential_scans(bench: Bench, database: _Asked) -> int:
    """In the plans of everything that a sweep asks while it finds nothing to do."""
    scans: Counter[str] = Counter()
    with psycopg.connect(bench.servers.database_url, autocommit=True, application_name="bench") as connection:
        for statement, parameters in database.asked.values():
            used = {name: parameters[name] for name in statement.names}
            row = connection.execute(f"EXPLAIN (FORMAT JSON) {statement.sql}", used).fetchone()  # pyright: ignore[reportArgumentType]
            if row is None:
                raise BenchError(f"no plan for {statement.name}")
            scans.update(f"{statement.name}: {scan}" for scan in _scans(row[0][0]["Plan"]))
    bench.notes["sweep plans"] = dict(scans)
    return sum(count for name, count in scans.items() if "Seq Scan" in name and not name.endswith(_SMALL))


def _scans(plan: dict[str, Any]) -> list[str]:
    here = [f"{plan['Node Type']} on {plan['Relation Name']}"] if "Relation Name" in plan else []
    return here + [name for part in plan.get("Plans", ()) for name in _scans(part)]
