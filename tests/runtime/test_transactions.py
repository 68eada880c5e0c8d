"""`ctx.transaction`: its function is a guest in the transaction, and what it does to it is never recorded as done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from agentrun import Client, Context, Reason, Status, StepFailed, durable
from agentrun.core.errors import BodyError, ConfigurationError
from agentrun.store.committing import MOST_CALLS
from agentrun.store.database import Database

ENTER = "INSERT INTO ledger VALUES ('entered')"
END_OWN = "SELECT pg_terminate_backend(pg_backend_pid())"

Function = Callable[[Any], Any]


@pytest.fixture
def entries(database: Database) -> Callable[[], int]:
    """How many are in the ledger."""
    with database.connection() as connection:
        connection.execute("CREATE TABLE ledger (entry text)")

    def count() -> int:
        with database.connection() as connection:
            return len(connection.execute("SELECT entry FROM ledger").fetchall())

    return count


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


def closes(connection: Any) -> int:
    connection.close()
    return 3


def closes_and_asks(connection: Any) -> int:
    connection.close()
    return connection.execute("SELECT 3 AS three").fetchone()["three"]


def commits(connection: Any) -> None:
    connection.commit()


def rolls_back(connection: Any) -> None:
    connection.rollback()


def enters_with(connection: Any) -> None:
    with connection:
        connection.execute("SELECT 1")


def sends_commit(connection: Any) -> int:
    connection.execute("COMMIT")
    return 3


def sends_rollback(connection: Any) -> int:
    connection.execute("ROLLBACK")
    return 3


def sends_rollback_and_begin(connection: Any) -> int:
    connection.execute("ROLLBACK; BEGIN")
    return 3


def chains(connection: Any) -> int:
    connection.execute("ROLLBACK AND CHAIN")
    return 3


def raises_rollback(connection: Any) -> int:
    raise psycopg.Rollback


def passes_over_an_error(connection: Any) -> int:
    with suppress(psycopg.Error):
        connection.execute("SELECT 1 / 0")
    return 3


REFUSED: dict[Function, str] = {
    closes: "the function closed the connection of its transaction",
    closes_and_asks: "the function closed the connection of its transaction",
    commits: "leave commit, rollback, close and `with connection:` to agentrun",
    rolls_back: "leave commit, rollback, close and `with connection:` to agentrun",
    enters_with: "leave commit, rollback, close and `with connection:` to agentrun",
    sends_rollback: "the function ended its transaction by itself",
    sends_rollback_and_begin: "the function ended its transaction by itself",
    chains: "the function ended its transaction by itself",
    raises_rollback: "raise an error of your own",
    passes_over_an_error: "put what may fail into `with connection.transaction():`",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_a_function_does_to_its_transaction_is_refused_and_nothing_is_done(
    run: Any, client: Client, entries: Callable[[], int], calls: Counter[str], function: Function
) -> None:
    def within(connection: Any) -> Any:
        calls["within"] += 1
        connection.execute(ENTER)
        return function(connection)

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.transaction(within)

    done = run("k")
    assert (done.status, done.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert REFUSED[function] in done.error["message"]
    assert done.error["type"] == "agentrun.core.errors.BodyError"
    assert [step.status for step in client.steps(done.id)] == ["failed"]
    assert (entries(), calls["within"]) == (0, 1)


def test_what_a_function_commits_by_itself_is_not_recorded_as_done(
    run: Any, client: Client, entries: Callable[[], int]
) -> None:
    def within(connection: Any) -> int:
        connection.execute(ENTER)
        return sends_commit(connection)

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.transaction(within)

    done = run("k")
    assert "the function ended its transaction by itself" in done.error["message"]
    assert [step.status for step in client.steps(done.id)] == ["failed"]
    assert entries() == 1


def test_savepoints_are_the_functions_own(run: Any, entries: Callable[[], int]) -> None:
    def within(connection: Any) -> int:
        with suppress(psycopg.Error), connection.transaction():
            connection.execute(ENTER)
            connection.execute("SELECT 1 / 0")
        with connection.transaction():
            connection.execute(ENTER)
            raise psycopg.Rollback
        connection.execute(ENTER)
        return 3

    @durable("k")
    async def body(ctx: Context) -> int:
        return await ctx.transaction(within)

    assert run("k").result == 3
    assert entries() == 1


def test_a_connection_that_breaks_in_every_call_fails_the_step_and_the_run_retries_within_its_budget(
    run: Any, client: Client, calls: Counter[str], entries: Callable[[], int]
) -> None:
    def within(connection: Any) -> None:
        calls["within"] += 1
        connection.execute(ENTER)
        connection.execute(END_OWN)

    @durable("k", max_requeues=1)
    async def body(ctx: Context) -> None:
        calls["body"] += 1
        await ctx.transaction(within)

    done = run("k")
    assert (done.status, done.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert (done.error["class"], done.error["message"]) == (
        "connection", f"the connection to the database broke in each of {MOST_CALLS} calls",
    )  # fmt: skip
    assert calls == {"body": 2, "within": 2 * MOST_CALLS}
    assert entries() == 0


def test_a_function_is_called_again_where_the_connection_broke_once(
    run: Any, calls: Counter[str], entries: Callable[[], int]
) -> None:
    def within(connection: Any) -> int:
        calls["within"] += 1
        connection.execute(ENTER)
        if calls["within"] < MOST_CALLS:
            connection.execute(END_OWN)
        return calls["within"]

    @durable("k")
    async def body(ctx: Context) -> int:
        return await ctx.transaction(within)

    assert run("k").result == MOST_CALLS
    assert entries() == 1


@pytest.mark.parametrize(
    "error", [ConfigurationError("a key of theirs"), psycopg.OperationalError("another database is away")]
)
def test_errors_of_the_functions_own_are_not_taken_for_a_broken_connection(
    run: Any, calls: Counter[str], error: Exception
) -> None:
    def within(connection: Any) -> None:
        calls["within"] += 1
        raise error

    @durable("k")
    async def body(ctx: Context) -> str:
        with pytest.raises(StepFailed) as failed:
            await ctx.transaction(within)
        return failed.value.error_type

    assert run("k").result.endswith(type(error).__name__)
    assert calls["within"] == 1


def test_a_coroutine_function_is_refused_before_anything_is_recorded(run: Any, client: Client) -> None:
    async def within(connection: Any) -> None: ...

    @durable("k")
    async def body(ctx: Context) -> None:
        with pytest.raises(
            BodyError, match=r"`within` is a coroutine function, and ctx\.transaction takes a plain one"
        ):
            await ctx.transaction(within)

    done = run("k")
    assert done.status is Status.COMPLETED
    assert client.steps(done.id) == []
