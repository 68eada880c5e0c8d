"""What is looked for by its key is found by its key, whatever the statistics say.

After a minute without ANALYZE, and for good beside a long history, PostgreSQL believes that next to nothing is running,
waiting or open. It would then read the whole partial index of such rows for each one that is looked for by its id.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

import agentrun.store
from agentrun.store.connect import adapt
from agentrun.store.sql import Statement
from agentrun.store.tables import metadata
from agentrun.testing.servers import Servers

KEYS = {"id", "run_id", "child_id", "parent_id", "token_digest", "wait_id", "subject"}
"""First columns of indexes that lead to a few rows at once."""

LISTINGS = {"external_steps", "signals_kept", "open_children", "runs_listed", "purge", "purgeable"}
"""They may name a run, and are not about one."""

FILL = """
INSERT INTO agentrun.runs (id, namespace, kind, status, reason, request, queue, epoch, finished_at)
SELECT gen_random_uuid(), 'default', 'k', 'completed', 'completed', '1', 'agentrun', 1, now()
FROM generate_series(1, 5000);
INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, seq, finished_at)
SELECT id, '#1', 'step', 's', 'read_only', 'completed', 1, 1, now() FROM agentrun.runs;
INSERT INTO agentrun.moves (run_id, type, epoch) SELECT id, 'claimed', 1 FROM agentrun.runs;
INSERT INTO agentrun.signals (run_id, name, taken_by_step) SELECT id, 'go', '#2' FROM agentrun.runs;
INSERT INTO agentrun.waits (id, run_id, step_key, namespace, kind, name, status, asks, resolved_at)
SELECT gen_random_uuid(), id, '#2', 'default', 'signal', 'go', 'resolved', '{}', now() FROM agentrun.runs;
ANALYZE;
INSERT INTO agentrun.runs (id, namespace, kind, status, request, queue, due_at)
SELECT gen_random_uuid(), 'default', 'k', 'queued', '1', 'agentrun', now() FROM generate_series(1, 2000);
INSERT INTO agentrun.runs
       (id, namespace, kind, status, request, queue, epoch, claimed_by, lease_expires_at, deadline_at)
SELECT gen_random_uuid(), 'default', 'k', 'running', '1', 'agentrun', 1, 'worker:test:1', now(), now()
FROM generate_series(1, 2000);
INSERT INTO agentrun.runs (id, namespace, kind, status, request, queue, epoch, waiting_on)
SELECT gen_random_uuid(), 'default', 'k', 'waiting', '1', 'agentrun', 1, 'signal:go' FROM generate_series(1, 2000);
INSERT INTO agentrun.waits (id, run_id, step_key, namespace, kind, name, status, asks)
SELECT gen_random_uuid(), id, '#2', 'default', 'signal', 'go', 'open', '{}' FROM agentrun.runs
WHERE status = 'waiting';
INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, queue, offered_at, due_at)
SELECT id, '#3', 'remote', 's', 'read_only', 'offered', 1, 'q', now(), now() FROM agentrun.runs
WHERE status = 'waiting';
INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, started_seq)
SELECT id, '#1', 'write', 'pay', 'non_idempotent_write', 'started', 1, 1 FROM agentrun.runs WHERE status = 'running';
"""


def statements() -> dict[str, Statement]:
    """Every statement of the store that is about a run or a wait, or about several that are named."""
    found: dict[str, Statement] = {}
    for module in pkgutil.iter_modules(agentrun.store.__path__, "agentrun.store."):
        for value in vars(importlib.import_module(module.name)).values():
            each: list[Any] = list(value.values()) if isinstance(value, dict) else [value]
            here = [one for some in each for one in (some if isinstance(some, tuple) else (some,))]
            found |= {one.name: one for one in here if isinstance(one, Statement)}
    found |= {one.many.name: one.many for one in list(found.values()) if one.many is not None}
    keyed = {"run_id", "run_ids", "rows", "wait_id"}
    return {name: one for name, one in found.items() if keyed & one.names and name not in LISTINGS}


@pytest.fixture(scope="module")
def crowded(shared_servers: Servers) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """2,000 runs in each status, of which the statistics know nothing; and plans that are made for all parameters."""
    url = shared_servers.create_database()
    with psycopg.Connection[dict[str, Any]].connect(url, autocommit=True, row_factory=dict_row) as connection:
        adapt(connection)
        for table in metadata.sorted_tables:
            unanalyzed = sql.SQL("ALTER TABLE agentrun.{} SET (autovacuum_enabled = off)")
            connection.execute(unanalyzed.format(sql.Identifier(table.name)))
        connection.execute(FILL)  # type: ignore[arg-type]
        connection.execute("SET plan_cache_mode = force_generic_plan")
        yield connection
    shared_servers.drop_database(url)


def plan_of(connection: psycopg.Connection[dict[str, Any]], statement: Statement) -> dict[str, Any]:
    order = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.sql)))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${order.index(found[1]) + 1}", statement.sql).replace("%%", "%")
    connection.execute(sql.SQL("PREPARE asked AS {}").format(sql.SQL(text)))
    try:
        values = sql.SQL(", ").join([sql.NULL] * len(order))
        (answer,) = connection.execute(sql.SQL("EXPLAIN (FORMAT JSON) EXECUTE asked({})").format(values)).fetchall()
    finally:
        connection.execute("DEALLOCATE asked")
    return json.loads(answer["QUERY PLAN"])[0]["Plan"]


def scans(plan: dict[str, Any]) -> Iterator[str]:
    """What the plan reads, but for a few rows by a key."""
    by_key = {index.name for table in metadata.sorted_tables for index in table.indexes if first(index) in KEYS}
    index = plan.get("Index Name")
    if index is not None and index not in by_key and not index.endswith(("_pkey", "_key")):
        yield index
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] in ("runs", "steps", "waits", "moves", "signals"):
        yield f"all of {plan['Relation Name']}"
    for part in plan.get("Plans", ()):
        yield from scans(part)


def first(index: Any) -> str:
    return next(iter(index.columns)).name


@pytest.mark.parametrize("statement", statements().values(), ids=list(statements()))
def test_a_statement_about_one_run_reads_no_others(
    crowded: psycopg.Connection[dict[str, Any]], statement: Statement
) -> None:
    assert list(scans(plan_of(crowded, statement))) == []


def test_the_plans_can_be_worse(crowded: psycopg.Connection[dict[str, Any]]) -> None:
    """The control: the same question without `beside_key` reads whatever is running."""
    plain = Statement("plain", statements()["held"].element)
    object.__setattr__(plain, "sql", statements()["held"].sql.replace(" || ''", ""))
    assert list(scans(plan_of(crowded, plain))) == ["runs_running"]
