"""A function in a transaction with its record: COMMIT may be interrupted, and the database may be away."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
import pytest

from agentrun.core.errors import Retryable
from agentrun.core.failures import describe
from agentrun.core.outcome import LeaseLost
from agentrun.core.words import FailureClass
from agentrun.store.committing import MOST_CALLS, Committing
from agentrun.store.database import Database
from tests.failures.misbehaving import unused_port


@pytest.fixture
def ledger(database: Database) -> None:
    with database.connection() as connection:
        connection.execute("CREATE TABLE ledger (entry text)")


def entries(connection: psycopg.Connection[Any]) -> int:
    return len(connection.execute("SELECT entry FROM ledger").fetchall())


def committing(database: Database, *, lands: bool) -> Committing[int]:
    """Its function counts its calls; each COMMIT is interrupted, and has taken effect or has not."""
    calls: list[int] = []

    def work(connection: psycopg.Connection[Any]) -> int:
        calls.append(1)
        return len(calls)

    def record(connection: psycopg.Connection[Any], value: int) -> datetime:
        with database.connection() as other:
            if lands:
                other.execute("INSERT INTO ledger VALUES ('landed')")
            began = connection.execute("SELECT now() AS began").fetchall()[0]["began"]
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        return began

    return Committing(
        database=database, work=work, record=record, landed=lambda it: entries(it) > 0, may_go_on=lambda: None
    )


@pytest.mark.usefixtures("ledger")
def test_a_commit_that_took_effect_though_it_was_interrupted_is_not_done_again(database: Database) -> None:
    once = committing(database, lands=True)
    assert (once.committed(), once.called) == (1, 1)


@pytest.mark.usefixtures("ledger")
def test_a_commit_that_is_interrupted_every_time_ends_as_a_broken_connection(database: Database) -> None:
    never = committing(database, lands=False)
    with pytest.raises(Retryable, match=f"broke in each of {MOST_CALLS} calls") as raised:
        never.committed()
    assert describe(raised.value).failure_class is FailureClass.CONNECTION
    assert never.called == MOST_CALLS


def test_a_database_that_is_away_is_waited_for_as_long_as_the_lease_is_held() -> None:
    asked: list[int] = []

    def may_go_on() -> None:
        asked.append(1)
        if len(asked) > MOST_CALLS + 1:
            raise LeaseLost

    def never(*_: Any) -> Any:
        raise AssertionError("called without a connection")

    away = Database(f"postgresql://me@127.0.0.1:{unused_port()}/x")
    waiting = Committing[int](database=away, work=never, record=never, landed=never, may_go_on=may_go_on)
    with pytest.raises(LeaseLost):
        waiting.committed()
    assert waiting.called == 0
