"""SQLAlchemy Core statements, compiled once to psycopg's SQL: what is hot runs on psycopg alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, LiteralString, ParamSpec
from typing import cast as typed

from sqlalchemy import CTE, ColumnElement, bindparam, cast, column, func, literal_column, select
from sqlalchemy.dialects.postgresql import INTERVAL, JSON, JSONB, UUID
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql import Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.types import Boolean, Double, Integer, Numeric, Text, TypeEngine

P = ParamSpec("P")

_UNCAST = (Numeric, Boolean, Double)
"""Types whose parameters the dialect leaves without a cast: NULL would arrive as text."""

_DIALECT = PGDialect_psycopg(paramstyle="pyformat")
_NUMBERED = PGDialect_psycopg(paramstyle="numeric_dollar")


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement, compiled when it is first used. `element` runs on any SQLAlchemy driver."""

    name: str
    element: Executable
    many: Statement | None = field(default_factory=lambda: None)
    """The same for many at once: takes `rows`, JSON objects of `row_names`, each with its number `nth`, and `told_of`,
    how many they are. A row that it returns belongs to the one of its `nth`, or to the one of its `run_id` and `key`;
    one with `landed` belongs to all of them."""

    row_names: tuple[str, ...] = field(default_factory=lambda: ())
    """Of a statement for many: the parameters that differ from row to row. The others are the process's own."""

    listing: bool = field(default_factory=lambda: False)
    """Of a statement for many: it changes nothing, and returns any number of rows for each, with its `run_id`."""

    by_values: bool = field(default_factory=lambda: False)
    """What it is asked with decides how it is best answered: PostgreSQL plans it each time."""

    first: Statement | None = field(default_factory=lambda: None)
    """A lock that is taken ahead of it, in its transaction, with its parameters: so it begins when nobody else is at
    what it asks about, and sees what they left. Whoever sends it (`Database`, the writer) sends both."""

    @cached_property
    def sql(self) -> LiteralString:
        """psycopg's SQL, with `%(name)s` parameters."""
        return typed("LiteralString", str(self._compiled))

    @cached_property
    def numbered(self) -> tuple[LiteralString, tuple[str, ...]]:
        """The same with parameters `$1` and so on, and their names in that order, for psycopg's raw cursors.

        Of a statement with more than 4,096 characters, psycopg would look for the named ones anew each time.
        """
        compiled = self._compiled_for(_NUMBERED)
        return typed("LiteralString", str(compiled)), tuple(compiled.positiontup or ())

    @cached_property
    def names(self) -> frozenset[str]:
        """The parameters' names."""
        return frozenset(self._compiled.params or {})

    @cached_property
    def _compiled(self) -> SQLCompiler:
        return self._compiled_for(_DIALECT)

    def _compiled_for(self, dialect: PGDialect_psycopg) -> SQLCompiler:
        if not isinstance(self.element, ClauseElement):
            raise TypeError(f"statement {self.name} is no SQLAlchemy statement")
        sql = typed("SQLCompiler", self.element.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}))
        left_over = {key for key, value in (sql.params or {}).items() if value is not None}
        if left_over:
            raise ValueError(f"statement {self.name} binds constants: {left_over}")
        return sql


class _Later(Statement):
    """A statement whose parts come into being with the first question for one of them."""

    def __init__(self, build: Callable[[], Statement]) -> None:
        self.__dict__["_build"] = build

    def __getattr__(self, name: str) -> Any:
        if name not in {each.name for each in fields(Statement)}:
            raise AttributeError(name)
        built: Statement = self.__dict__["_build"]()
        # Two threads may both build it: they build the same.
        self.__dict__.update({each.name: getattr(built, each.name) for each in fields(Statement)})
        return self.__dict__[name]


def later(build: Callable[P, Statement], *args: P.args, **options: P.kwargs) -> Statement:
    """The statement that `build` makes, made when it is first used: to build all takes an import 0.3 s."""
    return _Later(lambda: build(*args, **options))


