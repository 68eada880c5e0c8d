"""The sweep's questions cost the same whatever lies in the tables: index scans only, a few pages each.

100,000 queued runs and a million finished ones, in both kinds of plan: PostgreSQL makes plans for the parameters at
hand, and after five executions of a prepared statement possibly one for all.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from agentrun.core.alarms import Occasion
from agentrun.runtime.upkeep import LONGEST_COUNTED, Sweep
from agentrun.settings import Settings
from agentrun.store import (
    asked,
    claims,
    diagnosis,
    episodes,
    gauges,
    needs,
    notices,
    offers,
    orphans,
    purge,
    reads,
    roster,
    sweeping,
    waits,
)
from agentrun.store.database import Database
from agentrun.store.sql import Statement
from agentrun.testing import RecordingPublisher
from agentrun.testing.servers import Servers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FINISHED, QUEUED, RUNNING, QUEUE = 300_000, 100_000, 1_000, "agentrun"
HISTORY = {
    "namespace": "default", "older_than": 0.0, "statuses": ["completed", "failed"], "kind": None, "dead": False,
    "limit": 100, "after_at": None, "after_id": None,
}  # fmt: skip

# Indexes are built several times faster than they are filled row by row.
FILL = """
SET maintenance_work_mem = '256MB';
BEGIN;
TRUNCATE agentrun.runs CASCADE;
ALTER TABLE agentrun.runs DROP CONSTRAINT runs_pkey CASCADE;
DROP INDEX agentrun.runs_created, agentrun.runs_of_kind;
INSERT INTO agentrun.runs
       (id, namespace, kind, status, reason, request, result, queue, epoch, created_at, finished_at, owner, parent_id,
        tags, attributes)
SELECT ('0' || lpad(to_hex(n), 31, '0'))::uuid, 'default',
       CASE WHEN n % 100000 = 5 THEN 'rare' WHEN n % 2 = 1 THEN 'another' ELSE 'k' END,
       CASE WHEN n % 1000 = 1 THEN 'failed' ELSE 'completed' END,
       CASE WHEN n % 1000 = 1 THEN 'not_retryable' ELSE 'completed' END, '1', '1', 'agentrun', 1,
       now() - n * interval '1 s', now() - n * interval '1 s', CASE WHEN n % 1000 = 2 THEN 'ann' END,
       CASE WHEN n % 1000 = 3 THEN '{parent}'::uuid END,
       CASE WHEN n % 1000 = 4 THEN ARRAY['rare'] ELSE ARRAY[]::text[] END,
       CASE WHEN n % 10 = 6 THEN jsonb_build_object('shop', n / 100, 'plan', 'gold') ELSE '{{}}' END
FROM generate_series(1, {finished}) AS n;
INSERT INTO agentrun.runs (id, namespace, kind, status, request, queue, due_at)
SELECT ('1' || lpad(to_hex(n), 31, '0'))::uuid, 'default', 'k', 'queued', '1',
       CASE WHEN n % 50 = 0 THEN 'other' ELSE 'agentrun' END, now() - ({queued} - n) * interval '10 ms'
FROM generate_series(1, {queued}) AS n;
INSERT INTO agentrun.runs
       (id, namespace, kind, status, request, queue, epoch, claimed_by, lease_expires_at, deadline_at)
SELECT ('2' || lpad(to_hex(n), 31, '0'))::uuid, 'default', 'k', 'running', '1', 'agentrun', 1, 'worker:test:1',
       now() + interval '1 hour', now() + interval '1 day'
FROM generate_series(1, {running}) AS n;
INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, started_seq)
SELECT id, '#1', 'write', 'pay', 'non_idempotent_write', 'started', 1, 1 FROM agentrun.runs WHERE status = 'running';
INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, seq, finished_at)
SELECT id, '#1', CASE WHEN random() < 0.1 THEN 'external' ELSE 'step' END, 's', 'read_only', 'completed', 1, 1, now()
FROM agentrun.runs WHERE status = 'completed' LIMIT {queued};
INSERT INTO agentrun.waits (id, run_id, step_key, namespace, kind, name, status, asks, resolved_at)
SELECT gen_random_uuid(), run_id, '#2', 'default', 'signal', 'go', CASE WHEN n > 100 THEN 'resolved' ELSE 'open' END,
       '{{}}', CASE WHEN n > 100 THEN now() END
FROM (SELECT run_id, row_number() OVER () AS n FROM agentrun.steps WHERE status = 'completed') AS numbered;
INSERT INTO agentrun.spend (namespace, owner, day, run_id, tokens, cost)
SELECT 'default', 'owner ' || (n % 7), date_trunc('day', timezone('UTC', now())) - (n / 50) * interval '1 day',
       ('0' || lpad(to_hex(n), 31, '0'))::uuid, 1, 1
