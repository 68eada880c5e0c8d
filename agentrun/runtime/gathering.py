"""Branches side by side, bounded, with results in order. A branch that parks keeps its place: its child goes on."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


# ---- what branches wait for


@dataclass(slots=True, eq=False)
class Branches:
    """What the branches of one gather wait for, those of gathers within it included."""

    waiting_on: list[str]
    """What the whole run would park for, a word per branch: a list of its segment's own."""

    outer: Branches | None
    said: list[str] = field(default_factory=list[str])
    left: bool = False

    def around(self) -> Iterator[Branches]:
        """This gather, and those of the same segment that it is a branch of."""
        there: Branches | None = self
        while there is not None and there.waiting_on is self.waiting_on:
            yield there
            there = there.outer

    def note(self, said: str) -> None:
        """One branch waits. One that was left, and did not notice yet, counts for nothing."""
        if not any(each.left for each in self.around()):
            for noted in (self.waiting_on, *(each.said for each in self.around())):
                noted.append(said)

    def leave(self) -> None:
        """Nobody will read what these branches wait for."""
        for said in list(self.said):
            for noted in (self.waiting_on, *(each.said for each in self.around())):
                noted.remove(said)
        self.left = True


_BRANCHES: contextvars.ContextVar[Branches | None] = contextvars.ContextVar("agentrun_gathered", default=None)


@contextmanager
def leaving_what_waits(waiting_on: list[str]) -> Generator[None]:
    """Around the branches of a gather: an error raised over them leaves those that wait, and the run does not park for
    them. Branches beside the gather, that wait for others, are not touched."""
    branches = Branches(waiting_on, _BRANCHES.get())
    token = _BRANCHES.set(branches)
    try:
        yield
    except Exception:
        branches.leave()
        raise
    finally:
        _BRANCHES.reset(token)


def note_waiting(waiting_on: list[str], said: str) -> None:
    """A branch waits: noted for the segment, and for the gathers around the branch."""
    branches = _BRANCHES.get()
    if branches is not None and branches.waiting_on is waiting_on:
        branches.note(said)
    else:
        waiting_on.append(said)
