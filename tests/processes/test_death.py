"""SIGKILL between any two commits of a run: it completes, no recorded step runs again, and it is taken over in time."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from itertools import product

import psycopg
import pytest

from agentrun import Client, Settings, Status
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.processes import holding
from tests.processes.conftest import Look, consume

pytestmark = pytest.mark.processes

COMMITS = 11
"""Of the kind `story`: its claim, four steps, two writes of two each, a transaction, its end."""

MOMENTS = ("before", "after")
TOLD = ["first", "idempotent", "left", "right", "charged", "within", "last"]
SLACK = 1.0
"""Seconds that a busy machine may add to lease and sweep."""

AGAIN = "SELECT run_id, key, what FROM effects WHERE (run_id, key) = ANY(%s::record[]) AND pid <> %s"


def test_a_worker_killed_between_any_two_commits_is_taken_over_and_no_recorded_step_runs_again(
    client: Client,
    start: Callable[..., Node],
    beat: Callable[..., Node],
    look: Look,
    settings: Settings,
    sound: Callable[[], None],
    database_url: str,
    record_property: Callable[[str, object], None],
) -> None:
    look(holding.TABLES)

    def enqueue_held(kind: str, at: int, moment: str) -> uuid.UUID:
        with psycopg.connect(database_url) as connection:
            run_id = client.enqueue(kind, connection=connection)
            connection.execute("INSERT INTO hold VALUES (%s, %s, %s)", (run_id, at, moment))
        return run_id

    points = list(product(range(1, COMMITS + 1), MOMENTS))
    victim = start(concurrency=40, imports=["tests.processes.holding"], wait=False)
    healthy = start(concurrency=40, queues="later", wait=False)
    beat(wait=False)
    for node in (victim, healthy):
        node.container.wait_ready()
    stories = [enqueue_held("story", *point) for point in points]
    beyond = enqueue_held("story", COMMITS + 1, "before")
    blind = {point: enqueue_held("blind", *point) for point in product((3, 4), MOMENTS)}
    until(
        lambda: look.one("SELECT count(*) FROM held") == len(stories) + len(blind),
        20,
        tell=lambda: look("SELECT at, moment FROM hold h WHERE NOT EXISTS (SELECT FROM held WHERE run_id = h.run_id)"),
    )
    client.wait(beyond, timeout=60)  # the proof that no commit of the story was left out

    journal = look("SELECT run_id, key FROM agentrun.steps WHERE status = 'completed'")
    killed_at = look.one("SELECT clock_timestamp()")
    victim.kill()
    consume(healthy, settings.queue, settings.system_queue)
    until(lambda: all(run.status.final for run in client.list()), 20, tell=client.list)

    assert all(client.status(run_id).result == TOLD for run_id in stories)
    effects = look("SELECT run_id, key, pid FROM effects")
    assert [effect for effect in effects if effect[:2] in journal and effect[2] != victim.pid] == []
    for run_id in stories:
        _each_write_landed_once(look, run_id)
    _blind_writes_stopped(client, look, blind)
    sound()
    took = _seconds_to_next_claim(look, killed_at)
    record_property("take_over_seconds", took)
    assert took[-1] < settings.lease_seconds + settings.sweep_seconds + SLACK


def _each_write_landed_once(look: Look, run_id: uuid.UUID) -> None:
    keys = "SELECT count(DISTINCT idempotency_key) FROM effects WHERE run_id = %s AND what = 'idempotent'"
    done = Counter(look.effects(run_id))
    assert set(done) == set(TOLD)
    assert (done["charged"], done["within"], look.one(keys, (run_id,))) == (1, 1, 1)


def _blind_writes_stopped(client: Client, look: Look, blind: dict[tuple[int, str], uuid.UUID]) -> None:
    """Killed before the fence it starts over; between fence and record, whether it happened or not, it stops."""
    ends = {at: (client.status(run_id).status, look.effects(run_id).count("charged")) for at, run_id in blind.items()}
    assert ends == {
        (3, "before"): (Status.COMPLETED, 1),
        (3, "after"): (Status.FAILED, 0),
        (4, "before"): (Status.FAILED, 1),
        (4, "after"): (Status.COMPLETED, 1),
    }


def _seconds_to_next_claim(look: Look, killed_at: object) -> list[float]:
    claims = """SELECT extract(epoch FROM min(at) - %(killed)s)::float FROM agentrun.moves
        WHERE type = 'claimed' AND at > %(killed)s GROUP BY run_id ORDER BY 1"""
    return [seconds for (seconds,) in look(claims, {"killed": killed_at})]
