"""SQLAlchemy Core statements, compiled once to psycopg's SQL. What is hot runs on psycopg; the tables stay SQLAlchemy's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, bindparam, cast, func, literal_column
from sqlalchemy.dialects.postgresql import INTERVAL
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql import Executable
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.types import Boolean, Double, Numeric, TypeEngine

_UNCAST = (Numeric, Boolean, Double)
"""Types whose parameters the dialect leaves without a cast: NULL would arrive as text."""

_DIALECT = PGDialect_psycopg(paramstyle="pyformat")


@dataclass(frozen=True, slots=True)
class Statement:
    """One compiled statement. `sql` has `%(name)s` parameters; `element` runs on any SQLAlchemy driver."""

    name: str
    sql: str
    element: Executable
    names: frozenset[str]


def compiled(name: str, element: Executable) -> Statement:
    """Compile `element` once. Constants must be `word()` literals, so that partial indexes can be used."""
    assert isinstance(element, ClauseElement)
    sql = element.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    left_over = {key for key, value in sql.params.items() if value is not None}
    assert not left_over, f"statement {name} binds constants: {left_over}"
    return Statement(name, str(sql), element, frozenset(sql.params))


def word(value: str) -> ColumnElement[str]:
    """A word of the vocabulary as an SQL literal."""
    assert value.replace("_", "").isalpha(), value
    return literal_column(f"'{value}'")


def number(value: int) -> ColumnElement[int]:
    """A small constant as an SQL literal."""
    return literal_column(str(int(value)))


def param(name: str, kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> ColumnElement[Any]:
    """A parameter with its type, rendered with a cast so that NULL and text arrive as what they are."""
    bound = bindparam(name, value=None, type_=kind)
    return cast(bound, kind) if kind in _UNCAST else bound


def seconds(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """A number of seconds as an interval."""
    return cast(value, Double) * cast(literal_column("'1 second'"), INTERVAL)


def now() -> ColumnElement[Any]:
    """The database's time: the only clock that decides anything. Unqualified, so that tests can travel."""
    return func.now()
