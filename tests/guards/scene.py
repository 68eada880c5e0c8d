"""The stage of one case: a statement, a run that it is for, and a twin that it must never touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from psycopg import sql
from pydantic_core import to_json

from agentrun.store.database import Database
from agentrun.store.sql import Statement
from agentrun.testing.rows import Rows

_USUAL = {"limit": 100, "queue": "agentrun", "grace": 0.0, "kind": "signal", "step_epoch": 1}
_TABLES = {"runs": "id"} | dict.fromkeys(
    ("moves", "steps", "waits", "signals", "spend", "episodes", "notices"), "run_id"
)
_EVERYTHING = sql.SQL(" UNION ALL ").join(
    sql.SQL(
        "SELECT {} AS of, string_agg(stored::text, '; ' ORDER BY stored::text) AS found"
        " FROM agentrun.{} AS stored WHERE {} = any(%(ids)s::uuid[])"
    ).format(sql.Literal(table), sql.Identifier(table), sql.Identifier(key))
    for table, key in _TABLES.items()
)


@dataclass
class Scene:
    """Everything happens in a namespace of the case's own, so that many cases share one database."""

    database: Database
    statement: Statement
    together: Statement | None = None
    """The statement for many rows, where it is to be played instead: each time for one row among them."""

    rows: Rows = field(init=False)
    run: UUID = field(init=False)
    others: list[UUID] = field(init=False, default_factory=list[UUID])
    given: dict[str, Any] = field(init=False, default_factory=dict[str, Any])
    """Parameters that every execution of the statement has, unless it says otherwise."""

    def __post_init__(self) -> None:
        self.rows = Rows(self.database, namespace=uuid4().hex)

    def make(self, one: Callable[[], UUID]) -> UUID:
        """The run, and its twin: made the same way, and just as good for the statement."""
        self.others.append(one())
        self.run = one()
        return self.run

    def do(self, **params: Any) -> list[dict[str, Any]]:
        """The statement's rows; what is not given is what lets it land on a run under epoch 1, else NULL."""
        if self.together is not None:
            return self.do_many([params])
        return self.database.rows(self.statement, self.params(self.statement, **self.given | params))

    def do_many(self, each: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of the statement for many, told of these; their `nth` is the place in the list."""
        assert self.together is not None
        given = [self.params(self.statement, **self.given | params) for params in each]
        names = self.together.row_names
        rows = [{"nth": nth, **{name: one[name] for name in names}} for nth, one in enumerate(given)]
        params = given[0] | {"rows": to_json(rows).decode(), "told_of": len(rows)}
        answer = self.database.rows(self.together, params)
        if not any(row.get("landed") for row in answer):
            return answer
        assert len(answer) == 1, "all have landed: nothing else is told"
        assert answer[0]["landed"] == len(rows)
        return [{name: one[name] for name in ("run_id", "key")} for one in given]

    def first(self, statement: Statement, run_id: UUID, **params: Any) -> None:
        """Another statement does its work on a run before the one that is played."""
        rows = self.database.rows(statement, self.params(statement, run_id=run_id, **params))
        assert rows, f"{statement.name} was refused"

    def params(self, statement: Statement, **params: Any) -> dict[str, Any]:
        """Every parameter of the statement."""
        usual = dict.fromkeys(statement.names) | _USUAL
        step = self.rows.step("w", status="completed", effect="non_idempotent_write")
        given = step | ({"kind": "signal"} if "wait_id" in statement.names else {}) | params
        run_id = given.pop("run_id", self.run if hasattr(self, "run") else uuid4())
        return usual | self.rows.params(run_id, **given)

    def lands(self, **params: Any) -> list[dict[str, Any]]:
        """The statement does its work, and touches nobody else."""
        before, mine = self._everything(*self.others), self._everything(self.run)
        answer = self.do(**params)
        assert answer, f"{self.statement.name} was refused"
        assert self._everything(self.run) != mine, f"{self.statement.name} changed nothing"
        assert self._everything(*self.others) == before, f"{self.statement.name} touched another run"
        return answer

    def refused(self, **params: Any) -> None:
        """The statement says no (no row, or one without what it asked for), and has changed nothing."""
        before = self._everything(self.run, *self.others)
        answer = self.do(**params)
        assert not any(_said_yes(row) for row in answer), f"{self.statement.name} landed: {answer}"
        assert self._everything(self.run, *self.others) == before, "it was refused and changed something"

    def stored(self, run_id: UUID) -> list[Any]:
        """Everything that is stored of a run."""
        with self.database.connection() as connection:
            return [
                connection.execute(
                    sql.SQL("SELECT * FROM agentrun.{} WHERE {} = %s ORDER BY 1, 2").format(
                        sql.Identifier(table), sql.Identifier(key)
                    ),
                    [run_id],
                ).fetchall()
                for table, key in _TABLES.items()
            ]

    def _everything(self, *runs: UUID) -> list[Any]:
        """What is stored of the runs, as one text for each table: to compare, in one question."""
        with self.database.connection() as connection:
            return connection.execute(_EVERYTHING, {"ids": list(runs)}).fetchall()

    def row(self, run_id: UUID | None = None) -> dict[str, Any]:
        return self.rows.row(run_id or self.run)

    def set(self, table: str, run_id: UUID, **columns: Any) -> None:
        """By hand, where no move leads there. Strings that start with `=` are SQL."""
        said = [
            sql.SQL("{} = {}").format(
                sql.Identifier(name), sql.SQL(value[1:]) if str(value).startswith("=") else sql.Literal(value)
            )
            for name, value in columns.items()
        ]
        update = sql.SQL("UPDATE agentrun.{} SET {} WHERE {} = %s")
        names = sql.Identifier(table), sql.SQL(", ").join(said), sql.Identifier(_TABLES[table])
        with self.database.connection() as connection:
            connection.execute(update.format(*names), [run_id])

    def parked_by_hand(self, run_id: UUID) -> None:
        """A running run waits, under the same epoch."""
        self.set("runs", run_id, status="waiting", waiting_on="signal", claimed_by=None, lease_expires_at=None)

    def step_of(self, run_id: UUID, key: str) -> dict[str, Any]:
        return next(step for step in self.rows.stored(run_id)["steps"] if step["key"] == key)


def _said_yes(row: dict[str, Any]) -> bool:
    """A fence answers with the step's key, a heartbeat with `renewed`, a purge by how much went; all else by a row."""
    return bool(row.get("renewed", row.get("key", row.get("purged", True))))


Play = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A guarantee, played for one statement."""

    name: str
    statement: str
    play: Play
    alone: bool = False

    def __str__(self) -> str:
        return f"{self.statement}: {self.name.replace('_', ' ')}"


CASES: list[Case] = []


def case(*statements: str, alone: bool = False) -> Callable[[Play], Play]:
    """Play it for each of these statements, and for the same for many rows unless that is always done `alone`."""

    def register(play: Play) -> Play:
        CASES.extend(Case(play.__name__, statement, play, alone) for statement in statements)
        return play

    return register
