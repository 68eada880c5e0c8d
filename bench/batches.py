"""What the loop does while PostgreSQL works on a batch: for each statement, how long it took, and how long we computed.

Where PostgreSQL takes longer than the runs that were answered last compute, the loop waits for it; where they compute
longer, it waits for them.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrun.store.writer import Writer

_Moment = tuple[float, float]
"""By the clock, and by the processor time of this thread."""

_FEW = 5
"""Batches of one sort that say nothing."""


@dataclass(slots=True)
class Batch:
    """One batch: what it wrote, and in milliseconds what it took."""

    statements: str
    answered: str
    """What was answered once this one was sent: those runs compute meanwhile."""

    writes: int
    sending: float
    working: float
    """From sent to read."""

    computing: float
    """Processor time of the loop's thread meanwhile."""


@dataclass(slots=True)
class Watched:
    """Looks on while a writer commits."""

    writer: Writer
    batches: list[Batch] = field(default_factory=list[Batch])
    _sent: _Moment | None = None
    _told: str = ""

    @contextlib.contextmanager
    def watching(self) -> Generator[list[Batch]]:
        """The writer's own methods are wrapped: nothing but a benchmark pays for being watched."""
        cls: Any = type(self.writer)
        pipelined, tell = cls._pipelined, cls._tell
        cls._pipelined, cls._tell = self._around(pipelined), self._after(tell)
        try:
            yield self.batches
        finally:
            cls._pipelined, cls._tell = pipelined, tell

    def _after(self, tell: Callable[[Writer], None]) -> Callable[[Writer], None]:
        def told(writer: Writer) -> None:
            answered: Sequence[tuple[Any, Any]] = vars(writer)["_committed"]
            self._sent, self._told = _now(), _named(write for write, _ in answered)
            tell(writer)

        return told

    def _around(self, pipelined: Callable[..., Any]) -> Callable[..., Any]:
        async def sent(writer: Writer, connection: Any, batch: Sequence[Any]) -> Any:
            self._sent, began = None, _now()
            answers = await pipelined(writer, connection, batch)
            if self._sent is not None:
                self.batches.append(self._batch(_named(batch), len(batch), began, self._sent, _now()))
            return answers

        return sent

    def _batch(self, statements: str, writes: int, began: _Moment, sent: _Moment, read: _Moment) -> Batch:
        (began_at, _), (sent_at, before), (read_at, after) = began, sent, read
        return Batch(
            statements,
            self._told,
            writes,
            sending=1e3 * (sent_at - began_at),
            working=1e3 * (read_at - sent_at),
            computing=1e3 * (after - before),
        )


def show(console: Console, batches: Sequence[Batch]) -> None:
    """A line for each sort of batch that came often, the most frequent first."""
    table = Table(
        "batch", "answered meanwhile", "batches", "writes", "sending ms", "working ms", "we compute ms", box=None
    )
    for (statements, answered), number in Counter((each.statements, each.answered) for each in batches).most_common():
        if number >= _FEW:
            those = [each for each in batches if (each.statements, each.answered) == (statements, answered)]
            means = [
                mean(getattr(each, name) for each in those) for name in ("writes", "sending", "working", "computing")
            ]
            table.add_row(
                statements, answered, str(number), f"{means[0]:.0f}", *(f"{value:.2f}" for value in means[1:])
            )
    console.print(table)


def _now() -> _Moment:
    return time.monotonic(), time.thread_time()


def _named(writes: Any) -> str:
    return ", ".join(sorted({write.statement.name for write in writes}))