FROM generate_series(1, {queued}) AS n;
INSERT INTO agentrun.notices (namespace, run_id, occasion, subject, hook, due_at, ended_at, ending)
SELECT 'default', id, 'dead', id::text, 'hook', now(), CASE WHEN status = 'completed' THEN now() END,
       CASE WHEN status = 'completed' THEN 'delivered' END
FROM agentrun.runs WHERE status IN ('completed', 'running') ORDER BY agentrun.runs.id DESC LIMIT {queued};
INSERT INTO agentrun.moves (run_id, type, epoch) SELECT id, 'claimed', 1 FROM agentrun.runs WHERE status = 'running';
ALTER TABLE agentrun.runs ADD CONSTRAINT runs_pkey PRIMARY KEY (id);
CREATE INDEX runs_created ON agentrun.runs (namespace, created_at, id);
CREATE INDEX runs_of_kind ON agentrun.runs (namespace, kind, created_at, id);
COMMIT;
ANALYZE agentrun.runs, agentrun.steps, agentrun.moves, agentrun.waits, agentrun.spend, agentrun.notices;
"""

SMALL = ("processes", "sweeps")
"""Tables with a row per process or namespace."""

PARENT = "00000000-0000-0000-0000-00000000ffff"


def listed(index: str, pages: int = 200, **filters: Any) -> tuple[Statement, dict[str, Any], set[str], int]:
    """What `list` asks: the newest of a million."""
    return reads.listing(filters), {"namespace": "default", "limit": 50} | filters, {index}, pages


def whole(
    statement: Statement, index: str, pages: int = 600, **given: Any
) -> tuple[Any, dict[str, Any], set[str], int]:
    """What people ask of everything that waits, is due, or has failed."""
    return statement, dict.fromkeys(statement.names) | {"namespace": "default", "limit": 50} | given, {index}, pages


QUESTIONS: list[tuple[Statement, dict[str, Any], set[str], int]] = [
    (sweeping.EXPIRED, {"namespace": "default", "limit": 100}, {"runs_running"}, 200),
    (needs.NEEDS, {"namespace": "default"}, {"runs_running", "runs_due", "waits_due", "steps_offered"}, 300),
    (sweeping.QUEUES, {"namespace": "default"}, {"runs_due"}, 200),
    (sweeping.DUE_COUNT, {"namespace": "default", "queue": QUEUE, "limit": 1100}, {"runs_due"}, 1500),
    (sweeping.DUE, {"namespace": "default", "queue": QUEUE, "limit": 100, "grace": 1.0}, {"runs_due"}, 400),
    whole(sweeping.DUE_AND_KNOWN, "runs_due", 4_000, queue=QUEUE, limit=100, grace=1.0),
    (sweeping.DEADLINES, {"namespace": "default", "limit": 100}, {"runs_deadline"}, 100),
    (sweeping.IN_FLIGHT, {}, {"steps_in_flight"}, 20),
    (reads.FACTS, {"epoch": 1}, {"runs_pkey", "steps_in_flight"}, 20),
    (claims.CLAIM_RUN, {"namespace": "default", "kinds": ["k"], "data": "{}"}, {"runs_pkey"}, 100),
    (claims.RENEW_ALL, {"epochs": [1]}, {"runs_pkey"}, 100),
    listed("runs_created"),
    listed("runs_created", before=PARENT),
    listed("runs_of_kind", kind="rare"),
    listed("runs_of_kind", kind="rare", status=["completed"]),
    listed("runs_of_kind", kind="rare", before=PARENT),
    listed("runs_running", status=["running"]),
    listed("runs_unsuccessful", status=["failed"]),
    listed("runs_unsuccessful", FINISHED // 500, status=["cancelled"]),
    listed("runs_unsuccessful", FINISHED // 500, reason="deadline_exceeded"),
    listed("runs_of_owner", owner="ann"),
    listed("runs_of_owner", owner="ann", status=["completed"], kind="k"),
    listed("runs_of_parent", parent_id=PARENT),
    listed("runs_tags", tag="unheard of"),
    whole(reads.RUNS_FAILED, "runs_failed"),
    whole(asked.INBOX, "waits_open"),
    whole(asked.LONGEST_WAITS, "waits_open"),
    whole(offers.EXTERNAL[False], "steps_offered"),
    whole(offers.EXTERNAL[True], "runs_pkey"),
    whole(roster.HOLDINGS, "runs_running"),
    whole(diagnosis.OFFERED_BY_QUEUE, "steps_offered"),
    whole(diagnosis.LAST_SWEEP, "runs_running"),
    whole(diagnosis.EXPIRED_LEASES, "runs_running"),
    whole(diagnosis.LONG_WAITS, "waits_open"),
    whole(diagnosis.DEAD_LETTERS, "runs_failed", 5_000),
    whole(diagnosis.DUE_BY_KIND, "runs_due", 3_000),
    whole(roster.NAMESPACES, "runs_created"),
    whole(episodes.STRANDED, "runs_due", 30_000, after=900.0),
    whole(notices.ANNOUNCE[Occasion.DEAD][0], "runs_failed", hooks=["a", "b"]),
    whole(notices.ANNOUNCE[Occasion.WAITING][0], "waits_open", 2_000, hooks=["a", "b"]),
    whole(gauges.QUEUED, "runs_due", 3_000, most=1_000),
    whole(gauges.RUNNING, "runs_running", most=1_000),
    whole(gauges.WAITING, "runs_waiting", most=1_000),
    whole(gauges.FAILED, "runs_failed", 5_000, most=1_000),
    whole(gauges.UNTOLD, "notices_due", 2_000, most=1_000),
    whole(gauges.SPENT, "spend_pkey"),
    whole(waits.DUE, "waits_due"),
    whole(waits.LOST_CHILDREN, "waits_child"),
    whole(orphans.OPEN_CHILDREN, "runs_children"),
    (purge.PURGEABLE, HISTORY, {"runs_created", "runs_pkey"}, 1_000),
    (purge.PURGE, HISTORY, {"runs_created", "runs_pkey", "steps_pkey", "moves_pkey", "spend_of_run"}, 2_000),
]
"""Statement, parameters, the indexes that it must use, and how many pages it may touch."""


@pytest.fixture(scope="module")
def full(shared_servers: Servers) -> Iterator[Database]:
    url = shared_servers.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FILL.format(finished=FINISHED, queued=QUEUED, running=RUNNING, parent=PARENT))  # type: ignore[arg-type]
    with contextlib.closing(Database(url, name="agentrun test")) as database:
        yield database
    shared_servers.drop_database(url)


def explained(database: Database, statement: Statement, params: dict[str, Any], *, generic: bool) -> dict[str, Any]:
    """The plan as a worker's prepared statement gets it, executed once."""
    order: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", numbered, statement.sql).replace("%%", "%")
    with database.transaction() as connection:
        connection.execute(
            sql.SQL("SET LOCAL plan_cache_mode = {}").format(f"force_{'generic' if generic else 'custom'}_plan")
        )
        connection.execute(sql.SQL("PREPARE asked AS {}").format(sql.SQL(text)))
        values = sql.SQL(", ").join(sql.Literal(params[name]) for name in order)
        given = sql.SQL("({})").format(values) if order else sql.SQL("")
        answer = connection.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked") + given).fetchone()
        connection.execute("DEALLOCATE asked")
        raise psycopg.Rollback
    assert answer is not None
    plan = answer["QUERY PLAN"]
    return (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def one_run(database: Database, status: str) -> dict[str, Any]:
    with database.connection() as connection:
        row = connection.execute("SELECT id FROM agentrun.runs WHERE status = %s LIMIT 1", [status]).fetchone()
    assert row is not None
    return {"run_id": row["id"], "run_ids": [row["id"]], "by": "worker:test:1", "lease": 30.0, "options": None}


BY_ATTRIBUTE = [
    # With up to 512 pages of what came last, which PostgreSQL sorts in when it vacuums.
    ('{"shop": 77}', "runs_attributes", 800),
    # Past 100,000 queued ones, which have none.
    ('{"plan": "gold"}', "runs_created", 5_000),
]


@pytest.mark.parametrize(("attributes", "index", "pages"), BY_ATTRIBUTE, ids=["rare", "frequent"])
def test_runs_with_an_attribute_are_found_by_whichever_index_is_sooner_there(
    full: Database, attributes: str, index: str, pages: int
) -> None:
    given = {"attributes": attributes}
    statement = reads.listing(given)
    plan = explained(full, statement, {"namespace": "default", "limit": 50} | given, generic=False)
    assert index in {node.get("Index Name") for node in nodes(plan)}, plan
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= pages, plan
    assert statement.by_values


def test_what_is_planned_for_its_values_is_planned_each_time(full: Database) -> None:
    statement, params = reads.listing({"tag": "rare"}), {"namespace": "default", "limit": 1, "tag": "rare"}
    with contextlib.closing(Database(full.url, name="agentrun once", max_connections=1)) as database:
        for _ in range(8):
            assert len(database.rows(statement, params)) == 1
            database.rows(reads.FACTS, {"run_id": PARENT, "epoch": 1})
        with database.connection() as connection:
            prepared = connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    assert len(prepared) == 1, "the other one was prepared"
    assert "array_append" not in prepared[0]["statement"]


@pytest.mark.parametrize("generic", [False, True], ids=["custom plan", "generic plan"])
@pytest.mark.parametrize(
    ("statement", "params", "indexes", "pages"), QUESTIONS, ids=[question[0].name for question in QUESTIONS]
)
def test_the_sweeps_questions_use_their_indexes(
    full: Database, statement: Statement, params: dict[str, Any], indexes: set[str], pages: int, generic: bool
) -> None:
    run = one_run(full, "queued" if statement is claims.CLAIM_RUN else "running")
    plan = explained(full, statement, params | run, generic=generic)
    found = list(nodes(plan))
    assert not [node for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] not in SMALL], plan
    assert indexes <= {node["Index Name"] for node in found if "Index Name" in node}, plan
    touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert touched <= pages, plan


