"""What all sides share: counting steps off for a while, and waiting for one run on an idle system."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

from bench.common import Bench
from bench.nodes import BenchError, Node
from bench.ticks import Ticks

_LONGEST = 30.0
_FIRST = 3


def steady_rate(ends: Sequence[float], room: int) -> float:
    """Ends per second after the first tenth of them, which warms up.

    Runs that start together end together, `room` at a time: so that is counted from the end of such a wave.
    """
    first = math.ceil(max(room, len(ends) // 10) / room) * room
    return (len(ends) - first) / (ends[-1] - ends[first - 1])


def counted_off(bench: Bench, ticks: Ticks, node: Node, seconds: float, *, at_most: int) -> float:
    """Instants noted per second: for so many seconds, or until there are `at_most` in all."""
    before, ends = len(ticks), time.monotonic() + seconds
    bench.until(lambda: time.monotonic() > ends or len(ticks) > at_most, [node])
    times = ticks.times()[before:]
    return (len(times) - 1) / (times[-1] - times[0])


def idle_times(
    bench: Bench, ticks: Ticks, node: Node, enqueue: Callable[[], float], samples: int, poll: float
) -> list[float]:
    """Milliseconds from a call of `enqueue`, which says when it began, to the first line of the body.

    Pauses differ by more than `poll`, so that no call keeps step with it. The very first ones open connections.
    """
    times: list[float] = []
    for number in range(samples + _FIRST):
        time.sleep(0.05 + random.uniform(0, max(0.1, poll)))
        before = len(ticks)
        began = enqueue()
        deadline = time.monotonic() + _LONGEST
        while len(ticks) == before:
            node.check()
            if time.monotonic() > deadline:
                raise BenchError(f"nothing started within {_LONGEST:.0f} s on an idle system")
            time.sleep(0.001)
        if number >= _FIRST:
            times.append(1000 * (ticks.times()[-1] - began))
    return times
