"""What is written: one statement for one run; and of a batch, what one statement writes together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection, AsyncCursor
from pydantic_core import to_json

from agentrun.core.outcome import LeaseLost
from agentrun.store.connect import type_of_row
from agentrun.store.sql import Statement

LARGEST_TOGETHER, LARGEST_ROW = 1_000_000, 100_000
"""Characters of the rows of one statement; where they are more, those with a parameter of so many go alone."""

Rows = list[type_of_row]


@dataclass(slots=True, eq=False)
class Write:
    """One statement for one run. `landed` finds out, after a broken connection, whether it had committed."""

    statement: Statement
    params: Mapping[str, Any]
    landed: Statement | None = None
    landed_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    alone: bool = False
    """It is not written together with others of its statement: it reaches beyond its own run."""

    of_step: bool = False
    """It is no segment's, but of whoever took a remote step: what becomes of the run's lease is nothing to it."""

    after: Sequence[Write] = field(init=False, default=())
    """What trails ahead of it, of the same segment: with these or later, and not where one was refused."""

    done: asyncio.Future[Rows] = field(init=False)
    seen: asyncio.Future[Rows] | None = field(init=False, default=None)
    """A claim's rows, as soon as PostgreSQL has them; the others' come when they have committed."""

    @property
    def run_id(self) -> UUID:
        return self.params["run_id"]

    @property
    def segment(self) -> tuple[UUID, int | None]:
        """Whose it is: a run's under one epoch."""
        return self.run_id, self.params.get("epoch")

    @property
    def refused(self) -> BaseException | None:
        """What is to be told to whoever comes after it; None where it was written, or is still to be."""
        if not self.done.done():
            return None
        if self.done.cancelled():
            return LeaseLost()
        return self.done.exception() or (None if self.done.result() else LeaseLost())

    @property
    def stood(self) -> bool:
        """Of a claim that is done: whether what committed is what was seen."""
        if self.done.exception() is not None or self.seen is None:
            return False
        return [row["epoch"] for row in self.done.result()] == [row["epoch"] for row in self.seen.result()]

    def see(self, rows: Rows) -> None:
        if self.seen is not None and not self.seen.done():
            self.seen.set_result(rows)

    def answer(self, rows: Rows) -> None:
        if self.seen is not None:
            self.see(rows)
        if not self.done.done():
            self.done.set_result(rows)

    def fail(self, error: BaseException) -> None:
        for told in (self.done, self.seen):
            if told is not None and not told.done():
                told.set_exception(error)

    def catch_up(self) -> None:
        """Forget what is written of that which it comes after, and fail with what was refused of it."""
        for first in self.after:
            if refused := first.refused:
                self.fail(refused)
        self.after = [first for first in self.after if not first.done.done()] if self.after else ()


Numbered = tuple[int, Write]


@dataclass(frozen=True, slots=True)
class Sending:
    """One statement of a batch: for one write, or for all that can be written by it together."""

    statement: Statement
    params: Mapping[str, Any]
    writes: Sequence[Numbered]
    """With their places in the batch."""

    async def send(self, connection: AsyncConnection[type_of_row]) -> AsyncCursor[type_of_row]:
        """In a pipeline, where the statement has a lock that comes first."""
        if self.statement.first is not None:
            await connection.execute(self.statement.first.sql, self.params)
        return await connection.execute(self.statement.sql, self.params)

    def answered(self, told: Rows) -> Iterator[tuple[int, Rows]]:
        """Whose rows are whose. Of two answers for the same one, the last counts."""
        of = self.statement
        if not of.row_names:
            yield self.writes[0][0], told
        elif of.listing:
            listed: dict[UUID, Rows] = {}
            for row in told:
                listed.setdefault(row["run_id"], []).append(row)
            yield from ((nth, listed.get(write.run_id, [])) for nth, write in self.writes)
        elif told and told[0].get("landed"):
            yield from ((nth, told[:1]) for nth, _ in self.writes)
        else:
            places = {(write.run_id, write.params.get("key")): nth for nth, write in self.writes}
            for row in sorted(told, key=lambda row: row.get("nth") is None):
                nth: int | None = row.get("nth")
                yield places[row["run_id"], row["key"]] if nth is None else nth, [row]


def sendings(batch: Sequence[Write]) -> list[Sending]:
    """The batch's statements in their order: what comes after other writes stands at its end."""
    numbered = list(enumerate(batch))
    late = next((nth for nth, write in numbered if write.after), len(batch))
    return [*_grouped(numbered[:late]), *_grouped(numbered[late:])]


def _grouped(numbered: Sequence[Numbered]) -> list[Sending]:
    """First what can be written by one statement together, then what goes by itself."""
    groups: dict[Statement, list[Numbered]] = {}
    alone: list[Numbered] = []
    for each in numbered:
        many = None if each[1].alone else each[1].statement.many
        (alone if many is None else groups.setdefault(many, [])).append(each)
    together: list[Sending] = []
    for many, group in groups.items():
        rows = _rows(many, group) if len(group) > 1 else ""
        if len(rows) > LARGEST_TOGETHER:
            # PostgreSQL has to hold, and parse, all of a document at once.
            alone += [each for each in group if _is_large(each[1])]
            group = [each for each in group if not _is_large(each[1])]
            rows = _rows(many, group)
        if len(group) > 1:
            params = {**group[0][1].params, "rows": rows, "told_of": len(group)}
            together.append(Sending(many, params, group))
        else:
            alone += group
    alone.sort(key=itemgetter(0))
    return together + [Sending(write.statement, write.params, [(nth, write)]) for nth, write in alone]


def _rows(statement: Statement, group: Sequence[Numbered]) -> str:
    names = statement.row_names
    # To leave out the lease, which each row of some says and none is asked for, takes as long as to write the rest.
    whole = {frozenset(names), frozenset((*names, "lease"))}

    def row(params: Mapping[str, Any]) -> Mapping[str, Any]:
        return params if frozenset(params) in whole else {name: params[name] for name in names}

    return to_json([{"nth": nth, **row(write.params)} for nth, write in group]).decode()


def _is_large(write: Write) -> bool:
    return any(isinstance(value, str) and len(value) > LARGEST_ROW for value in write.params.values())