@pytest.fixture
def unknown(full: Database) -> Iterator[Database]:
    """As many steps on offer as runs are queued, of a name that nobody knows."""
    with full.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, queue, offered_at, due_at)"
            " SELECT id, '#1', 'remote', 'withdrawn', 'read_only', 'offered', 1, 'gpu', now(), due_at"
            " FROM agentrun.runs WHERE status = 'queued'"
        )
        connection.execute("ANALYZE agentrun.steps")
        yield full
        connection.execute("DELETE FROM agentrun.steps WHERE status = 'offered'")
        connection.execute("VACUUM ANALYZE agentrun.steps")


@pytest.mark.parametrize("generic", [False, True], ids=["custom plan", "generic plan"])
@pytest.mark.parametrize("statement", [offers.OFFERED_DUE, offers.OFFERED_DUE_AND_KNOWN], ids=["all", "known"])
def test_steps_on_offer_are_found_by_their_index_whoever_knows_them(
    unknown: Database, statement: Statement, generic: bool
) -> None:
    params = {"namespace": "default", "queue": "gpu", "limit": 1000, "grace": 1.0}
    plan = explained(unknown, statement, params, generic=generic)
    found = list(nodes(plan))
    assert not [node for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] not in SMALL], plan
    assert "steps_offered" in {node.get("Index Name") for node in found}, plan
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 8_000, plan