def compiled(name: str, element: Executable, many: Statement | None = None) -> Statement:
    """A statement. Constants in it must be `word()` literals, so that partial indexes can be used."""
    return Statement(name, element, many)


def compiled_many(name: str, element: Executable, row_names: Iterable[str]) -> Statement:
    """A statement for many rows of these parameters at once."""
    return Statement(name, element, None, tuple(row_names))


def listed(name: str, columns: tuple[ColumnElement[Any], ...], run_id: ColumnElement[Any]) -> Statement:
    """These columns of all rows of the run that the parameter `run_id` names; or of many runs at once."""
    mine = recordset("mine", {"run_id": UUID})
    of_many = select(run_id.label("run_id"), *columns).where(run_id == any_of(mine.c.run_id))
    many = Statement(f"{name}_many", of_many, None, ("run_id",), listing=True)
    return Statement(name, select(*columns).where(run_id == param("run_id", UUID)), many)


def any_of(ids: ColumnElement[Any]) -> ColumnElement[Any]:
    """One of the ids in a column of a CTE.

    By an array: a join would have the planner guess how many there are, and it may scan whole tables, or one of the two
    once for each row of the other.
    """
    return func.any(func.array(select(ids).scalar_subquery()))


def recordset(name: str, columns: Mapping[str, TypeEngine[Any] | type[TypeEngine[Any]]]) -> CTE:
    """The objects of the JSON array in the parameter `rows`, as rows of these columns and their number, `nth`.

    A CTE, so that what asks for it twice has the array read once.
    """
    typed_columns = [column("nth", Integer), *(column(key, kind) for key, kind in columns.items())]
    rows = func.json_to_recordset(param("rows", JSON)).table_valued(*typed_columns, name="given")
    return select(rows.render_derived(name="given", with_types=True)).cte(name)


def word(value: str) -> ColumnElement[str]:
    """A word of the vocabulary as an SQL literal."""
    if not value.replace("_", "").isalpha():
        raise ValueError(f"{value!r} is no word")
    return literal_column(f"'{value}'")


def error_type(name: str) -> ColumnElement[str]:
    """The name of an error's type, as a stored error has it, as an SQL literal."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} is no type")
    return literal_column(f"'{name}'")


def number(value: int) -> ColumnElement[int]:
    """A small constant as an SQL literal."""
    return literal_column(str(int(value)))


def param(name: str, kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> ColumnElement[Any]:
    """A parameter with its type, rendered with a cast so that NULL and text arrive as what they are."""
    if kind in (JSON, JSONB):
        # Already JSON text: a JSON parameter would encode it a second time on SQLAlchemy's own drivers.
        return cast(bindparam(name, value=None, type_=Text), kind)
    bound = bindparam(name, value=None, type_=kind)
    return cast(bound, kind) if kind in _UNCAST else bound


def beside_key(column: ColumnElement[Any]) -> ColumnElement[str]:
    """A text column of a row that is found by its key, as an expression that fits no index.

    Where statistics are old, PostgreSQL takes a partial index (of what waits, say) for nearly empty, and would read all
    of it for each row that the key finds at once.
    """
    return column.concat(literal_column("''"))


_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_UNREADABLE = rf"\\u0000|{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
"""NUL, and halves of characters, as JSON escapes them."""


def text_in(document: ColumnElement[Any], name: str) -> ColumnElement[Any]:
    """A member, as text, of a JSON document that may hold what is no text in PostgreSQL, in this member or any other:
    PostgreSQL stores it, and takes nothing at all out of such a document."""
    bad: ColumnElement[str] = literal_column(f"'{_UNREADABLE}'")
    good: ColumnElement[str] = literal_column(r"'\\ufffd'")
    readable = func.regexp_replace(cast(document, Text), bad, good, literal_column("'g'"))
    return cast(readable, JSON).op("->>")(word(name))


def seconds(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """A number of seconds as an interval."""
    return cast(value, Double) * cast(literal_column("'1 second'"), INTERVAL)


def now() -> ColumnElement[Any]:
    """The database's time: the only clock that decides anything. Unqualified, so that tests can travel."""
    return func.now()
