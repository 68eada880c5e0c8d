"""Parked runs that are woken by signals: from the first signal that is sent to the last body that goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from agentrun import AsyncClient, Client, Run
from bench.common import WARM, Bench
from bench.measure import OURS, Row, at_most, measures
from bench.nodes import Node
from bench.ticks import VARIABLE, Ticks

_PARKED = 1000
_WARM_RUNS = 100
_NAME = "go"


_WOKEN = f"waking {_PARKED:,} parked runs by {_PARKED:,} signals"


@measures(
    "signals",
    Row("signals", f"{_WOKEN}, one by one", "s", at_most(3)),
    Row("signals_sent", "of that, until the last was sent", "s"),
    Row("signals_async", f"{_WOKEN}, all at once (async)", "s", at_most(3)),
    Row("signals_async_sent", "of that, until the last was sent", "s"),
    Row("signals_many", f"{_WOKEN}, in one call (signal_many)", "s", at_most(3)),
    Row("signals_many_sent", "of that, until the last was sent", "s"),
)
def signals(bench: Bench) -> None:
    """One client, one worker process. A body that goes on notes the instant in its first line after the wait."""
    count, ticks = bench.size(_PARKED, 200), Ticks(bench.directory / "signals.ticks")
    for _ in bench.rounds():
        with bench.workers(variables={VARIABLE: str(ticks.path)}) as nodes, bench.client() as client:
            ways = {"signals": _one_by_one(client), "signals_async": _at_once(bench), "signals_many": _many(client)}
            for metric, sent in ways.items():
                _woken(bench, ticks, nodes, _parked(bench, nodes, _WARM_RUNS), sent)
                woken, sending = _woken(bench, ticks, nodes, _parked(bench, nodes, count), sent)
                bench.samples.add(metric, OURS, woken)
                bench.samples.add(f"{metric}_sent", OURS, sending)


def _parked(bench: Bench, nodes: Sequence[Node], count: int) -> list[UUID]:
    bench.clear()
    with bench.client() as client:
        ids = client.enqueue_many("bench.signal", [_NAME] * count, queue=WARM)
    bench.until(lambda: bench.value(_WAITING) == count, nodes)
    return ids


def _woken(
    bench: Bench, ticks: Ticks, nodes: Sequence[Node], ids: Sequence[UUID], sent: Callable[[Sequence[UUID]], None]
) -> tuple[float, float]:
    """Seconds until the last body went on, and until the last signal was sent."""
    ticks.clear()
    began = time.monotonic()
    sent(ids)
    sending = time.monotonic() - began
    bench.until(lambda: len(ticks) >= len(ids), nodes, every=0.02)
    bench.until(bench.ended, nodes)
    bench.finish_times(len(ids))
    return ticks.times()[-1] - began, sending


def _one_by_one(client: Client) -> Callable[[Sequence[UUID]], None]:
    def sent(ids: Sequence[UUID]) -> None:
        for run_id in ids:
            client.signal(run_id, _NAME)

    return sent


def _at_once(bench: Bench) -> Callable[[Sequence[UUID]], None]:
    async def all_of(ids: Sequence[UUID]) -> None:
        async with AsyncClient(settings=bench.settings()) as client:
            await asyncio.gather(*(client.signal(run_id, _NAME) for run_id in ids))

    return lambda ids: asyncio.run(all_of(ids))


def _many(client: Client) -> Callable[[Sequence[UUID]], None]:
    def sent(ids: Sequence[UUID]) -> None:
        assert all(isinstance(answer, Run) for answer in client.signal_many(ids, _NAME))

    return sent


_WAITING = "SELECT count(*) FROM agentrun.runs WHERE status = 'waiting'"