def test_every_question_of_the_sweep_is_asked_here() -> None:
    """But for the ones on tables with a row per namespace or process."""
    small = {"swept", "process_seen", "process_gone"}
    asked = {statement.name for statement, *_ in QUESTIONS}
    there = {each.name for each in vars(sweeping).values() if isinstance(each, Statement)}
    assert there <= asked | small


def test_a_backlog_whose_messages_are_in_the_broker_makes_no_sweep_send_anything(full: Database) -> None:
    """Ten sweeps over 100,000 queued runs with their messages in the broker, beside a million finished ones."""
    publisher = RecordingPublisher()
    publisher.depths = {QUEUE: QUEUED, "other": QUEUED}
    settings = Settings(database_url=full.url, broker_url="redis://localhost")
    for _ in range(10):
        assert Sweep(settings, full, publisher, by="sweep:test").run().woken == 0
    assert publisher.wakes == []


def test_a_sweep_sends_as_many_wakes_as_messages_are_missing(full: Database) -> None:
    publisher = RecordingPublisher()
    publisher.depths = {QUEUE: QUEUED, "other": QUEUED // 50 - 7}
    settings = Settings(database_url=full.url, broker_url="redis://localhost", sweep_batch=100)
    assert Sweep(settings, full, publisher, by="sweep:test").run().woken == 7
    assert {wake.queue for wake in publisher.wakes} == {"other"}


def test_a_long_queue_is_not_compared_with_what_is_due(full: Database) -> None:
    """What is missing in it would stand behind the others, and counting would cost more with every run."""
    publisher = RecordingPublisher()
    publisher.depths = {QUEUE: LONGEST_COUNTED + 1, "other": QUEUED}
    settings = Settings(database_url=full.url, broker_url="redis://localhost", sweep_batch=100)
    assert Sweep(settings, full, publisher, by="sweep:test").run().woken == 0
    publisher.depths[QUEUE] = LONGEST_COUNTED
    assert Sweep(settings, full, publisher, by="sweep:test").run().woken == 100
