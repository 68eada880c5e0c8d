"""Where a worker's time goes: its workload in this process, without Celery; its batches, cProfile, and its SQL.

The profile slows everything down about twofold, so the rate is taken from a pass without it.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import threading
import time
from collections.abc import Callable
from uuid import UUID

import psutil
from rich.console import Console

from agentrun.runtime.engine import Engine
from agentrun.runtime.segment import run_segment
from bench.batches import Watched, show
from bench.common import FULL, Bench
from bench.statements import counted

WORKLOADS: dict[str, tuple[str, int, int]] = {
    "noop": ("bench.noop", 1, 2000),
    "ten": ("bench.steps", 10, 1000),
    "hundred": ("bench.steps", 100, 200),
    "writes": ("bench.writes", 10, 500),
}
"""By name: the kind, its request, how many runs."""


def profile(bench: Bench, name: str, *, runs: int | None, in_flight: int, lines: int) -> None:
    """Print runs per second, the functions with the most time of their own, and statements per run."""
    kind, request, usual = WORKLOADS[name]
    count = runs or bench.size(usual, usual // 10)
    console = Console(width=150)
    with bench.engine() as engine, bench.client() as client:

        def passed() -> float:
            bench.clear()
            ids = client.enqueue_many(kind, [request] * count, queue=FULL)
            began = time.monotonic()
            engine.submit(side_by_side(engine, ids, in_flight)).result()
            seconds = time.monotonic() - began
            bench.finish_times(count)
            return seconds

        passed()
        before, seconds = _cost(bench, engine), passed()
        ours, backend, writes, batches = (now - then for now, then in zip(_cost(bench, engine), before, strict=True))
        console.print(f"{name}: {count / seconds:,.0f} runs/s with {in_flight} in flight, in process, without Celery")
        console.print(f"{writes / count:.1f} journal writes a run, {writes / max(batches, 1):.1f} writes a commit")
        console.print(
            f"processor time a write: {1e6 * ours / writes:.0f} µs here, {1e6 * backend / writes:.0f} µs in SQL"
        )
        with Watched(engine.writer).watching() as batches:
            passed()
        show(console, batches)
        _print_profile(_profiled(engine, passed), lines)
        with counted(bench.servers) as statements:
            passed()
    for (who, statement), number in statements.most_common(12):
        console.print(f"{number / count:8.2f} a run  {who}: {statement}", highlight=False)


def _cost(bench: Bench, engine: Engine) -> tuple[float, float, int, int]:
    """So far: processor seconds of this process and of the journal's backend, writes, commits."""
    backend = bench.value("SELECT pid FROM pg_stat_activity WHERE application_name = 'agentrun journal'")
    times = psutil.Process(backend).cpu_times()
    return time.process_time(), times.user + times.system, engine.writer.writes, engine.writer.batches


async def side_by_side(engine: Engine, ids: list[UUID], in_flight: int) -> None:
    """Execute all of them, so many at once."""
    slots = asyncio.Semaphore(in_flight)

    async def one(run_id: UUID) -> None:
        async with slots:
            await run_segment(engine, run_id)

    await asyncio.gather(*(one(run_id) for run_id in ids))


def _profiled(engine: Engine, work: Callable[[], object]) -> cProfile.Profile:
    """A profile of the loop's thread: there bodies run and batches are sent."""
    profiler = cProfile.Profile()
    _on_loop(engine, profiler.enable)
    try:
        work()
    finally:
        _on_loop(engine, profiler.disable)
    return profiler


def _on_loop(engine: Engine, call: Callable[[], object]) -> None:
    done = threading.Event()
    engine.loop.call_soon_threadsafe(lambda: (call(), done.set()))
    done.wait()


def _print_profile(profiler: cProfile.Profile, lines: int) -> None:
    stats = pstats.Stats(profiler)
    stats.strip_dirs().sort_stats("tottime").print_stats(lines)
