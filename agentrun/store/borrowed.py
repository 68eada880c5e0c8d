"""Enqueueing inside a transaction that belongs to the caller: SQLAlchemy or psycopg, synchronous or not.

The row and the notification that leads to its wake are written through the caller's connection, so both exist if and
only if the caller commits. Nothing here commits or rolls back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from typing import cast as typed

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Text, select
from sqlalchemy.sql import func

from agentrun.core.errors import InvalidRequest
from agentrun.store.births import BY_KEYS, ENQUEUE
from agentrun.store.connect import type_of_row
from agentrun.store.sql import Statement, compiled, param

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

NOTIFY = compiled("notify", select(func.pg_notify(param("channel", Text), param("payload", Text)).label("told")))


def enqueue_in(connection: Any, params: Mapping[str, Any], announcing: Mapping[str, str]) -> list[type_of_row] | None:
    """None where the row was stored; else the row that has the idempotency key. Raises InvalidRequest."""
    connection = _of_session(connection)
    if isinstance(connection, SqlConnection):
        if _sqlalchemy(connection, ENQUEUE, params):
            _sqlalchemy(connection, NOTIFY, announcing)
            return None
        return _sqlalchemy(connection, BY_KEYS, {**params, "keys": [params["key"]]})
    if isinstance(connection, psycopg.Connection):
        _in_transaction(connection)
        with connection.cursor(row_factory=dict_row) as cursor:
            if cursor.execute(ENQUEUE.sql, params).fetchall():
                cursor.execute(NOTIFY.sql, announcing)
                return None
            return cursor.execute(BY_KEYS.sql, {**params, "keys": [params["key"]]}).fetchall()
    raise InvalidRequest(_unusable(typed("object", connection)))


def _of_session(connection: Any) -> Any:
    """The connection of a SQLAlchemy session; anything else is left as it is."""
    # Who has a session has imported SQLAlchemy's ORM; for everybody else it is 0.1 s of imports.
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is None:
        return connection
    if isinstance(connection, orm.scoped_session):
        connection = connection()
    return typed("Session", connection).connection() if isinstance(connection, orm.Session) else connection


async def enqueue_in_async(
    connection: Any, params: Mapping[str, Any], announcing: Mapping[str, str]
) -> list[type_of_row] | None:
    """As `enqueue_in`, for asynchronous connections too."""
    if type(connection).__module__.startswith("sqlalchemy.ext.asyncio"):
        # Not imported by name: SQLAlchemy's asyncio part needs a package that only its users have.
        return await connection.run_sync(enqueue_in, params, announcing)
    if isinstance(connection, psycopg.AsyncConnection):
        _in_transaction(connection)
        async with connection.cursor(row_factory=dict_row) as cursor:
            if await (await cursor.execute(ENQUEUE.sql, params)).fetchall():
                await cursor.execute(NOTIFY.sql, announcing)
                return None
            taken = await cursor.execute(BY_KEYS.sql, {**params, "keys": [params["key"]]})
            return await taken.fetchall()
    return enqueue_in(connection, params, announcing)


def _sqlalchemy(connection: SqlConnection, statement: Statement, params: Mapping[str, Any]) -> list[type_of_row]:
    # The statement itself, not its text: any driver that SQLAlchemy has can run it.
    wanted = {key: value for key, value in params.items() if key in statement.names}
    return [dict(row) for row in connection.execute(statement.element, wanted).mappings()]


def _in_transaction(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        raise InvalidRequest(
            "the psycopg connection is in autocommit and in no transaction; enqueue inside "
            "`with connection.transaction():`, or leave `connection` out"
        )


def _unusable(connection: object) -> str:
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    return f"connection must be a SQLAlchemy connection or session, or a psycopg connection, not {kind}"
