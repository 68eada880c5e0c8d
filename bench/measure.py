"""What a measurement is: a function that records samples, and the rows of the table that are read from them.

Samples are kept by metric and side, one per round. A ratio is taken within each round, where both sides met the same
machine, and only then is the median taken.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.common import Bench


class Peer(str):
    """The name of another system. Every other name of a side is a floor: the least that something can cost."""

    __slots__ = ()


OURS = "agentrun"
CELERY = Peer("bare Celery")
FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on our figure, or on its ratio to the other side's."""

    bound: float
    least: bool
    ratio: bool

    def reached(self, value: float) -> bool:
        return value >= self.bound if self.least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:,g}{' x' if self.ratio else ''}"


def at_least(bound: float) -> Goal:
    return Goal(bound, least=True, ratio=False)


def at_most(bound: float) -> Goal:
    return Goal(bound, least=False, ratio=False)


def at_least_times(bound: float) -> Goal:
    return Goal(bound, least=True, ratio=True)


def at_most_times(bound: float) -> Goal:
    return Goal(bound, least=False, ratio=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: our samples of `metric`, beside those of the side `against`."""

    metric: str
    what: str
    unit: str
    goal: Goal | None = None
    against: str | None = None


class Samples:
    """Everything that was measured: metric, side, one figure per round."""

    def __init__(self) -> None:
        self.all: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, metric: str, side: str, value: float) -> None:
        self.all[metric][side].append(value)

    def of(self, metric: str, side: str | None) -> list[float]:
        return self.all[metric][side] if side is not None and metric in self.all and side in self.all[metric] else []

    def ratios(self, metric: str, against: str | None) -> list[float]:
        pairs = zip(self.of(metric, OURS), self.of(metric, against), strict=False)
        return [ours / theirs for ours, theirs in pairs if theirs]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A named group of rows that are measured together."""

    name: str
    run: Callable[[Bench], None]
    rows: tuple[Row, ...] = field(default=())


registry: dict[str, Measurement] = {}
"""All measurements, in the order of the table."""

beside_peers: dict[str, Measurement] = {}
"""Those that need the other libraries, which have an environment of their own."""


def measures(
    name: str, *rows: Row, of: dict[str, Measurement] = registry
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Register a function as the measurement `name`."""

    def register(run: Callable[[Bench], None]) -> Callable[[Bench], None]:
        of[name] = Measurement(name, run, rows)
        return run

    return register


def pace(times: Sequence[float], *, start: float = 0.1, end: float = 1.0) -> float:
    """Events per second between two shares of them: without warming up, and where asked without the tail."""
    first, last = int(len(times) * start), max(int(len(times) * end) - 1, 0)
    return (last - first) / (times[last] - times[first])


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the others do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
