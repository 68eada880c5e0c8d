"""Branches side by side, bounded, with results in order. A branch that parks keeps its place: its child goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from agentrun.core.outcome import Parked

T = TypeVar("T")


async def gathered(
    coroutines: Sequence[Coroutine[Any, Any, T]], *, limit: int | None = None, fail_fast: bool = False
) -> list[T]:
    """All results, in order. Raises the first failure in order, or Parked where only waits are left.

    Parked branches count against `limit`: otherwise a bound on children would bound nothing.
    """
    waiting = list(enumerate(coroutines))
    waiting.reverse()
    ended: dict[int, BaseException | T] = {}
    working: dict[asyncio.Task[T], int] = {}
    parked = 0
    try:
        while waiting or working:
            while waiting and (limit is None or len(working) + parked < limit):
                place, coroutine = waiting.pop()
                working[asyncio.ensure_future(coroutine)] = place
            if not working:
                break
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                ended[working.pop(task)] = error = _outcome(task)
                parked += isinstance(error, Parked)
                if fail_fast and isinstance(error, Exception):
                    raise error
    finally:
        for task in working:
            task.cancel()
        for _, coroutine in waiting:
            coroutine.close()
    return _in_order(ended, complete=not waiting)


def _outcome(task: asyncio.Task[T]) -> BaseException | T:
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()


def _in_order(ended: dict[int, Any], *, complete: bool) -> list[Any]:
    errors = [ended[place] for place in sorted(ended) if isinstance(ended[place], BaseException)]
    stops = [error for error in errors if not isinstance(error, Exception | Parked)]
    for error in [*stops, *(e for e in errors if isinstance(e, Parked)), *errors]:
        raise error
    if not complete:
        raise Parked
    return [ended[place] for place in sorted(ended)]
