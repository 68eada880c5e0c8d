"""Group commit: one writer per process writes whatever its callers wait for as one pipelined transaction.

Each caller goes on when its own write has committed. A refused guard is no row, so one loser never spoils a batch; a
database error makes the batch go one by one. Nothing waits for a timer: an idle writer writes at once. After a broken
connection every write is asked for before it is repeated, so an unknown COMMIT is never presumed.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from agentrun.core.outcome import LeaseLost
from agentrun.store.batches import Rows, Write, sendings
from agentrun.store.connect import broke, connect_async, type_of_row
from agentrun.store.outages import of_postgres

log = logging.getLogger("agentrun.store")

LARGEST_BATCH = 256
"""Writes in one transaction: enough to fill the pipeline, few enough that a commit stays short."""

SMALLEST_HALF = 16
"""Writes that are worth a transaction of their own, for the sake of computing meanwhile."""

A_MOMENT = 0.005
"""Seconds that a write for which nobody waits is kept for company."""

LONGEST_PAUSE = 1.0
"""Seconds between attempts to reach the database."""


class Writer:
    """The process's only journal connection. Lives on the engine's loop; `write` is called there."""

    def __init__(self, url: str, *, name: str = "agentrun journal") -> None:
        self._url, self._name, self._outage = url, name, of_postgres(url)
        self._waiting: list[Write] = []
        self._called = asyncio.Event()
        self._connection: AsyncConnection[type_of_row] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop
        self._sent: Sequence[Write] = ()
        self._committed: Sequence[tuple[Write, Rows]] = ()
        self._unsure: dict[UUID, Write] = {}
        self._trailing: dict[tuple[UUID, int | None], list[Write]] = {}
        self.batches = 0
        self.writes = 0

    async def write(self, write: Write) -> Rows:
        """The statement's rows, once committed; none where its guard refused. Raises psycopg.Error for a real error.

        Waits as long as the database cannot be reached: the caller's own lease bounds how long that is. Raises
        LeaseLost where the run's claim was told of, and has not committed, and after `close`.
        """
        claim = self._unsure.get(write.run_id) if self._unsure and not write.of_step else None
        if claim is not None:
            await asyncio.wait([claim.done])
            if not claim.stood:
                raise LeaseLost
        if self._trailing and not write.of_step:
            write.after = tuple(self._trailing.get(write.segment, ()))
        return await self._put(write)

    def trail(self, write: Write) -> None:
        """Write what the segment need not wait for, because it says what is stored elsewhere already.

        What the segment writes next goes with it or after it, and hears where it was refused.
        """
        trailing = self._trailing.setdefault(write.segment, [])
        trailing.append(write)

        def known(_: object) -> None:
            # One that was refused stays, for the segment's next write to hear of it.
            if not write.refused:
                trailing.remove(write)
            if not trailing:
                self._trailing.pop(write.segment, None)

        self._put(write, at_once=False).add_done_callback(known)
        # It goes with what is written next, whosever that is.
        self._loop.call_later(A_MOMENT, self._called.set)

    async def caught_up(self, run_id: UUID, epoch: int) -> None:
        """Wait until what trails is written: for what that segment writes over another connection.

        Raises what the segment's next write would: LeaseLost where it was refused, psycopg.Error where it failed.
        """
        for write in tuple(self._trailing.get((run_id, epoch), ())):
            self._called.set()
            await asyncio.wait([write.done])
            if refused := write.refused:
                raise refused

    def forget(self, run_id: UUID, epoch: int) -> None:
        """That segment has ended: it writes no more."""
        self._trailing.pop((run_id, epoch), None)

    def _put(self, write: Write, *, at_once: bool = True) -> asyncio.Future[Rows]:
        if self._closed:
            raise LeaseLost
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            # In a context of its own: the first caller's branch and step are not the writer's.
            self._task = asyncio.create_task(self._serve(), name="agentrun journal", context=contextvars.Context())
        write.done = self._loop.create_future()
        self._waiting.append(write)
        if at_once:
            self._called.set()
        return write.done

    async def claim(self, write: Write, *, answered: Callable[[], object] = int) -> Rows:
        """A claim's rows, which may not have committed yet: nothing else of that run is written until they have.

        So a body begins while PostgreSQL waits for its disk. Should PostgreSQL crash just then, the claim is undone,
        and somebody else may have the same epoch. `answered` is called once it has committed, or was refused.
        """
        seen = write.seen = asyncio.get_running_loop().create_future()

        def heard(written: asyncio.Task[Rows]) -> None:
            answered()
            if written.cancelled():
                seen.cancel()
                return
            error = written.exception()
            if not seen.done():
                seen.set_result(written.result()) if error is None else seen.set_exception(error)

        asyncio.create_task(self.write(write), name="agentrun claim").add_done_callback(heard)
        rows = await seen
        if rows and not write.done.done():
            self._unsure[write.run_id] = write
            write.done.add_done_callback(lambda _: self._known(write))
        return rows or await write.done

    def unsure(self, run_id: UUID) -> Write | None:
        """The run's claim, where it was told of and nobody knows yet whether it has committed."""
        return self._unsure.get(run_id)

    def _known(self, claim: Write) -> None:
        del self._unsure[claim.run_id]
        if not claim.stood:
            self.abandon(claim.run_id, LeaseLost())

    def abandon(self, run_id: UUID, error: BaseException) -> None:
        """The run's lease is lost: whoever waits for one of its writes hears so, and what is not sent stays unsent."""
        for write in [*self._waiting, *self._sent]:
            if write.run_id == run_id and not write.of_step:
                write.fail(error)

    async def close(self) -> None:
        """Write what is waiting, then end. Whoever comes after that hears LeaseLost."""
        pending = {write.done for write in [*self._waiting, *self._sent]}
        if pending:
            await asyncio.wait(pending, timeout=5)
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._outage.gone(self._name)
        for write in [*self._waiting, *self._sent]:
            write.fail(LeaseLost())
        await self._disconnect()

    async def _serve(self) -> None:
        while True:
            await self._called.wait()
            self._called.clear()
            while self._waiting:
                self._sent = self._take()
                if self._sent:
                    await self._commit(self._sent)
                self._sent = ()
            self._tell()

    def _tell(self) -> None:
        """Answer the batch that has committed. Where others wait, once theirs is sent: then PostgreSQL works on the one
        half while the runs of the other compute."""
        told, self._committed = self._committed, ()
        for write, rows in told:
            write.answer(rows)

    def _take(self) -> list[Write]:
        half = -(-(len(self._waiting) + len(self._committed)) // 2)
        size = min(max(half, SMALLEST_HALF), LARGEST_BATCH)
        if len(self._waiting) > size:
            # Those of one statement in one half: two statements for half as many each take longer.
            first = self._waiting[0].statement
            # What comes after another write never overtakes it.
            self._waiting.sort(key=lambda write: write.statement is not first or bool(write.after))
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        for write in batch:
            write.catch_up()
        # Each statement locks in the order of run ids, as everywhere else: of their numbers, which compare faster.
        # Where batches of several statements cross all the same, PostgreSQL ends one, which then goes one by one.
        batch.sort(key=lambda write: (bool(write.after), write.run_id.int))
        return [write for write in batch if not write.done.done()]

    async def _commit(self, batch: Sequence[Write]) -> None:
        try:
            answers = await self._pipelined(await self._connected(), batch)
        except Exception as error:
            self._tell()
            log.debug("a batch of %d writes goes one by one after %s", len(batch), type(error).__name__)
            # What psycopg believes of a connection with a broken pipeline (prepared statements) is no longer true.
            await self._disconnect()
            for write in batch:
                await self._commit_alone(write, unsure=True)
            return
        self.batches += 1
        self.writes += len(batch)
        self._committed = list(zip(batch, answers, strict=True))

    async def _pipelined(self, connection: AsyncConnection[type_of_row], batch: Sequence[Write]) -> list[Rows]:
        if len(batch) == 1 and batch[0].seen is not None:
            self._tell()
            return [await _seen_first(connection, batch[0])]
        statements = sendings(batch)
        if len(statements) == 1 and statements[0].statement.first is None:
            # A pipeline's beginning and end take longer than many a statement. Who is told hears of it once this one is
            # sent, and is waited for.
            self._tell()
            sent = [(statements[0], await statements[0].send(connection))]
        else:
            # In autocommit, everything between two syncs is one transaction: no BEGIN and no COMMIT travel.
            async with connection.pipeline():
                sent = [(each, await each.send(connection)) for each in statements]
                # It is on its way, and PostgreSQL works on it. To wait for a sync here would be to wait for its end.
                self._tell()
        answers: list[Rows] = [[] for _ in batch]
        for sending, cursor in sent:
            for nth, rows in sending.answered(await cursor.fetchall()):
                answers[nth] = rows
        return answers

    async def _commit_alone(self, write: Write, *, unsure: bool) -> None:
        write.catch_up()
        while not write.done.done():
            try:
                connection = await self._connected()
                write.answer(await (_perhaps_again if unsure else _once)(connection, write))
            except psycopg.Error as error:
                if not broke(error) and not isinstance(error, psycopg.errors.DeadlockDetected):
                    write.fail(error)
                unsure = True
            except Exception as error:
                # A parameter that cannot be sent: its own writer hears so, and nobody else.
                write.fail(error)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> AsyncConnection[type_of_row]:
        pause = 0.02
        while self._connection is None or self._connection.closed:
            try:
                self._connection = await connect_async(self._url, name=self._name)
                self._outage.worked(who=self._name)
            except psycopg.OperationalError as error:
                self._outage.failed(error, who=self._name)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        return self._connection


async def _seen_first(connection: AsyncConnection[type_of_row], write: Write) -> Rows:
    async with connection.pipeline():
        cursor = await connection.execute(write.statement.sql, write.params)
        # Asks PostgreSQL to send what it has; the sync that makes it commit travels when the pipeline ends.
        rows = await cursor.fetchall()
        write.see(rows)
    return rows


async def _once(connection: AsyncConnection[type_of_row], write: Write) -> Rows:
    if write.statement.first is not None:
        async with connection.pipeline():
            await connection.execute(write.statement.first.sql, write.params)
            return await (await connection.execute(write.statement.sql, write.params)).fetchall()
    return await (await connection.execute(write.statement.sql, write.params)).fetchall()


async def _perhaps_again(connection: AsyncConnection[type_of_row], write: Write) -> Rows:
    """Nobody knows whether the first try committed: ask, write, and where that is refused, ask once more.

    The first try may still be executing on the server's side. Ours then waits for its lock, and comes second.
    """
    return await _landed(connection, write) or await _once(connection, write) or await _landed(connection, write)


async def _landed(connection: AsyncConnection[type_of_row], write: Write) -> Rows:
    if write.landed is None:
        return []
    return await (await connection.execute(write.landed.sql, {**write.params, **write.landed_params})).fetchall()
