"""Every operation sends the statements that the table in `costs.py` names, and no other: a further one fails here.

They are counted in the server's own log.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Settings
from agentrun.runtime.engine import Engine
from agentrun.runtime.lease import Lease
from agentrun.runtime.remotesteps import remote_steps
from agentrun.runtime.segment import run_segment
from agentrun.runtime.upkeep import Sweep
from agentrun.store.database import Database
from agentrun.telemetry.metrics import in_namespace
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers
from bench.statements import counting
from tests.statements.costs import COSTS, MOST_PER_STEP, SIDE_BY_SIDE, counted, told
from tests.statements.stage import Stage, bodies


@pytest.fixture(scope="module")
def whole_stage(embedded_servers: Servers) -> Iterator[Stage]:
    """Connections are open and the first heartbeat is over: what is counted from now on is the operations' own."""
    assert embedded_servers.embedded is not None
    settings = Settings(
        database_url=embedded_servers.create_database(),
        broker_url=embedded_servers.broker_url,
        # No heartbeat but the first, and those that a test asks for.
        lease_seconds=3600.0,
        heartbeat_seconds=600.0,
        backoff_base_seconds=0.001,
        backoff_max_seconds=0.001,
    )
    before, publisher, kinds = remote_steps.snapshot(), RecordingPublisher(), bodies()
    with contextlib.ExitStack() as undo:
        undo.callback(embedded_servers.drop_database, settings.require_database())
        undo.callback(remote_steps.restore, before)
        client = undo.enter_context(Client(settings=settings, kinds=kinds))
        database = Database(settings.require_database(), name="agentrun engine")
        undo.callback(database.close)
        engine = Engine(settings, database, publisher, kinds=kinds)
        undo.callback(engine.close)
        sent = undo.enter_context(counting(embedded_servers.embedded))
        stage = Stage(settings, client, engine, publisher, database, sent)
        stage.run(stage.queued("nothing"))
        until(lambda: ("agentrun heartbeat", "process_seen") in sent())
        yield stage


@pytest.fixture
def stage(whole_stage: Stage) -> Stage:
    """The same, without the runs of other tests."""
    with whole_stage.database.connection() as connection:
        connection.execute("DELETE FROM agentrun.waits; DELETE FROM agentrun.steps; DELETE FROM agentrun.runs")
    whole_stage.publisher.wakes.clear()
    return whole_stage


Operation = Callable[[Stage], Callable[[], object]]
"""Prepares, and returns what is counted."""


def on(kind: str, *, request: Any = None, outcome: str = "completed") -> Operation:
    """The first segment of a run."""

    def prepare(stage: Stage) -> Callable[[], object]:
        run_id = stage.queued(kind, request)
        return lambda: stage.run(run_id, outcome)

    return prepare


def after(kind: str, answer: Callable[[Stage, UUID], object]) -> Operation:
    """The segment that follows an answer."""

    def prepare(stage: Stage) -> Callable[[], object]:
        run_id = stage.waiting(kind)
        answer(stage, run_id)
        return lambda: stage.run(run_id)

    return prepare


def to(kind: str, answer: Callable[[Stage, UUID], object]) -> Operation:
    """The answer to a run that waits."""

    def prepare(stage: Stage) -> Callable[[], object]:
        run_id = stage.waiting(kind)
        return lambda: answer(stage, run_id)

    return prepare


def asked(question: Callable[[Client, UUID], object]) -> Operation:
    """A question about a run that has ended."""

    def prepare(stage: Stage) -> Callable[[], object]:
        run_id = stage.queued("steps", 3)
        stage.run(run_id)
        return lambda: question(stage.client, run_id)

    return prepare


def same_key(stage: Stage) -> Callable[[], object]:
    stage.client.enqueue("nothing", idempotency_key="k")
    return lambda: stage.client.enqueue("nothing", idempotency_key="k")


def replayed(stage: Stage) -> Callable[[], object]:
    run_id = stage.queued("again", 1000)
    stage.run(run_id, "requeued")
    Rows(stage.database).make_due(run_id)
    return lambda: stage.run(run_id)


def ended(stage: Stage) -> Callable[[], object]:
    run_id = stage.queued("nothing")
    stage.run(run_id)
    return lambda: stage.run(run_id, "completed")


def timer_is_due(stage: Stage, run_id: UUID) -> None:
    with stage.database.connection() as connection:
        for table in ("waits SET due_at = now() WHERE run_id", "runs SET due_at = now() WHERE id"):
            connection.execute(f"UPDATE agentrun.{table} = %s", [run_id])


def timer_ends(stage: Stage) -> Callable[[], object]:
    run_id = stage.waiting("timer")
    timer_is_due(stage, run_id)
    return lambda: stage.run(run_id, "due")


def timer_has_ended(stage: Stage, run_id: UUID) -> None:
    timer_is_due(stage, run_id)
    stage.run(run_id, "due")


