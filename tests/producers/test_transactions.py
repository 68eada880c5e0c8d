"""Enqueueing inside the caller's own transaction: the run exists if and only if it commits, and is woken then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from agentrun import AsyncClient, Client
from agentrun.core.errors import IdempotencyConflict, InvalidRequest, NotFound
from agentrun.runtime.kinds import Registry
from tests.producers.conftest import House

pytestmark = pytest.mark.processes

PROMPTLY = 3.0
"""Seconds; the sweep comes once an hour."""


@pytest.fixture
def engine_url(house: House) -> str:
    return house.database_url.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture
def database(engine_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(engine_url)
    yield engine
    engine.dispose()


@pytest.fixture
async def async_tenant(house: House) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(settings=house.settings, kinds=Registry()) as client:
        yield client


# ---- the callers' transactions, each as a pair: begin something that commits, and something that does not


def _by_connection(database: sa.Engine, url: str, work: Callable[[Any], UUID], *, commit: bool) -> UUID:
    with database.connect() as connection:
        run_id = work(connection)
        connection.commit() if commit else connection.rollback()
    return run_id


def _by_begin(database: sa.Engine, url: str, work: Callable[[Any], UUID], *, commit: bool) -> UUID:
    with database.connect() as connection:
        transaction = connection.begin()
        run_id = work(connection)
        transaction.commit() if commit else transaction.rollback()
    return run_id


def _by_session(database: sa.Engine, url: str, work: Callable[[Any], UUID], *, commit: bool) -> UUID:
    with Session(database) as session:
        run_id = work(session)
        session.commit() if commit else session.rollback()
    return run_id


def _by_scoped_session(database: sa.Engine, url: str, work: Callable[[Any], UUID], *, commit: bool) -> UUID:
    session = scoped_session(sessionmaker(database))
    run_id = work(session)
    session.commit() if commit else session.rollback()
    session.remove()
    return run_id


def _by_savepoint(database: sa.Engine, url: str, work: Callable[[Any], UUID], *, commit: bool) -> UUID:
    with Session(database) as session:
        savepoint = session.begin_nested()
        run_id = work(session)
        savepoint.commit() if commit else savepoint.rollback()
        session.commit()
    return run_id


def _by_psycopg(database: sa.Engine, url: str, work: Callable[[Any], UUID], *, commit: bool) -> UUID:
    with psycopg.connect(url) as connection:
        run_id = work(connection)
        connection.commit() if commit else connection.rollback()
    return run_id


def _by_psycopg_transaction(database: sa.Engine, url: str, work: Callable[[Any], UUID], *, commit: bool) -> UUID:
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction(force_rollback=not commit):
        return work(connection)


WAYS = [
    _by_connection,
    _by_begin,
    _by_session,
    _by_scoped_session,
    _by_savepoint,
    _by_psycopg,
    _by_psycopg_transaction,
]
NAMES = [way.__name__.removeprefix("_by_") for way in WAYS]


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_run_is_woken_after_the_callers_commit_and_never_exists_after_a_rollback(
    tenant: Client, house: House, database: sa.Engine, way: Callable[..., UUID]
) -> None:
    def work(connection: Any) -> UUID:
        run_id = tenant.enqueue("echo", "inside", connection=connection)
        with pytest.raises(NotFound):  # nobody else sees it yet
            tenant.status(run_id)
        return run_id

    gone = way(database, house.database_url, work, commit=False)
    there = way(database, house.database_url, work, commit=True)
    assert tenant.wait(there, timeout=PROMPTLY).result == "inside"
    with pytest.raises(NotFound):
        tenant.status(gone)
    assert str(gone) not in house.worker.logs()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
async def test_asynchronous_sessions_and_connections_do_the_same(
    async_tenant: AsyncClient, house: House, engine_url: str, commit: bool
) -> None:
    engine = create_async_engine(engine_url)
    async with AsyncSession(engine) as session:
        by_session = await async_tenant.enqueue("echo", "session", connection=session)
        await (session.commit() if commit else session.rollback())
    async with engine.connect() as connection:
        by_connection = await async_tenant.enqueue("echo", "connection", connection=connection)
        await (connection.commit() if commit else connection.rollback())
    await engine.dispose()
    async with await psycopg.AsyncConnection.connect(house.database_url) as raw:
        by_psycopg = await async_tenant.enqueue("echo", "psycopg", connection=raw, tags=["kept"])
        await (raw.commit() if commit else raw.rollback())

    for run_id in (by_session, by_connection, by_psycopg):
        if commit:
            run = await async_tenant.wait(run_id, timeout=PROMPTLY)
            assert run.result in ("session", "connection", "psycopg")
        else:
            with pytest.raises(NotFound):
                await async_tenant.status(run_id)
            assert str(run_id) not in house.worker.logs()
    if commit:
        assert (await async_tenant.status(by_psycopg)).tags == ["kept"]


def test_several_runs_and_the_callers_own_rows_commit_together(
    tenant: Client, house: House, database: sa.Engine
) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS orders (id int)"))
        connection.execute(sa.text("INSERT INTO orders VALUES (1)"))
        runs = [tenant.enqueue("echo", str(number), connection=connection) for number in range(20)]
    assert [tenant.wait(run_id, timeout=PROMPTLY).result for run_id in runs] == [str(n) for n in range(20)]


def test_an_idempotency_key_works_inside_a_transaction(tenant: Client, database: sa.Engine) -> None:
    with database.begin() as connection:
        first = tenant.enqueue("echo", "one", idempotency_key="inside", connection=connection)
        assert tenant.enqueue("echo", "one", idempotency_key="inside", connection=connection) == first
        with pytest.raises(IdempotencyConflict):
            tenant.enqueue("echo", "two", idempotency_key="inside", connection=connection)
    assert tenant.enqueue("echo", "one", idempotency_key="inside") == first
    assert tenant.wait(first, timeout=PROMPTLY).result == "one"


@pytest.mark.parametrize("connection", ["postgresql://", object(), 7], ids=["url", "object", "number"])
def test_what_is_no_connection_is_refused_by_its_type(tenant: Client, connection: Any) -> None:
    with pytest.raises(InvalidRequest, match="SQLAlchemy connection or session, or a psycopg connection"):
        tenant.enqueue("echo", "x", connection=connection)


def test_a_connection_in_autocommit_outside_a_transaction_is_refused(tenant: Client, house: House) -> None:
    with (
        psycopg.connect(house.database_url, autocommit=True) as connection,
        pytest.raises(InvalidRequest, match="autocommit"),
    ):
        tenant.enqueue("echo", "x", connection=connection)
