"""Runs here and now hold a lease like all others; when their process dies they go on elsewhere, or say they cannot."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from agentrun import (
    Client,
    Context,
    NotApplied,
    Reason,
    RunFailed,
    Settings,
    Status,
    WriteWithoutLease,
    durable,
    rehearse,
)
from agentrun.testing import environment, until
from agentrun.testing.guard import Guard, Started
from agentrun.testing.nodes import Node
from agentrun.testing.proxy import Proxy
from tests.writes.conftest import BODIES, Look

ROOT = Path(__file__).parents[2]
Producer = Callable[[str], Started]


@pytest.fixture
def producer(settings: Settings, look: Look, process_guard: Guard, tmp_path: Path) -> Iterator[Producer]:
    """Starts a producer of its own process."""
    started: list[Started] = []
    said = environment.variables(settings.model_copy(update={"imports": (BODIES,)}))

    def start(kind: str) -> Started:
        argv = [sys.executable, "-m", "tests.writes.producer", kind]
        env = {**os.environ, **said, "PYTHONPATH": str(ROOT)}
        started.append(process_guard.start(argv, cwd=ROOT, env=env, log=tmp_path / "producer.log"))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        process_guard.forget(process.pid)


def begun(client: Client, look: Look) -> UUID:
    """The producer's run, once its first write is recorded and it is inside the step after it."""
    until(lambda: client.list(tag="here"), 60)
    run_id = client.list(tag="here")[0].id
    until(lambda: [step.status for step in client.steps(run_id)] == ["completed"], 60)
    return run_id


@pytest.mark.processes
@pytest.mark.slow
def test_a_kind_whose_producer_was_killed_is_taken_over_from_its_journal(
    client: Client,
    look: Look,
    producer: Producer,
    start: Callable[..., Node],
    beat: Callable[..., Node],
) -> None:
    process = producer("pauses-between")
    run_id = begun(client, look)
    run = client.status(run_id)
    assert run.claimed_by == f"interactive:{_host()}:{process.pid}"
    look("UPDATE agentrun.runs SET request = '0.1' WHERE id = %s", [run_id])
    os.kill(process.pid, signal.SIGKILL)
    start()
    beat()
    run = client.wait(run_id, timeout=60)
    assert (run.status, run.epoch, run.crash_count) == (Status.COMPLETED, 2, 1)
    assert look.effects(run_id) == ["first", "second", "third"]


@pytest.mark.processes
@pytest.mark.slow
def test_a_function_that_is_no_kind_is_dead_lettered_when_its_producer_was_killed(
    client: Client,
    look: Look,
    producer: Producer,
    start: Callable[..., Node],
    beat: Callable[..., Node],
) -> None:
    process = producer("no-kind")
    run_id = begun(client, look)
    os.kill(process.pid, signal.SIGKILL)
    start()
    beat()
    run = client.wait(run_id, timeout=60)
    assert (run.status, run.reason, run.request) == (Status.FAILED, Reason.NOT_RETRYABLE, None)
    assert run.error is not None
    assert "keeps no request" in run.error["message"]
    assert look.effects(run_id) == ["first"]


def test_a_run_here_and_now_is_fenced_and_leased_like_all_others(client: Client, settings: Settings) -> None:
    seen: list[tuple[Status, str | None, bool, str | None]] = []

    async def pay() -> str:
        run = client.list(kind="here")[0]
        seen.append((run.status, run.claimed_by, run.lease_expires_at is not None, run.pending_effect))
        return "paid"

    @durable("here")
    async def here(ctx: Context) -> str:
        return await ctx.write(pay)

    assert client.run("here") == "paid"
    assert seen == [(Status.RUNNING, f"interactive:{_host()}:{os.getpid()}", True, "non_idempotent_write")]
    run = client.list(kind="here")[0]
    assert (run.status, run.pending_effect, run.claimed_by) == (Status.COMPLETED, None, None)
    assert [event.type for event in client.events(run.id)] == [
        "enqueued", "claimed", "step_started", "step_completed", "settled"]  # fmt: skip


def test_a_failure_here_and_now_is_told_and_not_retried(client: Client) -> None:
    @durable("unlucky")
    async def unlucky(ctx: Context) -> None:
        raise ConnectionError("not now")

    with pytest.raises(RunFailed, match="provider_failed"):
        client.run("unlucky")
    run = client.list(kind="unlucky")[0]
    assert (run.status, run.reason, run.requeue_count) == (Status.FAILED, Reason.PROVIDER_FAILED, 0)


def test_an_interrupted_write_here_and_now_stops_the_run_and_can_be_resolved(client: Client) -> None:
    async def pay() -> None:
        raise RuntimeError("half-way")

    @durable("half")
    async def half(ctx: Context) -> str:
        return await ctx.write(pay) or "nothing"

    with pytest.raises(RunFailed, match="not_retryable"):
        client.run("half")
    run = client.list(kind="half")[0]
    assert run.error is not None
    assert [write["name"] for write in run.error["in_flight"]] == ["pay"]
    assert client.resolve(run.id, applied=True, result="paid").status is Status.QUEUED


async def test_a_write_without_a_lease_does_not_start() -> None:
    started: list[int] = []

    async def pay() -> None:
        started.append(1)
        raise NotApplied

    @durable("rehearsed")
    async def rehearsed(ctx: Context) -> None:
        await ctx.write(pay)

    with pytest.raises(WriteWithoutLease):
        await rehearse("rehearsed")
    assert started == []


def _host() -> str:
    from agentrun.runtime.engine import HOST

    assert psutil.pid_exists(os.getpid())
    return HOST


@contextlib.contextmanager
def born_unheard(settings: Settings, look: Look, key: str | None) -> Generator[Future[Any]]:
    """A run is born; once the block is over, the connection breaks before anybody heard of it."""

    @durable("told-late")
    async def told_late(ctx: Context) -> int:
        return await ctx.step(seven)

    with Proxy(settings.require_database()) as line, ThreadPoolExecutor() as threads:
        behind = settings.model_copy(update={"database_url": line.url, "max_connections": 1})
        with Client(settings=behind) as client:
            assert client.list() == []
            line.hold_answers()
            answer = threads.submit(client.run, "told-late", idempotency_key=key)
            until(lambda: look("SELECT 1 FROM agentrun.runs WHERE status = 'running'"))
            yield answer
            line.cut()
            concurrent.futures.wait([answer], 20)


async def seven() -> int:
    return 7


@pytest.mark.parametrize("key", [None, "k"])
def test_a_birth_whose_answer_was_lost_is_executed(settings: Settings, look: Look, key: str | None) -> None:
    with born_unheard(settings, look, key) as answer:
        assert not answer.done()
    assert answer.result(0) == 7
    assert [(row["status"], row["epoch"]) for row in look("SELECT * FROM agentrun.runs")] == [("completed", 1)]
    assert [row["attempt"] for row in look("SELECT * FROM agentrun.steps")] == [1]


def test_a_birth_whose_answer_was_lost_is_not_executed_once_the_run_is_somebody_elses(
    settings: Settings, look: Look
) -> None:
    with born_unheard(settings, look, None) as answer:
        look("UPDATE agentrun.runs SET epoch = 2, claimed_by = 'worker:another:1'")
    with pytest.raises(RunFailed, match="another process has taken the run over"):
        answer.result(0)
    assert look("SELECT * FROM agentrun.steps") == []
