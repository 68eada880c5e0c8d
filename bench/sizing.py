"""`python -m bench.sizing`: the figures of docs/guides/sizing.md, each as a table of that page. Takes six minutes.

PgBouncer is measured where it is on the PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psutil

from agentrun import Client, Context, durable
from agentrun.broker import CeleryPublisher
from agentrun.runtime.engine import Engine
from agentrun.runtime.segment import run_segment
from agentrun.store import connect
from agentrun.store.database import Database
from bench import pgbouncer
from bench.common import FULL, WARM, Bench
from bench.measure import median, pace
from bench.nodes import Node, wait_ready, worker_arguments

_STEPS = 10
_ALONE = 40
_SIZES = """
    SELECT sum(pg_total_relation_size(c.oid))::float8 FROM pg_class c
    WHERE relnamespace = 'agentrun'::regnamespace AND relkind = 'r'
"""
_WAITING = "SELECT count(*) FROM agentrun.runs WHERE status = %(status)s"


@durable("bench.blob")
async def blob(ctx: Context, characters: int) -> int:
    """Steps whose results are so long and compress badly, as encoded documents do."""
    for _ in range(_STEPS):
        await ctx.step(_text, characters)
    return characters


async def _text(characters: int) -> str:
    return secrets.token_hex(characters // 2)


# ---- workers


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker and what it takes."""

    node: Node

    def family(self) -> list[psutil.Process]:
        first = psutil.Process(self.node.pid)
        return [first, *first.children(recursive=True)]

    def memory(self) -> float:
        """Megabytes; what processes share is counted once."""
        return sum(each.memory_full_info().pss for each in self.family()) / 1e6


@contextlib.contextmanager
def _worker(bench: Bench, pool: str, concurrency: int) -> Generator[Worker]:
    name = f"sizing-{pool}-{concurrency}-{secrets.token_hex(2)}@bench"
    arguments = worker_arguments("tasks", name, [WARM], concurrency)
    arguments[arguments.index("-P") + 1] = pool
    environment = {
        "AGENTRUN_DATABASE_URL": bench.servers.database_url,
        "AGENTRUN_BROKER_URL": bench.servers.broker_url,
        "AGENTRUN_IMPORTS": "bench.bodies",
    }
    node = Node(name, arguments, environment, bench.directory)
    try:
        wait_ready(bench.control, [node], [name])
        yield Worker(node)
    finally:
        node.kill()


def pools(bench: Bench) -> Iterator[str]:
    """Threads and processes, and how many: throughput, memory."""
    yield "| pool | runs of 10 steps, per second | memory, MB |\n|---|---|---|"
    shapes = [("threads", 10), ("threads", 50), ("threads", 100), ("threads", 200)]
    for pool, concurrency in [*shapes, ("prefork", 1), ("prefork", 2), ("prefork", 4), ("prefork", 8)]:
        with _worker(bench, pool, concurrency) as worker, bench.client() as client:
            _drained(bench, client, worker, 100)
            runs = bench.size(800, 200) if pool == "threads" else bench.size(200, 100)
            rates = [_drained(bench, client, worker, runs) for _ in range(bench.rounds_wanted)]
            yield f"| `-P {pool} -c {concurrency}` | {median(rates):.0f} | {worker.memory():.0f} |"


def _drained(bench: Bench, client: Client, worker: Worker, runs: int) -> float:
    """Runs per second from a queue that was filled first: a new one each time, so that nothing is taken before."""
    bench.clear()
    queue = f"{FULL}.{secrets.token_hex(3)}"
    client.enqueue_many("bench.steps", [_STEPS] * runs, queue=queue)
    bench.open(queue, [worker.node])
    bench.until(bench.ended, [worker.node])
    return pace(bench.finish_times(runs))


