"""agentrun and bare Celery as sides of the comparison: asked for the same as the other libraries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench import bare
from bench.common import FULL, WARM, Bench
from bench.measure import CELERY, OURS, pace
from bench.peers.waiting import idle_times, steady_rate
from bench.throughput import drain, drain_bare
from bench.ticks import VARIABLE, Ticks

_WARM_CALLS = 50


class Side(Protocol):
    """What every side is asked for. `room` is how many runs its one worker process may have in hand."""

    @property
    def name(self) -> str: ...

    def one_by_one(self, runs: int) -> float:
        """Runs enqueued per second, one call after another, no worker running."""
        ...

    def at_once(self, runs: int) -> float:
        """Runs enqueued per second, all of them in one call, no worker running."""
        ...

    def noop_rate(self, runs: int, room: int) -> float:
        """Runs per second that do nothing, from a queue that was full before."""
        ...

    def run_rate(self, runs: int, count: int, room: int) -> float:
        """The same with `count` recorded steps in each; as many jobs in a chain where there are no steps."""
        ...

    def idle(self, samples: int) -> list[float]:
        """Milliseconds from enqueue to the first line of the body, one at a time."""
        ...


@dataclass(frozen=True)
class Agentrun:
    bench: Bench
    name: str = OURS

    def one_by_one(self, runs: int) -> float:
        self.bench.clear()
        with self.bench.client() as client:
            return _rate(lambda number: client.enqueue("bench.noop", number, queue=FULL), runs)

    def at_once(self, runs: int) -> float:
        self.bench.clear()
        with self.bench.client() as client:
            client.enqueue_many("bench.noop", list(range(_WARM_CALLS)), queue=FULL)
            began = time.monotonic()
            client.enqueue_many("bench.noop", list(range(runs)), queue=FULL)
            return runs / (time.monotonic() - began)

    def noop_rate(self, runs: int, room: int) -> float:
        return steady_rate(drain(self.bench, "bench.noop", list(range(runs)), pool=room), room)

    def run_rate(self, runs: int, count: int, room: int) -> float:
        return steady_rate(drain(self.bench, "bench.steps", [count] * runs, pool=room), room)

    def step_rate(self, count: int, room: int) -> float:
        """Up to the last moment at which all slots were taken."""
        runs = 4 * room
        drain(self.bench, "bench.steps", [count] * runs, pool=room)
        times = self.bench.column("SELECT extract(epoch FROM finished_at)::float8 FROM agentrun.steps ORDER BY 1")
        return pace(times, end=1 - room / runs)

    def idle(self, samples: int) -> list[float]:
        self.bench.clear()
        ticks = Ticks(self.bench.directory / "ours.ticks")
        workers = self.bench.workers(pool=10, variables={VARIABLE: str(ticks.path)})
        with workers as (node,), self.bench.client() as client:
            enqueue = _timed(lambda: client.enqueue("bench.tick", 1, queue=WARM))
            return idle_times(self.bench, ticks, node, enqueue, samples, poll=0)


@dataclass(frozen=True)
class BareCelery:
    """No steps and nothing recorded: ten of them are a chain of ten tasks."""

    bench: Bench
    name: str = CELERY

    def one_by_one(self, runs: int) -> float:
        self.bench.clear()
        return _rate(lambda number: self.bench.control.send_task(bare.NOOP, (number,), queue=FULL), runs)

    def at_once(self, runs: int) -> float:
        raise NotImplementedError

    def noop_rate(self, runs: int, room: int) -> float:
        self.bench.clear()
        times = drain_bare(self.bench, self._ticks(), bare.NOOP, list(range(runs)), pool=room)
        return steady_rate(times, room)

    def run_rate(self, runs: int, count: int, room: int) -> float:
        self.bench.clear()
        times = drain_bare(self.bench, self._ticks(), bare.CHAIN, [count] * runs, pool=room, each=count)
        return steady_rate(times, room) / count

    def idle(self, samples: int) -> list[float]:
        self.bench.clear()
        ticks = self._ticks()
        with self.bench.bare_workers(ticks, pool=10) as (node,):
            enqueue = _timed(lambda: self.bench.control.send_task(bare.NOOP, (1,), queue=WARM))
            return idle_times(self.bench, ticks, node, enqueue, samples, poll=0)

    def _ticks(self) -> Ticks:
        return Ticks(self.bench.directory / "bare.ticks")


def _rate(call: Callable[[int], object], runs: int) -> float:
    for number in range(_WARM_CALLS):
        call(number)
    began = time.monotonic()
    for number in range(runs):
        call(number)
    return runs / (time.monotonic() - began)


def _timed(enqueue: Callable[[], object]) -> Callable[[], float]:
    def call() -> float:
        began = time.monotonic()
        enqueue()
        return began

    return call
