"""The house rules that no off-the-shelf linter knows, over Python's own syntax tree. Each finds its violations."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

Finder = Callable[[PurePosixPath, ast.Module], Iterator[int]]

MAY_UPDATE_STATUS = {"agentrun/store/mover.py"}
MAY_GIVE_BIRTH = {"agentrun/store/births.py", "agentrun/store/transitions.py", "agentrun/testing/rows.py"}
MAY_CATCH_EVERYTHING = {
    "agentrun/runtime/body.py",
    "agentrun/runtime/threads.py",  # hands it on to whoever waits for the call
    "agentrun/broker/serving.py",
    "agentrun/embedded/server.py",  # puts a half-started server away, and raises again
}
SQL_HOMES = (
    "agentrun/store/",
    "agentrun/testing/",
    "migrations/",
    "agentrun/embedded/postgres.py",
    "agentrun/runtime/engine.py",  # names of types and errors only
    "agentrun/runtime/lease.py",
)
SQL = {"alembic", "psycopg", "psycopg_pool", "sqlalchemy"}
SENDS = {"wake", "soon", "settled", "publish", "send_task", "apply_async"}


@dataclass(frozen=True)
class Rule:
    """What must hold, why, how to find where it does not, and a sample of each."""

    name: str
    why: str
    find: Finder
    good: str
    bad: str
    where: str = "agentrun/runtime/sample.py"


def _status_updates(path: PurePosixPath, tree: ast.Module) -> Iterator[int]:
    if str(path) in MAY_UPDATE_STATUS:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_values_of(node, "update") and "status" in _columns(node):
            yield node.lineno
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _RAW_UPDATE.search(node.value):
            yield node.lineno


def _births(path: PurePosixPath, tree: ast.Module) -> Iterator[int]:
    if str(path) in MAY_GIVE_BIRTH:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "insert" and _first_argument(node) == "runs":
            yield node.lineno
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _RAW_INSERT.search(node.value):
            yield node.lineno


def _catches_everything(path: PurePosixPath, tree: ast.Module) -> Iterator[int]:
    if str(path) in MAY_CATCH_EVERYTHING:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and "BaseException" in _names(node.type):
            yield node.lineno


def _sql_imports(path: PurePosixPath, tree: ast.Module) -> Iterator[int]:
    if str(path).startswith(SQL_HOMES):
        return
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module]
        if any(module.split(".")[0] in SQL for module in modules):
            yield node.lineno


def _sends_in_transactions(path: PurePosixPath, tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.With | ast.AsyncWith) or not any(_opens_transaction(item) for item in node.items):
            continue
        for inner in (each for statement in node.body for each in ast.walk(statement)):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in SENDS:
                yield inner.lineno


def _is_values_of(call: ast.Call, verb: str) -> bool:
    """`….values(…)` somewhere after `update(runs)`."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "values"):
        return False
    return any(
        isinstance(node, ast.Call) and _called(node) == verb and _first_argument(node) == "runs"
        for node in ast.walk(call.func.value)
    )


def _columns(call: ast.Call) -> set[str]:
    keywords = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    literals = {node.value for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Constant)}
    return keywords | {value for value in literals if isinstance(value, str)}


def _opens_transaction(item: ast.withitem) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("transaction", "begin")
        for node in ast.walk(item.context_expr)
    )


def _called(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _first_argument(call: ast.Call) -> str | None:
    if not call.args:
        return None
    first = call.args[0]
    return first.id if isinstance(first, ast.Name) else first.attr if isinstance(first, ast.Attribute) else None


def _names(node: ast.expr | None) -> set[str]:
    """The exceptions of a handler; a bare `except:` catches everything."""
    if node is None:
        return {"BaseException"}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


_RAW_UPDATE = re.compile(r"\bupdate\s+(agentrun\.)?runs\b.*\bset\b[^;]*\bstatus\s*=", re.IGNORECASE | re.DOTALL)
_RAW_INSERT = re.compile(r"\binsert\s+into\s+(agentrun\.)?runs\b", re.IGNORECASE)

RULES = [
    Rule(
        "a run's status is updated by the mover alone",
        "a guard that stands in two places is forgotten in one",
        _status_updates,
        good="update(runs).where(runs.c.id == run_id).values(lease_expires_at=now())",
        bad="update(runs).where(runs.c.id == run_id).values({'status': 'failed'}).returning(runs.c.id)",
    ),
    Rule(
        "a run's status is updated by the mover alone (in plain SQL)",
        "a guard that stands in two places is forgotten in one",
        _status_updates,
        good="connection.execute('SELECT status FROM agentrun.runs')",
        bad='connection.execute("""UPDATE agentrun.runs\\n SET due_at = now(), status = \'queued\'""")',
    ),
    Rule(
        "runs are born where births are written",
        "a birth is legal or refused; rows that appear elsewhere were never checked",
        _births,
        good="insert(steps).values(run_id=run_id)",
        bad="insert(runs).values(id=run_id, status='queued')",
    ),
    Rule(
        "BaseException is caught in the segment and where a worker dies, nowhere else",
        "the signals that end a segment derive from it: who swallows one lets a body run on without its lease",
        _catches_everything,
        good="try:\n    call()\nexcept Exception:\n    raise",
        bad="try:\n    call()\nexcept (ValueError, BaseException):\n    pass",
    ),
    Rule(
        "no bare except",
        "it catches BaseException without saying so",
        _catches_everything,
        good="try:\n    call()\nexcept ValueError:\n    pass",
        bad="try:\n    call()\nexcept:\n    pass",
    ),
    Rule(
        "SQL has one home",
        "statements that are written elsewhere escape the matrix of moves and the fencing tests",
        _sql_imports,
        good="from agentrun.store.database import Database",
        bad="from sqlalchemy import text",
    ),
    Rule(
        "drivers stay in the store as well",
        "a connection outside the store is a write outside its guards",
        _sql_imports,
        good="import psutil",
        bad="import psycopg.errors",
        where="agentrun/web/sample.py",
    ),
    Rule(
        "nothing is sent inside a transaction",
        "what is sent before its commit may arrive before it, or for a row that never was",
        _sends_in_transactions,
        good="with database.transaction() as tx:\n    row = tx.execute(sql)\npublisher.wake(Wake.of(row))",
        bad="with database.transaction() as tx:\n    row = tx.execute(sql)\n    publisher.wake(Wake.of(row))",
    ),
]