def memory(bench: Bench) -> Iterator[str]:
    """Runs that are in flight and wait for something outside, and runs that are parked."""
    yield "| in one worker process | memory, MB |\n|---|---|"
    most = bench.size(2000, 200)
    with _worker(bench, "threads", most + 10) as worker, bench.client() as client:
        bench.clear()
        client.enqueue("bench.noop", 1, queue=WARM)
        bench.until(bench.ended, [worker.node])
        yield f"| nothing | {worker.memory():.0f} |"
        for waiting in (most // 4, most // 2, most):
            there = bench.value(_WAITING, {"status": "running"})
            client.enqueue_many("bench.wait", [3600.0] * (waiting - there), queue=WARM)
            bench.until(lambda: bench.value(_WAITING, {"status": "running"}) == waiting, [worker.node])  # noqa: B023
            yield f"| {waiting:,} runs in flight that wait for a model | {worker.memory():.0f} |"
    with _worker(bench, "threads", 100) as worker, bench.client() as client:
        bench.clear()
        client.enqueue_many("bench.signal", ["go"] * most, queue=WARM)
        bench.until(lambda: bench.value(_WAITING, {"status": "waiting"}) == most, [worker.node])
        yield f"| {most:,} parked runs | {worker.memory():.0f} |"


# ---- in this process


def sizes(bench: Bench) -> Iterator[str]:
    """What results cost in time and on the disk."""
    yield "| each result | steps per second | stored for a step, KB |\n|---|---|---|"
    with _engine(bench, bench.servers.database_url) as engine, bench.client() as client:
        for characters, runs in ((10, 400), (1_000, 400), (10_000, 200), (100_000, 30), (900_000, 5)):
            bench.clear()
            before, runs = bench.value(_SIZES), bench.size(runs, 5)
            rate = _executed(bench, engine, client, "bench.blob", characters, runs) * _STEPS
            stored = (bench.value(_SIZES) - before) / runs / _STEPS / 1000
            yield f"| {characters:,} characters | {rate:,.0f} | {stored:,.1f} |"


def history(bench: Bench) -> Iterator[str]:
    """What finished runs take on the disk, with their events and indexes."""
    yield "| a finished run | on the disk, KB |\n|---|---|"
    with _engine(bench, bench.servers.database_url) as engine, bench.client() as client:
        for what, kind, request in (("without steps", "bench.noop", 1), ("of 10 steps", "bench.steps", 10)):
            bench.clear()
            before, runs = bench.value(_SIZES), bench.size(2000, 200)
            _executed(bench, engine, client, kind, request, runs)
            yield f"| {what} | {(bench.value(_SIZES) - before) / runs / 1000:.1f} |"


def pooled(bench: Bench) -> Iterator[str]:
    """Straight, straight with nothing prepared, and through PgBouncer; by turns, and compared within each round."""
    yield (
        "| way | runs of 10 steps, per second, 200 in flight | one such run alone, ms | processor time of PostgreSQL "
        "for a run: side by side, alone, ms |\n|---|---|---|---|"
    )
    url = bench.servers.database_url
    with contextlib.ExitStack() as undo:
        client = undo.enter_context(bench.client())
        ways = {"straight": undo.enter_context(_engine(bench, url))}
        with _as_if_pooled():
            ways["straight, nothing prepared"] = undo.enter_context(_engine(bench, url))
            _alone(client, ways["straight, nothing prepared"])
        if pgbouncer.PROGRAM is not None:
            through = undo.enter_context(pgbouncer.started(url, bench.directory))
            name = "PgBouncer in transaction mode, 3 connections"
            ways[name] = undo.enter_context(_engine(bench, through))
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
        for number in range(bench.rounds_wanted + 1):
            names = list(ways)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                figures = _figures(bench, ways[name], client)
                if number:
                    found[name].append(figures)
    for name, rounds in found.items():
        rate, alone, together, apart = (median(each) for each in zip(*rounds, strict=True))
        yield f"| {name} | {rate:.0f} | {alone:.0f} | {together:.1f}, {apart:.1f} |"


def _figures(bench: Bench, engine: Engine, client: Client) -> tuple[float, ...]:
    """Runs per second, milliseconds alone, and PostgreSQL's processor time for a run in both, in milliseconds."""
    bench.clear()
    runs = bench.size(1000, 200)
    before = _server_ms(bench)
    rate = _executed(bench, engine, client, "bench.steps", _STEPS, runs)
    between = _server_ms(bench)
    alone = _alone(client, engine)
    return rate, alone, (between - before) / runs, (_server_ms(bench) - between) / _ALONE


def _server_ms(bench: Bench) -> float:
    """Milliseconds that the processor has spent on the connections that are open."""
    pids = bench.column("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times) * 1000


def _alone(client: Client, engine: Engine) -> float:
    """Milliseconds for a run of ten steps, one after the other."""
    ids = client.enqueue_many("bench.steps", [_STEPS] * _ALONE, queue=FULL)
    began = time.monotonic()
    for run_id in ids:
        engine.run(run_id)
    return (time.monotonic() - began) / len(ids) * 1000


@contextlib.contextmanager
def _as_if_pooled() -> Generator[None]:
    """Connections that are opened meanwhile take it that a pooler is in between."""
    usual = connect.UNUSUAL
    connect.UNUSUAL = "SELECT %s::int > 0 AS other, false AS strict"
    try:
        yield
    finally:
        connect.UNUSUAL = usual


@contextlib.contextmanager
def _engine(bench: Bench, url: str) -> Generator[Engine]:
    importlib.import_module("bench.bodies")  # registers the kinds

    settings = bench.settings(database_url=url)
    engine = Engine(settings, Database(url), CeleryPublisher(settings))
    try:
        yield engine
    finally:
        engine.close()


def _executed(bench: Bench, engine: Engine, client: Client, kind: str, request: int, runs: int) -> float:
    """Runs per second, 200 in flight."""
    ids = client.enqueue_many(kind, [request] * runs, queue=FULL)
    began = time.monotonic()
    engine.submit(_all(engine, ids)).result()
    seconds = time.monotonic() - began
    bench.finish_times(runs)
    return runs / seconds


async def _all(engine: Engine, ids: Sequence[UUID]) -> None:
    slots = asyncio.Semaphore(200)

    async def one(run_id: UUID) -> None:
        async with slots:
            await run_segment(engine, run_id)

    await asyncio.gather(*(one(run_id) for run_id in ids))


TABLES: dict[str, Callable[[Bench], Iterator[str]]] = {
    "pools": pools,
    "memory": memory,
    "sizes": sizes,
    "history": history,
    "pooled": pooled,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(TABLES), help="repeat for several")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="agentrun-sizing-") as directory,
        Bench.started(Path(directory), rounds=asked.rounds, quick=asked.quick, history=0) as bench,
    ):
        for name in asked.only or TABLES:
            print(f"\n<!-- {name}, load before {os.getloadavg()[0]:.1f} -->")
            for line in TABLES[name](bench):
                print(line, flush=True)


if __name__ == "__main__":
    main()
