"""A body's own function in a transaction that also records its step: both commit, or neither.

The function is a guest there. What it does to the transaction itself is refused, for the record must stand for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, LiteralString, TypeVar

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from agentrun.core.errors import BodyError, ConfigurationError, Retryable
from agentrun.store.connect import broke, type_of_row
from agentrun.store.database import Database

T = TypeVar("T")

MOST_CALLS = 3
"""Calls whose connection broke before the step fails; what follows is the run's to decide."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between attempts: each pause is twice the one before."""

_BEGAN: LiteralString = "SELECT now() AS began"
"""Stands still within a transaction, so that it tells one from the next."""

_NOT_ITS_OWN = "leave commit, rollback, close and `with connection:` to agentrun, which commits when it returns"


class _Lost(Exception):
    """The connection cannot be had, or is gone; what was asked of it is the cause."""


@dataclass(slots=True, kw_only=True)
class Committing(Generic[T]):
    """One function that is to be called, and recorded, in a transaction."""

    database: Database
    work: Callable[[Connection[type_of_row]], T]
    record: Callable[[Connection[type_of_row], T], datetime]
    """Writes the record, and returns the beginning of the transaction that it is in."""

    landed: Callable[[Connection[type_of_row]], bool]
    """Whether the record is there, though COMMIT was interrupted."""

    may_go_on: Callable[[], None]
    """Called before every attempt; ends them by raising."""

    called: int = 0
    returned: list[T] = field(default_factory=list[T])
    """What the function gave; where it was asked to commit, its end is not known."""

    def committed(self) -> T:
        """What the function returned, once its transaction has committed with the record.

        It is called again where the connection broke under it. A database that cannot be reached is waited for, as
        long as `may_go_on` lets it. Raises what the function and the record raise; Retryable where the connection broke
        in MOST_CALLS calls; BodyError where the function closed, ended or spoilt its transaction.
        """
        lost: BaseException | None = None
        for pause in _pauses():
            self.may_go_on()
            try:
                if self.returned and self._has_landed():
                    return self.returned[-1]
                if self.called >= MOST_CALLS:
                    raise Retryable(f"the connection to the database broke in each of {self.called} calls") from lost
                return self._attempt()
            except _Lost as error:
                lost = error.__cause__
            time.sleep(pause)  # noqa: TID251 - between attempts; the lease is asked after each
        raise AssertionError("the pauses have no end")

    def _has_landed(self) -> bool:
        with _connected(self.database.connection()) as connection:
            return self.landed(connection)

    def _attempt(self) -> T:
        with _connected(self.database.transaction()) as connection:
            began = connection.execute(_BEGAN).fetchall()[0]["began"]
            self.called += 1
            value = self._guest(connection)
            if self.record(connection, value) != began:
                raise _ended()
            self.returned.append(value)
        return value

    def _guest(self, connection: Connection[type_of_row]) -> T:
        """The function's value, where it has left the transaction as it was."""
        try:
            value = self.work(connection)
        except psycopg.Rollback as error:
            raise BodyError("the function raised psycopg.Rollback; raise an error of your own to roll back") from error
        except psycopg.Error as error:
            if _closed(connection):
                raise _ended("closed the connection of") from error
            if error.sqlstate is None and "forbidden within a Transaction" in str(error):
                raise _ended("tried to end") from error
            raise
        if _closed(connection):
            raise _ended("closed the connection of")
        match connection.info.transaction_status:
            case TransactionStatus.IDLE:
                raise _ended()
            case TransactionStatus.INERROR:
                raise BodyError(
                    "the function returned after a statement that failed, and PostgreSQL keeps nothing of such a "
                    "transaction; put what may fail into `with connection.transaction():` of its own"
                )
            case _:
                return value


@contextmanager
def _connected(opened: AbstractContextManager[Connection[type_of_row]]) -> Generator[Connection[type_of_row]]:
    """A connection. Raises _Lost where there is none, or where it is gone when this ends."""
    connection = None
    try:
        with opened as connection:
            yield connection
            if connection.closed:
                # psycopg leaves out the COMMIT then, and says nothing.
                raise psycopg.OperationalError("the connection was lost")
    except (ConfigurationError, psycopg.OperationalError, psycopg.InterfaceError) as error:
        if connection is None:
            if isinstance(error, psycopg.Error) and not broke(error):
                raise
        elif not connection.closed:
            # The function's own trouble, with another server or with a lock.
            raise
        raise _Lost from error


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


def _closed(connection: Connection[Any]) -> bool:
    """Whether it was closed from this side."""
    return connection.closed and not connection.broken


def _ended(what: str = "ended") -> BodyError:
    return BodyError(f"the function {what} its transaction by itself; {_NOT_ITS_OWN}")
