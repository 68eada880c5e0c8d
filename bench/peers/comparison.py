"""The measurements beside other libraries: which side is asked for what, in which order, and the goals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from bench.common import Bench
from bench.measure import OURS, Goal, Peer, Row, at_least_times, beside_peers, measures, median, percentile
from bench.nodes import BenchError
from bench.peers.catalogue import (
    ABSURD,
    ABSURD_FAST,
    ABSURD_SYNC,
    DBOS,
    DBOS_FAST,
    OBAN,
    PGQUEUER,
    PROCRASTINATE,
    QUEUES,
    installed,
    side,
)
from bench.peers.libraries import Library
from bench.peers.sides import Agentrun, Side

_ROOM, _MORE_ROOM, _IN_FLIGHT = 10, 100, 200
_SECONDS = 15
_FAILED, _MISSING = "peers not measured", "peers not installed"
_DURABLE = (DBOS, ABSURD, ABSURD_SYNC)
_USUAL = (*_DURABLE, *QUEUES)
_POLLING = (DBOS, ABSURD, DBOS_FAST, ABSURD_FAST, ABSURD_SYNC)
_BULK = (PROCRASTINATE, PGQUEUER, OBAN)

_RUNS_GOALS = {DBOS: at_least_times(10), ABSURD: at_least_times(4)}
_STEPS_GOALS = {DBOS: at_least_times(25), ABSURD: at_least_times(10)}

only: list[str] = []
"""Names of the peers that are asked for; empty: all that are installed."""

Found = TypeVar("Found")


def _rows(
    metric: str, what: str, unit: str, peers: Sequence[Peer], goals: Mapping[Peer, Goal] | None = None
) -> list[Row]:
    return [Row(f"{metric} {peer}", what, unit, (goals or {}).get(peer), peer) for peer in peers]


@measures(
    "runs",
    *_rows("ten", f"runs of 10 steps, {_ROOM} at once", "/s", _DURABLE),
    *_rows("ten_more", f"runs of 10 steps, {_MORE_ROOM} at once", "/s", _DURABLE, _RUNS_GOALS),
    *_rows("ten", f"runs of 10 steps, {_ROOM} at once (theirs: chains of 10 jobs)", "/s", QUEUES),
    of=beside_peers,
)
def runs(bench: Bench) -> None:
    """The goals are judged where there is more room: that suits every side better.

    Runs that fill the room end together, in waves. There are at least ten waves, so that their edges matter little.
    """

    def rate(asked: Side, room: int) -> float:
        if asked.name == DBOS:
            return asked.run_rate(bench.size(200, 60), 10, room)
        count = 1500 if asked.name == OURS else max(10 * room, 400)
        return asked.run_rate(bench.size(count, max(3 * room, 60)), 10, room)

    compare(bench, "ten", _USUAL, lambda asked: rate(asked, _ROOM))
    compare(bench, "ten_more", _DURABLE, lambda asked: rate(asked, _MORE_ROOM))


@measures(
    "steps",
    *_rows("steps", f"steps in runs of 100 steps, {_IN_FLIGHT} in flight", "/s", _DURABLE, _STEPS_GOALS),
    of=beside_peers,
)
def steps(bench: Bench) -> None:
    def rate(asked: Side) -> float:
        if isinstance(asked, Library):
            return asked.step_rate(100, _IN_FLIGHT, bench.size(_SECONDS, 4))
        return Agentrun(bench).step_rate(100, _IN_FLIGHT)

    compare(bench, "steps", _DURABLE, rate)


@measures("noops", *_rows("noop", "no-op runs", "/s", _USUAL), of=beside_peers)
def noops(bench: Bench) -> None:
    compare(bench, "noop", _USUAL, lambda asked: asked.noop_rate(bench.size(2000, 200), _ROOM))


@measures("enqueues", *_rows("one", "enqueue, one by one", "/s", _USUAL), of=beside_peers)
def enqueues(bench: Bench) -> None:
    compare(bench, "one", _USUAL, lambda asked: asked.one_by_one(bench.size(1500, 200)))


@measures("bulk", *_rows("many", "enqueue, all in one call", "/s", _BULK), of=beside_peers)
def bulk(bench: Bench) -> None:
    compare(bench, "many", _BULK, lambda asked: asked.at_once(bench.size(10_000, 1000)))


@measures(
    "idle",
    *_rows("idle_p50", "idle enqueue to first line of the body, p50", "ms", (*_POLLING, *QUEUES)),
    *_rows("idle_p95", "idle enqueue to first line of the body, p95", "ms", (*_POLLING, *QUEUES)),
    of=beside_peers,
)
def idle(bench: Bench) -> None:
    for order in _orders(bench, (*_POLLING, *QUEUES)):
        found = _asked(bench, order, lambda asked: asked.idle(bench.size(40, 5)))
        _add(bench, "idle_p50", {name: median(times) for name, times in found.items()})
        _add(bench, "idle_p95", {name: percentile(times, 0.95) for name, times in found.items()})


def compare(bench: Bench, metric: str, peers: Sequence[Peer], rate: Callable[[Side], float]) -> None:
    """Record a figure a round of each peer that is here, and of agentrun beside it. BenchError where one failed."""
    for order in _orders(bench, peers):
        _add(bench, metric, _asked(bench, order, rate))


def _orders(bench: Bench, peers: Sequence[Peer]) -> Iterator[list[Side]]:
    """In each round: a peer, agentrun, a peer, so that every peer has a neighbour in it. Other rounds go backwards.

    BenchError at the end where some peer could not be measured.
    """
    here, failed = installed(), bench.notes.setdefault(_FAILED, list[str]())
    bench.notes[_MISSING] = [peer for peer in QUEUES if peer not in here]
    before = len(failed)
    chosen = [side(bench, peer) for peer in peers if peer in here and (not only or peer in only)]
    for number in bench.rounds():
        for start in range(0, len(chosen), 2):
            order: list[Side] = [chosen[start], Agentrun(bench), *chosen[start + 1 : start + 2]]
            yield order[::-1] if number % 2 else order
    if len(failed) > before:
        raise BenchError("; ".join(failed[before:]))


def _asked(bench: Bench, order: Sequence[Side], measured: Callable[[Side], Found]) -> dict[str, Found]:
    """By name. One that cannot be measured is noted and left out of the round."""
    found = dict[str, Found]()
    for asked in order:
        try:
            found[asked.name] = measured(asked)
        except Exception as error:
            # The others are still worth having.
            bench.notes[_FAILED].append(f"{asked.name}: {type(error).__name__}: {error}")
    return found


def _add(bench: Bench, metric: str, found: Mapping[str, float]) -> None:
    for name in found:
        if name != OURS and OURS in found:
            bench.samples.add(f"{metric} {name}", name, found[name])
            bench.samples.add(f"{metric} {name}", OURS, found[OURS])
