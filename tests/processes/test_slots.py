"""Tasks that only wait take a slot and no thread: in the consumer's own thread, each in two halves."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.exceptions import WorkerTerminate

from agentrun import Client
from agentrun.broker.app import WAKE
from agentrun.broker.slots import Slots
from agentrun.core.words import Status
from agentrun.testing import until
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look

LIMIT = 2


class Hub:
    """A hub whose passes are the test's, and which forgets what it was asked when a connection breaks."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], Any]] = []

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        self.soon.append(lambda: call(*args))

    def passes(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


class Turns:
    """A pool with slots, the tasks that were given to it, and what each of them waits for."""

    def __init__(self) -> None:
        self.hub, self.pool = Hub(), TaskPool(limit=LIMIT)
        self.slots = Slots.of(self.pool, self.hub, ["waits"])
        self.said: list[str] = []
        self.ends: dict[str, Future[str]] = {}

    def give(self, name: str, *, task: str = "waits", then: Callable[[], object] = int, **options: Any) -> None:
        self.ends[name] = Future()

        def target(_task: str) -> str:
            self.said.append(f"{name} begins")
            end = self.slots.end_of(self.ends[name])
            then()
            return end

        options = {"accept_callback": lambda *_: self.said.append(f"{name} accepted")} | options
        self.pool.apply_async(target, (task,), {}, callback=self.said.append, **options)

    def end(self, *names: str) -> None:
        """From another thread, as the engine's loop does."""
        loop = threading.Thread(target=lambda: [self.ends[name].set_result(f"{name} ends") for name in names])
        loop.start()
        loop.join()


@pytest.fixture
def turns() -> Iterator[Turns]:
    turns = Turns()
    yield turns
    for end in turns.ends.values():
        if not end.done():
            end.set_result("at last")
    turns.pool.stop()


def test_a_task_lets_go_of_the_thread_until_its_segment_has_ended(turns: Turns) -> None:
    turns.give("a")
    turns.give("b")
    assert turns.said == ["a accepted", "a begins", "b accepted", "b begins"]
    assert turns.slots.taken == 2
    turns.end("b", "a")
    assert len(turns.said) == 4, "what Celery does is done in its own thread"
    turns.hub.passes()
    assert turns.said[4:] == ["b ends", "a ends"]
    assert turns.slots.taken == 0
    assert not turns.pool.executor._threads, "no thread was needed"


def test_no_more_begin_than_there_are_slots(turns: Turns) -> None:
    for name in "abc":
        turns.give(name)
    assert "c accepted" not in turns.said
    turns.end("a")
    turns.hub.passes()
    assert turns.said[-3:] == ["a ends", "c accepted", "c begins"]


def test_other_tasks_have_threads(turns: Turns) -> None:
    turns.give("other", task="computes")
    until(lambda: "other begins" in turns.said, 5)
    assert turns.slots.taken == 0
    turns.end("other")
    until(lambda: turns.said[-1] == "other ends", 5)


def test_one_whose_segment_had_ended_at_once_goes_on_as_well(turns: Turns) -> None:
    ended: Future[str] = Future()
    ended.set_result("at once")
    turns.pool.apply_async(lambda _: turns.slots.end_of(ended), ("waits",), {}, callback=turns.said.append)
    turns.hub.passes()
    assert turns.said == ["at once"]


def test_what_the_hub_forgot_over_a_broken_connection_goes_on_after_the_next(turns: Turns) -> None:
    turns.give("a")
    turns.end("a")
    turns.hub.soon.clear()
    turns.pool.register_with_event_loop(turns.hub)
    turns.hub.passes()
    assert turns.said[-1] == "a ends"


def test_a_shutdown_waits_for_all_of_them(turns: Turns) -> None:
    for name in "abc":
        turns.give(name)
    turns.give("other", task="computes")
    ends = threading.Timer(0, lambda: [end.set_result(f"{name} ends") for name, end in turns.ends.items()])
    ends.start()
    turns.pool.stop()
    assert {"a ends", "b ends", "c ends", "other ends"} <= set(turns.said)


def test_a_shutdown_within_a_signals_handler_leaves_the_task_that_it_interrupted_alone(turns: Turns) -> None:
    """Handlers execute in whatever the thread is doing: here, on top of a task."""

    def handler() -> None:
        turns.end("b")
        turns.slots.stop()
        turns.said.append("handled")

    turns.give("a", then=handler)
    turns.give("b")
    turns.end("a")
    turns.hub.passes()
    assert turns.said[4:] == ["b ends", "handled", "a ends"]
    assert turns.slots.taken == 0


@pytest.mark.parametrize("colder", ["stop", "go_on"])
def test_a_colder_shutdown_in_the_middle_of_a_warm_one_ends_both(turns: Turns, colder: str) -> None:
    """SIGTERM, and SIGQUIT while that waits: the handler finishes what the other one waits for."""
    main = threading.get_ident()

    def handler(*_: Any) -> None:
        turns.end("a", "b")
        getattr(turns.slots, colder)()

    def when_it_waits() -> None:
        until(lambda: sys._current_frames()[main].f_code is Slots.stop.__code__, 10)
        os.kill(os.getpid(), signal.SIGUSR1)

    turns.give("a")
    turns.give("b")
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Thread(target=when_it_waits).start()
        turns.pool.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert turns.said[4:] == ["a ends", "b ends"]


@pytest.mark.parametrize("moment", ["accept_callback", "callback"])
def test_an_error_of_celerys_own_is_logged_and_ends_nothing(
    turns: Turns, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("broker")

    turns.give("a", **({moment: fails} if moment == "accept_callback" else {"accept_callback": None}))
    if moment == "callback":
        turns.pool.apply_async(lambda _: "at once", ("waits",), {}, callback=fails)
    turns.give("b")
    turns.end("b")
    turns.hub.passes()
    assert turns.said[-1] == "b ends"
    assert "Celery could not execute a task" in caplog.text


def test_what_ends_the_worker_is_let_through(turns: Turns) -> None:
    def terminated() -> None:
        raise WorkerTerminate(1)

    turns.give("a", then=terminated)
    turns.end("a")
    with pytest.raises(WorkerTerminate):
        turns.hub.passes()


# ---- in a worker


@pytest.mark.processes
def test_celery_sees_a_run_as_it_sees_any_task(
    client: Client, start: Callable[..., Node], look: Look, settings: Any, tmp_path: Any
) -> None:
    """Active while it is, for as long as it was; to end its message ends nothing."""
    gate = tmp_path / "gate"
    node = start("-E", concurrency=1)
    app = Celery(broker=settings.broker_url, set_as_current=False)
    told: list[dict[str, Any]] = []
    run_id, later = client.enqueue_many("gated", [str(gate), str(gate)])
    there = [node.hostname()]
    inspect = app.control.inspect(there, timeout=5)
    until(lambda: any((inspect.active() or {}).values()), 15)
    (active,) = next(iter((inspect.active() or {}).values()))
    assert active["args"] == [str(run_id)]
    (answer,) = app.control.terminate(active["id"], destination=there, reply=True, timeout=5, limit=1) or [{}]
    assert "agentrun cancel" in str(answer)
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"task-succeeded": told.append})
        consumer = receiver.itercapture(limit=None, timeout=20, wakeup=False)
        assert client.status(run_id).status is Status.RUNNING
        assert client.status(later).status is Status.QUEUED, "one slot, one run"
        until(lambda: look.one("SELECT clock_timestamp() - max(claimed_at) > '0.5 s' FROM agentrun.runs"), 5)
        gate.touch()
        while not told:
            next(consumer, None)
    assert told[0]["runtime"] >= 0.5
    assert "outcome=completed" in told[0]["result"]
    client.wait(later, timeout=20)
    assert node.terminate() == 0
    app.close()


