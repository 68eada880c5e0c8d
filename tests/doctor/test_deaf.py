"""A worker that lives and takes nothing is found, with what heals it; one that has a reason to take nothing is not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.worker.state import reserved_requests

from agentrun import Settings
from agentrun.broker import hearing
from agentrun.broker.hearing import Hearing, RoomOfChild, RoomOfPool
from agentrun.broker.names import STEP, SWEEP, WAKE
from agentrun.runtime.deaf import deaf_workers, long_enough
from agentrun.runtime.doctor import Broker, Facts, Finding, Severity, examined
from agentrun.runtime.engine import Engine
from agentrun.testing.rows import Rows
from tests.cli.conftest import Cli
from tests.doctor.conftest import Doctor, Worker

Q = "agentrun"
LONG = 300.0
SETTINGS = Settings()


def process(
    *, name: str = "worker:here:7", took: float = LONG, free: float | None = LONG, about: Any = None, **row: Any
) -> dict[str, Any]:
    """A process that hears nothing, unless something else is said."""
    told = {"node": "w1@here", "pid": 7, "app": "shop", "worker": "one", "free": free, "took": {Q: took}}
    return {
        "id": name, "name": name, "kinds": ["greets"], "queues": [Q, "agentrun.system"], "alive": True,
        "draining": False, "silent": 2.0, "holds": 0, "seen_at": 0, "about": told | (about or {}),
    } | row  # fmt: skip


def facts(*processes: Any, depth: int | None = 3, **other: Any) -> Facts:
    """Three runs that have been due for long."""
    none: Any = ()
    said = {
        "due": [{"queue": Q, "kind": "greets", "count": 3, "oldest": LONG}],
        "offered": [],
        "sweep": {"age": 1.0},
        "broker": Broker(depths=None if depth is None else {Q: depth}),
    } | other
    rest = dict.fromkeys(("expired", "waiting", "dead", "stranded", "episodes", "given_up"), none)
    return Facts(settings=SETTINGS, namespace="default", processes=processes, **said, **rest)


def found(*processes: Any, **other: Any) -> list[Finding]:
    return examined(facts(*processes, **other), [deaf_workers])


def test_a_worker_with_room_that_takes_nothing_is_named_with_its_queue_since_when_and_what_heals_it() -> None:
    (finding,) = found(process())
    assert (finding.check, finding.severity) == ("deaf_worker", Severity.ERROR)
    assert finding.symptom.startswith("3 runs are due on queue `agentrun`, the oldest for 5 min")
    assert "`w1@here` takes nothing" in finding.cause
    assert "`worker:here:7`" in finding.evidence
    assert "nothing from the queue for 5 min" in finding.evidence
    assert "3 messages in the queue" in finding.evidence
    assert finding.heal == "kill -TERM 7"
    assert (finding.needs or "").startswith("a shell on here")


def test_a_cancelled_consumer_is_told_by_the_worker_itself_and_given_back_its_queue() -> None:
    """Busy or not, and whatever lies in the queue."""
    (finding,) = found(process(free=None, took=1.0, about={"cancelled": [Q]}), depth=0)
    assert "cancelled" in finding.cause
    assert finding.heal == "celery -A shop control -d w1@here add_consumer agentrun"
    assert found(process(free=None, took=1.0, about={"cancelled": ["agentrun.system"]})) == []


@pytest.mark.parametrize(
    "innocent",
    [
        process(free=None),
        process(free=5.0),
        process(took=5.0),
        process(draining=True),
        process(silent=50.0),
        process(alive=False),
        process(kinds=["another"]),
        process(queues=["gpu"]),
        process(about={"took": {}}),
        process(about={"took": {}, "free": None}),
    ],
    ids=[
        "busy",
        "busy just now",
        "took one",
        "drains",
        "late",
        "gone",
        "unknown kind",
        "elsewhere",
        "new queue",
        "old",
    ],
)
def test_a_worker_with_a_reason_to_take_nothing_is_not_deaf(innocent: Any) -> None:
    assert found(innocent) == []


@pytest.mark.parametrize(
    "other",
    [
        {"due": [{"queue": Q, "kind": "greets", "count": 3, "oldest": long_enough(SETTINGS) - 1}]},
        {"due": []},
        {"depth": 0},
        {"broker": Broker(problem="away")},
        {"broker": None, "sweep": {"age": None}},
        {"broker": Broker(), "sweep": {"age": 900.0}},
    ],
    ids=["due just now", "nothing due", "lost wakes", "broker away", "never swept", "not swept"],
)
def test_what_is_somebody_elses_business_is_no_deafness(other: Any) -> None:
    assert found(process(), **other) == []


def test_where_the_broker_does_not_tell_its_depths_a_sweep_has_sent_what_was_lost() -> None:
    assert len(found(process(), depth=None)) == 1
    assert len(found(process(), broker=None)) == 1


def test_children_of_a_pool_are_one_worker_which_hears_if_one_of_them_does() -> None:
    deaf = [process(name=f"worker:here:{number}") for number in (8, 9)]
    (finding,) = found(*deaf)
    assert finding.heal == "kill -TERM 7"
    assert found(*deaf, process(name="worker:here:10", took=3.0, free=None)) == []
    assert found(*(process(name=f"worker:here:{number}", free=None) for number in (8, 9))) == []
    assert len(found(deaf[0], process(name="worker:here:9", free=None))) == 1, "one is busy, and the other has room"


def test_a_worker_that_works_through_another_of_its_queues_hears() -> None:
    elsewhere = process(about={"took": {Q: LONG, "first": 2.0}}, queues=["first", Q])
    assert found(elsewhere, broker=Broker(depths={"first": 9, Q: 3})) == []
    assert len(found(elsewhere, broker=Broker(depths={"first": 0, Q: 3}))) == 1


def test_it_is_a_warning_where_another_worker_of_the_queue_hears() -> None:
    hears = process(name="worker:there:8", took=1.0, about={"worker": "two", "node": "w2@there"})
    (finding,) = found(process(), hears)
    assert (finding.severity, "w1@here" in finding.cause) == (Severity.WARNING, True)


def test_a_remote_step_that_stands_is_as_good_as_a_run() -> None:
    offered = [{"queue": Q, "name": "render", "count": 1, "oldest": LONG}]
    assert found(process(), due=[], offered=offered) == []
    (finding,) = found(process(about={"remote_steps": ["render"]}), due=[], offered=offered)
    assert finding.symptom.startswith("1 remote step is offered on queue `agentrun`")


# ---- what a process tells


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass for what a process hears."""
    now = [time.monotonic()]
    monkeypatch.setattr(hearing, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def ahead(seconds: float) -> None:
        now[0] += seconds

    return ahead


def test_a_process_tells_since_when_it_has_room_and_what_it_took(passes: Callable[[float], None]) -> None:
    ears = Hearing((Q, "gpu"), beat=7, room=lambda holds: holds < 2)
    for _ in range(3):
        passes(7)
        ears.told(0)
    ears.took("gpu")
    passes(7)
    assert ears.told(1) == {"free": 21.0, "took": {Q: 28.0, "gpu": 7.0}, "cancelled": None}
    passes(7)
    assert ears.told(2)["free"] is None
    passes(7)
    assert ears.told(1)["free"] == 0.0
    ears.took("a routing key of somebody's own")
    assert ears.told(1)["took"] == {Q: 0.0, "gpu": 0.0}


def test_a_task_of_another_application_shows_that_its_queue_is_heard(passes: Callable[[float], None]) -> None:
    ears = Hearing((Q, "celery"), beat=7, room=lambda holds: True)
    passes(7)
    ears.heard("theirs", {"routing_key": "celery"})
    ears.heard(SWEEP, {"routing_key": Q})
    assert ears.told(0)["took"] == {Q: 7.0, "celery": 0.0}


def test_a_process_that_was_frozen_has_had_room_only_since_it_goes_on(passes: Callable[[float], None]) -> None:
    ears = Hearing((Q,), beat=7, room=lambda holds: True)
    ears.told(0)
    passes(600)
    assert ears.told(0)["free"] == 0.0


def test_a_process_that_does_not_know_its_room_tells_nothing() -> None:
    assert Hearing((Q,), beat=7, room=None).told(0) == {}


class Request(SimpleNamespace):
    __hash__ = object.__hash__


def _nothing() -> None: ...


@pytest.fixture
def app() -> Celery:
    app = Celery("ours", set_as_current=False)
    for name in (WAKE, STEP):
        app.task(name=name)(_nothing)
    app.finalize()
    return app


def test_other_applications_tasks_take_room_and_messages_of_ours_only_by_their_leases(app: Celery) -> None:
    room = RoomOfPool(SimpleNamespace(app=app, controller=None, pool=SimpleNamespace(num_processes=2)))
    theirs, ours = Request(name="theirs"), Request(name=WAKE)
    try:
        reserved_requests.update([theirs, ours])
        assert (room(0), room(1)) == (True, False)
    finally:
        reserved_requests.clear()
    assert (room(1), room(2)) == (True, False)


def test_a_worker_whose_messages_are_rate_limited_claims_no_room(app: Celery) -> None:
    room = RoomOfPool(SimpleNamespace(app=app, controller=None, pool=SimpleNamespace(num_processes=2)))
    app.tasks[WAKE].rate_limit = "1/h"
    assert not room(0)
    app.tasks[WAKE].rate_limit = "0"
    assert room(0)


def test_a_child_has_room_while_it_executes_nothing_of_anybody(app: Celery) -> None:
    heard: list[Any] = []
    room = RoomOfChild(app, lambda *said: heard.append(said))
    try:
        assert (room(0), room(1)) == (True, False)
        signals.task_prerun.send(sender=None, task=app.tasks[STEP])
        assert not room(0)
        assert heard == [(STEP, None)]
        signals.task_postrun.send(sender=None)
        assert room(0)
    finally:
        signals.task_prerun.disconnect(room.begins)
        signals.task_postrun.disconnect(room.has_ended)


# ---- the commands


@pytest.fixture
def deafened(seen_worker: Worker, sweep: Callable[[], Any]) -> Engine:
    """A worker that beats, has room, and takes nothing."""
    about = {"node": "w1@here", "pid": 7, "app": "shop"}
    engine = seen_worker(about=about, hearing=lambda holds: {"free": LONG, "took": {Q: LONG}})
    sweep()
    return engine


def test_doctor_and_show_name_it_where_a_message_lies_in_the_queue(
    deafened: Engine, doctor: Doctor, cli: Cli, rows: Rows, redis: Any
) -> None:
    run_id = rows.queued(due_at=datetime.now(UTC) - timedelta(minutes=5))
    assert doctor() == {"exit": 0}
    assert cli("show", str(run_id), "--json").json["heal"] is None
    redis.lpush(f"{Q}\x06\x163", "{}")
    said = doctor()
    assert (said["deaf_worker"]["heal"], said["exit"]) == ("kill -TERM 7", 2)
    shown = cli("show", str(run_id), "--json").json
    assert re.match(r"it has been due for 5 min( \d+ s)?, and `w1@here` takes nothing", shown["why"])
    assert shown["heal"] == "kill -TERM 7"
