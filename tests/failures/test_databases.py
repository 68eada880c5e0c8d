"""Errors of real databases and brokers: what passes by itself is retried, what is wrong with the statement is not."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import redis
import sqlalchemy
import sqlalchemy.exc
from kombu import Connection
from kombu.exceptions import OperationalError

from agentrun.core.failures import Failure, describe
from agentrun.core.words import FailureClass
from agentrun.testing.servers import Servers
from tests.failures.misbehaving import SECRET, Provider, unused_port

CONNECTION, SERVER_ERROR, CLIENT_ERROR = FailureClass.CONNECTION, FailureClass.SERVER_ERROR, FailureClass.CLIENT_ERROR


@pytest.fixture(scope="module")
def url(shared_servers: Servers) -> Iterator[str]:
    """A database with one small table."""
    url = shared_servers.create_database(migrated=False)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE things (id int PRIMARY KEY, text text)")
        connection.execute("INSERT INTO things VALUES (1, 'a'), (2, 'b')")
    yield url
    shared_servers.drop_database(url)


@pytest.fixture
def first(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection."""
    with contextlib.closing(psycopg.connect(url)) as connection:
        yield connection


@pytest.fixture
def second(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another one."""
    with contextlib.closing(psycopg.connect(url)) as connection:
        yield connection


def _failure(connection: psycopg.Connection[Any], statement: str) -> Failure:
    with pytest.raises(psycopg.Error) as raised:
        connection.execute(statement)
    if not connection.closed:
        connection.rollback()
    return describe(raised.value)


@pytest.mark.parametrize(
    ("statement", "failure_class", "sqlstate"),
    [
        (f"INSERT INTO things VALUES (1, '{SECRET}')", CLIENT_ERROR, "23505"),
        (f"SELECT '{SECRET}'::int", CLIENT_ERROR, "22P02"),
        (f"SELECT {SECRET!r} FROM nowhere", CLIENT_ERROR, "42P01"),
        ("SELECT no_such_column FROM things", CLIENT_ERROR, "42703"),
        ("SET ROLE nobody_knows_me", CLIENT_ERROR, "22023"),
        ("SET statement_timeout = '20ms'; SELECT pg_sleep(20)", CONNECTION, "57014"),
        ("SET transaction_read_only = on; DELETE FROM things", CONNECTION, "25006"),
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53300'; END $$", SERVER_ERROR, "53300"),
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '28P01'; END $$", FailureClass.AUTH, "28P01"),
    ],
)
def test_a_statement_fails_with_the_class_of_its_sqlstate(
    first: psycopg.Connection[Any], statement: str, failure_class: FailureClass, sqlstate: str
) -> None:
    failure = _failure(first, statement)
    assert (failure.failure_class, failure.message) == (failure_class, f"SQLSTATE {sqlstate}")


def test_a_deadlock_is_retried(first: psycopg.Connection[Any], second: psycopg.Connection[Any]) -> None:
    for connection, key in ((first, 1), (second, 2)):
        connection.execute("SET LOCAL deadlock_timeout = '20ms'")
        connection.execute(f"UPDATE things SET text = 'x' WHERE id = {key}")
    errors: list[psycopg.Error] = []

    def update(connection: psycopg.Connection[Any], key: int) -> None:
        try:
            connection.execute(f"UPDATE things SET text = 'x' WHERE id = {key}")
        except psycopg.Error as error:
            errors.append(error)
        connection.rollback()

    other = threading.Thread(target=update, args=(second, 1))
    other.start()
    update(first, 2)
    other.join(10)
    assert [describe(error).failure_class for error in errors] == [SERVER_ERROR]
    assert describe(errors[0]).message == "SQLSTATE 40P01"


def test_a_serialization_failure_is_retried(first: psycopg.Connection[Any], second: psycopg.Connection[Any]) -> None:
    first.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    first.execute("SELECT * FROM things")
    second.execute("UPDATE things SET text = 'x' WHERE id = 1")
    second.commit()
    assert _failure(first, "UPDATE things SET text = 'y' WHERE id = 1").failure_class is SERVER_ERROR


def test_a_lock_that_is_not_to_be_had_is_retried(
    first: psycopg.Connection[Any], second: psycopg.Connection[Any]
) -> None:
    first.execute("SELECT * FROM things FOR UPDATE")
    assert _failure(second, "SELECT * FROM things FOR UPDATE NOWAIT").failure_class is SERVER_ERROR


def test_a_connection_that_the_server_ends_is_retried(
    first: psycopg.Connection[Any], second: psycopg.Connection[Any]
) -> None:
    second.execute("SELECT pg_terminate_backend(%s)", [first.info.backend_pid])
    ended = _failure(first, "SELECT 1")
    assert ended.failure_class is CONNECTION
    assert _failure(first, "SELECT 1").failure_class is CONNECTION


def test_a_server_that_cannot_be_reached_is_retried() -> None:
    with pytest.raises(psycopg.OperationalError) as raised:
        psycopg.connect(f"host=127.0.0.1 port={unused_port()} dbname=x password={SECRET}")
    assert describe(raised.value).failure_class is CONNECTION


def test_a_malformed_url_is_not_retried_and_not_told() -> None:
    with pytest.raises(psycopg.ProgrammingError) as raised:
        psycopg.connect(f"postgresql//me:{SECRET}@db/x")
    failure = describe(raised.value)
    assert failure.failure_class is CLIENT_ERROR
    assert SECRET in str(raised.value)
    assert SECRET not in failure.message


@pytest.mark.parametrize(
    ("statement", "failure_class", "message"),
    [
        ("SELECT :told FROM nowhere", CLIENT_ERROR, "SQLSTATE 42P01"),
        ("INSERT INTO things VALUES (1, :told)", CLIENT_ERROR, "SQLSTATE 23505"),
        ("SELECT pg_sleep(20), :told", CONNECTION, "SQLSTATE 57014"),
    ],
)
def test_sqlalchemys_wrapper_has_the_class_of_the_drivers_error(
    url: str, statement: str, failure_class: FailureClass, message: str
) -> None:
    through = re.sub("^postgresql:", "postgresql+psycopg:", url)
    engine = sqlalchemy.create_engine(through, connect_args={"options": "-c statement_timeout=50"})
    with engine.connect() as connection, pytest.raises(sqlalchemy.exc.DBAPIError) as raised:
        connection.execute(sqlalchemy.text(statement), {"told": SECRET})
    engine.dispose()
    failure = describe(raised.value)
    assert SECRET in str(raised.value)
    assert (failure.failure_class, failure.message) == (failure_class, message)


def test_sqlalchemy_without_a_server_is_retried() -> None:
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://me:{SECRET}@127.0.0.1:{unused_port()}/x")
    with pytest.raises(sqlalchemy.exc.OperationalError) as raised:
        engine.connect()
    assert describe(raised.value).failure_class is CONNECTION


def test_a_redis_that_cannot_be_reached_or_is_silent_is_retried(provider: Provider) -> None:
    port = provider.server_address[1]
    errors: list[redis.RedisError] = []
    for at in (unused_port(), port):
        client = redis.Redis(port=at, socket_timeout=0.1, retry=None)
        with pytest.raises(redis.RedisError) as raised:
            client.ping()  # pyright: ignore[reportUnknownMemberType]
        errors.append(raised.value)
        client.close()
    assert [describe(error).failure_class for error in errors] == [CONNECTION, CONNECTION]


def test_a_wrong_command_to_redis_is_not_retried(redis: Any) -> None:
    import redis as package

    with pytest.raises(package.ResponseError) as raised:
        redis.execute_command("NO_SUCH_COMMAND")
    assert describe(raised.value).failure_class is FailureClass.UNKNOWN


def test_a_broker_that_cannot_be_reached_is_retried() -> None:
    with Connection(f"redis://127.0.0.1:{unused_port()}/0") as connection, pytest.raises(OperationalError) as raised:
        connection.ensure_connection(max_retries=1, interval_start=0)
    assert describe(raised.value).failure_class is CONNECTION