@pytest.mark.processes
def test_a_message_that_was_not_terminated_is_heard_when_it_is_delivered_again(
    client: Client, start: Callable[..., Node], settings: Any, tmp_path: Any
) -> None:
    """Celery notes the ids that it is told to terminate, and drops what comes under them later."""
    node = start(concurrency=2)
    app = Celery(broker=settings.broker_url, set_as_current=False)
    there = [node.hostname()]
    inspect = app.control.inspect(there, timeout=5)
    run_id, elsewhere = client.enqueue("gated", str(tmp_path / "gate")), client.enqueue("noted", "a", queue="elsewhere")
    until(lambda: any((inspect.active() or {}).values()), 15)
    (active,) = next(iter((inspect.active() or {}).values()))
    app.control.revoke("somebody else's", destination=there, reply=True, timeout=5, limit=1)
    for _ in range(2):
        (answer,) = app.control.terminate(active["id"], destination=there, reply=True, timeout=5, limit=1) or [{}]
        assert "agentrun cancel" in str(answer)
    assert inspect.revoked() == {there[0]: ["somebody else's"]}
    app.send_task(WAKE, args=(str(elsewhere),), task_id=active["id"], queue=settings.queue)
    assert client.wait(elsewhere, timeout=20).result == "a"
    (tmp_path / "gate").touch()
    assert client.wait(run_id, timeout=20).result == "after"
    app.close()