def heartbeat(leases: int) -> Operation:
    def prepare(stage: Stage) -> Callable[[], object]:
        rows = Rows(stage.database)
        held = [Lease(rows.running(), 1, "worker:test:1", 3600.0, asked_at=float("inf")) for _ in range(leases)]
        for lease in held:
            stage.engine.heartbeat.hold(lease)

        def beat() -> None:
            stage.engine.heartbeat.beat()
            for lease in held:
                stage.engine.heartbeat.drop(lease)

        return beat

    return prepare


def sweep(stage: Stage) -> Callable[[], object]:
    return Sweep(stage.settings, stage.database, stage.publisher, by="sweep:test").run


def signalled(stage: Stage) -> Callable[[], object]:
    runs = [stage.waiting("signal") for _ in range(40)]
    return lambda: stage.client.signal_many(runs, "go")


def cancelled(stage: Stage) -> Callable[[], object]:
    run_id = stage.queued("nothing")
    return lambda: stage.client.cancel(run_id)


OPERATIONS: Mapping[str, Operation] = {
    "enqueue": lambda stage: lambda: stage.client.enqueue("nothing"),
    "enqueue with an idempotency key": lambda stage: lambda: stage.client.enqueue("nothing", idempotency_key="k"),
    "enqueue again with the same key": same_key,
    "enqueue_many of 100": lambda stage: lambda: stage.client.enqueue_many("nothing", [None] * 100),
    "a run without steps": on("nothing"),
    "a run of 10 steps, alone": on("steps", request=10),
    "a run of one fenced write": on("write"),
    "a run that goes on after 1,000 steps": replayed,
    "a wake for a run that has ended": ended,
    "a run up to its wait for a signal": on("signal", outcome="waiting"),
    "a signal to it": to("signal", lambda stage, run_id: stage.client.signal(run_id, "go")),
    "signal_many to 40 such runs": signalled,
    "the run after the signal": after("signal", lambda stage, run_id: stage.client.signal(run_id, "go")),
    "a run up to its approval": on("approval", outcome="waiting"),
    "approve": to("approval", lambda stage, run_id: stage.client.approve(run_id, by="ann")),
    "the run after the approval": after("approval", lambda stage, run_id: stage.client.approve(run_id, by="ann")),
    "a run up to its child": on("parent", outcome="waiting"),
    "its child": to("parent", lambda stage, run_id: stage.run(stage.child_of(run_id))),
    "the run after its child": after("parent", lambda stage, run_id: stage.run(stage.child_of(run_id))),
    "a run up to its timer": on("timer", outcome="waiting"),
    "the timer": timer_ends,
    "the run after its timer": after("timer", timer_has_ended),
    "a run up to its remote step": on("elsewhere", outcome="waiting"),
    "the remote step": to("elsewhere", Stage.step),
    "the run after its remote step": after("elsewhere", Stage.step),
    "a sweep that finds nothing": sweep,
    "a heartbeat, nothing held": heartbeat(0),
    "a heartbeat over 100 leases": heartbeat(100),
    "status": asked(lambda client, run_id: client.status(run_id)),
    "steps": asked(lambda client, run_id: client.steps(run_id)),
    "events": asked(lambda client, run_id: client.events(run_id)),
    "list": asked(lambda client, run_id: client.list()),
    "inbox": asked(lambda client, run_id: client.inbox()),
    "cancel": cancelled,
    "a scrape of the metrics": lambda stage: lambda: list(in_namespace(stage.database, stage.settings)),
}


def sent(stage: Stage, operation: Callable[[], object]) -> Counter[str]:
    stage.sent()
    operation()
    found: Counter[str] = Counter()
    for (_, name), number in stage.sent().items():
        found[name] += number
    return found


@pytest.mark.parametrize("operation", COSTS)
def test_an_operation_sends_the_statements_of_the_table_and_no_other(stage: Stage, operation: str) -> None:
    found = sent(stage, OPERATIONS[operation](stage))
    assert found == counted(COSTS[operation]), f"`{operation}` sends {found.total()} statements: {told(found)}"


def test_runs_side_by_side_share_their_statements(stage: Stage) -> None:
    runs = stage.client.enqueue_many("steps", [10] * SIDE_BY_SIDE)

    def all_of_them() -> None:
        reports = [stage.engine.submit(run_segment(stage.engine, run_id)) for run_id in runs]
        assert {report.result(10).outcome for report in reports} == {"completed"}

    found = sent(stage, all_of_them)
    per_step = found.total() / (10 * SIDE_BY_SIDE)
    assert per_step <= MOST_PER_STEP, f"{per_step:.3f} statements for each step: {told(found)}"


def test_every_operation_of_the_table_is_tried() -> None:
    assert list(OPERATIONS) == list(COSTS)
