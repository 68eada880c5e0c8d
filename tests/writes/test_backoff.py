"""When the next attempt comes: from the row's own count, as a provider asked, by a countdown of at most a minute."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from redis import Redis

from agentrun import Client, Context, Reason, Retryable, Settings, Status, durable
from agentrun.broker import CeleryPublisher
from agentrun.runtime.engine import Engine
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.rows import Rows
from tests.writes.conftest import Look


@pytest.fixture
def fails(kinds: Any) -> Callable[[Exception], None]:
    """The kind `fails` raises what the test says."""
    errors: list[Exception] = []

    @durable("fails")
    async def body(ctx: Context) -> None:
        raise errors[0]

    def with_error(error: Exception) -> None:
        errors[:] = [error]

    with_error(ConnectionError("not now"))
    return with_error


def due_in(look: Look, run_id: UUID) -> float:
    """Seconds from the last attempt's end until the row is due, by the database's clock."""
    rows = look(
        "SELECT extract(epoch FROM r.due_at - m.at) AS due_in FROM agentrun.runs r JOIN agentrun.moves m"
        " ON m.run_id = r.id AND m.type = 'requeued' WHERE r.id = %s ORDER BY m.seq DESC LIMIT 1",
        [run_id],
    )
    return float(rows[0]["due_in"])


@pytest.mark.settings(backoff_base_seconds=30, backoff_max_seconds=100, max_requeues=4)
@pytest.mark.usefixtures("fails")
def test_delays_grow_with_the_rows_count_whoever_executes_and_end_in_a_dead_letter(
    client: Client, make_engine: Callable[..., Engine], rows: Rows, look: Look
) -> None:
    """A worker that was restarted does not begin anew."""
    run_id = client.enqueue("fails")
    delays: list[float] = []
    for _ in range(4):
        assert make_engine().run(run_id).outcome == "requeued"
        delays.append(due_in(look, run_id))
        rows.make_due(run_id)
    for delay, plain in zip(delays, [30, 60, 100, 100], strict=True):
        assert plain <= delay <= plain * 1.1
    assert make_engine().run(run_id).outcome == "failed"
    run = client.status(run_id)
    assert (run.reason, run.requeue_count, run.error_count) == (Reason.RETRIES_EXHAUSTED, 4, 4)


@pytest.mark.settings(backoff_base_seconds=30)
@pytest.mark.parametrize("asked", [2.0, 500.0])
def test_a_delay_that_was_asked_for_is_honoured_shorter_or_longer(
    client: Client, engine: Engine, look: Look, fails: Callable[[Exception], None], asked: float
) -> None:
    fails(Retryable("slow down", after=timedelta(seconds=asked)))
    run_id = client.enqueue("fails")
    assert engine.run(run_id).outcome == "requeued"
    assert asked <= due_in(look, run_id) <= asked * 1.1


@pytest.fixture
def on_the_wire(settings: Settings, make_engine: Callable[..., Engine]) -> Iterator[Engine]:
    """An engine whose wakes go to the real broker, where nobody takes them."""
    publisher = CeleryPublisher(settings)
    yield make_engine(publisher=publisher)
    publisher.close()


@pytest.mark.settings(backoff_base_seconds=300, backoff_max_seconds=600)
@pytest.mark.usefixtures("fails")
def test_the_countdown_on_the_wire_is_at_most_a_minute(
    client: Client, on_the_wire: Engine, look: Look, redis: Redis
) -> None:
    """The row says 300 seconds; the message only promises to look again within 60."""
    run_id = client.enqueue("fails")
    redis.flushdb()
    assert on_the_wire.run(run_id).outcome == "requeued"
    assert due_in(look, run_id) >= 300
    message = json.loads(until(lambda: redis.lrange("agentrun", 0, -1), 5)[0])
    eta = datetime.fromisoformat(message["headers"]["eta"])
    assert timedelta(seconds=30) < eta - datetime.now(UTC) <= timedelta(seconds=60)


@pytest.mark.settings(max_requeues=3)
@pytest.mark.usefixtures("fails")
def test_retries_and_reaps_share_one_budget(client: Client, engine: Engine, rows: Rows, sweep: Any) -> None:
    from agentrun.store.claims import CLAIM_RUN

    run_id = client.enqueue("fails")

    def crash() -> None:
        rows.make_due(run_id)
        assert rows.do(CLAIM_RUN, run_id, kinds=["fails"])
        rows.expire_lease(run_id)
        sweep()

    crash()
    engine.run(run_id)
    crash()
    run = client.status(run_id)
    assert (run.status, run.requeue_count, run.crash_count, run.error_count) == (Status.QUEUED, 3, 2, 1)
    crash()
    run = client.status(run_id)
    assert (run.status, run.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert (run.requeue_count, run.crash_count, run.error_count) == (3, 3, 1)


@pytest.mark.usefixtures("fails")
def test_a_redrive_starts_the_budget_afresh_and_keeps_what_was_counted(
    client: Client, engine: Engine, rows: Rows, publisher: RecordingPublisher
) -> None:
    run_id = client.enqueue("fails")
    until(lambda: rows.make_due(run_id) or engine.run(run_id).outcome == "failed")
    run = client.redrive(run_id)
    assert (run.status, run.requeue_count, run.error_count) == (Status.QUEUED, 0, 3)
    assert engine.run(run_id).outcome == "requeued"
