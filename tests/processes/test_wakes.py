"""The row decides, not the message: whatever is sent, and however often, one segment executes and nothing breaks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from agentrun import Client, Settings, Status
from agentrun.broker import make_app
from agentrun.broker.app import WAKE
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look

pytestmark = pytest.mark.processes

PROMPTLY = 1.0
"""Seconds; the sweep comes once a second, but nobody sends it here."""

EVERYTHING = """
SELECT md5(string_agg(r::text, '|' ORDER BY r.id)) FROM agentrun.runs r
UNION ALL SELECT md5(string_agg(m::text, '|' ORDER BY m.run_id, m.seq)) FROM agentrun.moves m
UNION ALL SELECT md5(string_agg(s::text, '|' ORDER BY s.run_id, s.key)) FROM agentrun.steps s
"""


@pytest.fixture
def app(settings: Settings) -> Iterator[Celery]:
    """A sender of messages that agentrun would not send."""
    app = make_app(settings, name="sender")
    yield app
    app.pool.force_close_all()
    app.close()


@pytest.fixture
def send(app: Celery, settings: Settings) -> Callable[..., Any]:
    def sent(*args: Any, **kwargs: Any) -> Any:
        with app.connection_for_write() as connection:
            return app.send_task(WAKE, args=args, kwargs=kwargs, queue=settings.queue, connection=connection)

    return sent


def test_one_uuid_published_20_times_to_4_slots_gives_one_segment(
    client: Client, start: Callable[..., Node], look: Look, send: Callable[..., Any], tmp_path: Path, sound: Any
) -> None:
    node = start(concurrency=4)
    run_id = client.enqueue("gated", str(tmp_path / "gate"), delay=3600)
    look("UPDATE agentrun.runs SET due_at = now() WHERE id = %s", (run_id,))
    with ThreadPoolExecutor(4) as senders:
        sent = list(senders.map(lambda _: send(str(run_id)), range(20)))
    until(lambda: node.logs().count("outcome=busy ") == 19, 15)
    (tmp_path / "gate").touch()
    assert client.wait(run_id, timeout=60).result == "after"
    until(lambda: all(f"Task {WAKE}[{message.id}] succeeded" in node.logs() for message in sent))
    assert look.effects(run_id) == ["before", "after"]
    assert [event.type for event in client.events(run_id)].count("claimed") == 1
    assert client.status(run_id).epoch == 1
    sound()


def test_no_wake_is_trapped_behind_a_long_segment(
    client: Client, start: Callable[..., Node], look: Look, tmp_path: Path
) -> None:
    busy, free = start(concurrency=1, wait=False), start(concurrency=1, wait=False)
    for node in (busy, free):
        node.container.wait_ready()
    long = client.enqueue("gated", str(tmp_path / "gate"))
    until(lambda: look.effects(long) == ["before"], 10)
    for run_id in client.enqueue_many("noted", [str(number) for number in range(6)]):
        assert client.wait(run_id, timeout=60).status is Status.COMPLETED
    assert client.status(long).status is Status.RUNNING
    (tmp_path / "gate").touch()
    assert client.wait(long, timeout=60).result == "after"


def test_a_garbage_wake_is_one_log_line_and_nothing_else(
    client: Client, start: Callable[..., Node], look: Look, send: Callable[..., Any]
) -> None:
    node = start(concurrency=4)
    final, unknown = client.enqueue("noted", "once"), uuid.uuid4()
    client.wait(final, timeout=60)
    until(lambda: f"run {final}: completed" in node.logs())
    waiting = str(client.enqueue("noted", "never", delay=3600))
    before, said = look(EVERYTHING), len(node.logs().splitlines())

    garbage = {
        "nothing": send(),
        "no uuid": send("not-a-uuid"),
        "a number": send(42),
        "null": send(None),
        "a list": send([waiting]),
        "extra arguments": send(waiting, "and more"),
        "keywords": send(waiting, run="x"),
        "only keywords": send(run_id=waiting),
        "unknown": send(str(unknown)),
        "final": send(str(final)),
    }
    until(lambda: all(f"[{message.id}] succeeded" in node.logs() for message in garbage.values()), 15)

    ours = [line for line in node.logs().splitlines()[said:] if "Task agentrun." not in line]
    dropped = [line for line in ours if "a wake that names no run was dropped" in line]
    assert len(dropped) == 8
    assert [line for line in ours if str(unknown) in line] != []
    assert len(ours) == len(garbage), "\n".join(ours)
    assert look(EVERYTHING) == before
    assert client.wait(client.enqueue("noted", "still here"), timeout=60).status is Status.COMPLETED
    assert node.logs().count("Traceback") == 0


def test_a_delayed_run_starts_when_it_is_due_and_no_early_wake_jumps_it(
    client: Client, start: Callable[..., Node], look: Look, send: Callable[..., Any], redis: Redis
) -> None:
    """And of what waits, the most urgent goes first."""
    urgency = {client.enqueue("noted", str(priority), priority=priority): priority for priority in (9, 6, 3, 0)}
    node = start(concurrency=1)
    delayed = client.enqueue("noted", "due", delay=3)
    until(lambda: redis.hlen("unacked") == 1, 10)
    for _ in range(3):
        send(str(delayed))
    until(lambda: node.logs().count(f"a wake for run {delayed} changed nothing: it is early") == 3)
    assert client.wait(delayed, timeout=60).result == "due"
    waited = "SELECT extract(epoch FROM started_at - created_at)::float FROM agentrun.runs WHERE id = %s"
    assert 3 <= look.one(waited, (delayed,)) < 3 + PROMPTLY
    assert client.status(delayed).epoch == 1
    assert look.effects(delayed) == ["due"]
    by_start = look("SELECT id FROM agentrun.runs WHERE id = ANY(%s) ORDER BY started_at", (list(urgency),))
    assert [urgency[run_id] for (run_id,) in by_start] == [0, 3, 6, 9]
