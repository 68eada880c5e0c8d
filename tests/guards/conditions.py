"""Every condition in the SQL of the store, by its place in the text, and the same statement without it.

The text is SQLAlchemy's, hence regular: keywords in capitals, no comments, quotes only around words.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentrun.store.sql import Statement

MODULES = (
    "claims", "transitions", "steering", "journal", "births", "sweeping", "waits", "signals", "starting", "offering",
    "taking", "ending", "episodes", "notices", "heirs", "purge",
)  # fmt: skip
READS = ("waits", "signals", "starting", "episodes")
"""Modules whose reads are left out: they only choose candidates."""
COUNTS = ("purgeable",)
"""Reads with the very conditions of a statement that writes."""
LOCKS = ("lock_run",)
"""They guard nothing: see tests/races."""
_STARTS = re.compile(r"\b(?:WHERE|ON(?! CONFLICT))\s+")
_ENDS = re.compile(
    r"\s+(?:RETURNING|ORDER BY|LIMIT|FOR NO KEY UPDATE|FOR UPDATE|ON CONFLICT|DO UPDATE|DO NOTHING|UNION|WHERE"
    r"|LEFT OUTER JOIN|JOIN)\b"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of one statement: `number` tells equal ones apart."""

    statement: str
    text: str
    number: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.statement}: {self.text}" + (f" ({self.number})" if self.number > 1 else "")


@functools.cache
def statements() -> dict[str, Statement]:
    """All statements of the modules, by name; of those on waits and signals, what writes."""
    found: dict[str, Statement] = {}
    for module in MODULES:
        for value in vars(importlib.import_module(f"agentrun.store.{module}")).values():
            each: list[Any] = list(value.values()) if isinstance(value, dict) else [value]
            here = [one for some in each for one in (some if isinstance(some, tuple) else (some,))]
            here = [one for one in here if isinstance(one, Statement)]
            here += [one.many for one in here if one.many is not None]
            found |= {
                one.name: one
                for one in here
                if module not in READS or not (one.listing or one.sql.startswith("SELECT"))
            }
    return {name: one for name, one in found.items() if name not in (*COUNTS, *LOCKS)}


def conditions(statement: Statement) -> list[Condition]:
    """The statement's conditions, the inner ones of EXISTS and OR included, in the order of the text."""
    counts: dict[str, int] = {}
    found: list[Condition] = []
    for start, end in sorted(set(_in_clauses(statement.sql)), key=lambda span: (span[0], -span[1])):
        text = short(statement.sql[start:end])
        counts[text] = counts.get(text, 0) + 1
        found.append(Condition(statement.name, text, counts[text], start, end))
    return found


def short(text: str) -> str:
    """As people read it: without casts, schema and line breaks."""
    text = re.sub(r"%\((\w+)\)s(::[A-Z\[\]]+( WITH TIME ZONE)?)?", r":\1", " ".join(text.split())).replace(
        "agentrun.", ""
    )
    text = re.sub(r"CAST\((:\w+) AS [A-Z ]+\)", r"\1", text)
    return re.sub(r"\((\w+\.\w+) \|\| ''\)", r"\1", text)  # a column beside a key: see `beside_key`


@contextmanager
def without(condition: Condition) -> Iterator[None]:
    """The statement with `true` in place of the condition, for everybody who holds it."""
    statement = statements()[condition.statement]
    whole = statement.sql
    object.__setattr__(statement, "sql", f"{whole[: condition.start]}true{whole[condition.end :]}")
    try:
        yield
    finally:
        object.__setattr__(statement, "sql", whole)


def _in_clauses(sql: str) -> Iterator[tuple[int, int]]:
    for clause in _STARTS.finditer(sql):
        start = clause.end()
        yield from _conjuncts(sql, start, _end_of(sql, start))


def _end_of(sql: str, start: int) -> int:
    depth = 0
    for at in range(start, len(sql)):
        if sql[at] == "(":
            depth += 1
        elif sql[at] == ")":
            depth -= 1
            if depth < 0:
                return at
        elif depth == 0 and _ENDS.match(sql, at):
            return at
    return len(sql)


def _conjuncts(sql: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The conditions joined by AND; an OR is one condition, and within each of its sides every one of several."""
    sides = list(_split(sql, start, end, " OR "))
    if len(sides) > 1:
        yield start, end
    for side in sides:
        parts = list(_split(sql, *side, " AND "))
        for part in parts if len(parts) > 1 or len(sides) == 1 else ():
            yield from _within(sql, *part)


def _within(sql: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    if sql[start] == "(" and _closing(sql, start) == end - 1:
        yield from _conjuncts(sql, start + 1, end - 1)
    else:
        yield start, end


def _closing(sql: str, start: int) -> int:
    """Where the parenthesis ends that begins there."""
    depth = 0
    for at in range(start, len(sql)):
        depth += (sql[at] == "(") - (sql[at] == ")")
        if depth == 0:
            return at
    return len(sql)


def _split(sql: str, start: int, end: int, word: str) -> Iterator[tuple[int, int]]:
    depth, since = 0, start
    for at in range(start, end):
        depth += (sql[at] == "(") - (sql[at] == ")")
        if depth == 0 and sql.startswith(word, at):
            yield since, at
            since = at + len(word)
    yield since, end
