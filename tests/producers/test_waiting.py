"""Waiting for a run's end: a hint ends the wait at once, and without one the row does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrun import AsyncClient, Client, Status
from agentrun.broker import hints, waiting
from agentrun.core.errors import NotFound, RunFailed
from agentrun.runtime.kinds import Registry
from agentrun.testing import until
from tests.producers.conftest import House

pytestmark = pytest.mark.processes

NAP = 1.0
AT_ONCE = 0.5
"""Seconds from a run's end to the end of the wait; a look without a hint would take LOOK_AGAIN."""


@pytest.fixture
async def async_tenant(house: House) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(settings=house.settings, kinds=Registry()) as client:
        yield client


def _since(run: Any, tenant: Client) -> float:
    """Seconds since the run ended, by the database's clock."""
    with tenant.commands.database.connection() as connection:
        row: Any = connection.execute(
            "SELECT extract(epoch FROM now() - %s)::float AS age", (run.finished_at,)
        ).fetchone()
        return row["age"]


def test_a_hint_ends_the_wait_at_once(tenant: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK_AGAIN", 60.0)
    run = tenant.wait(tenant.enqueue("nap", NAP), timeout=15)
    assert _since(run, tenant) < AT_ONCE
    assert run.result == "rested"


async def test_a_hint_ends_the_asynchronous_wait_at_once(
    async_tenant: AsyncClient, tenant: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LOOK_AGAIN", 60.0)
    run = await async_tenant.wait(await async_tenant.enqueue("nap", NAP), timeout=15)
    assert _since(run, tenant) < AT_ONCE


def test_a_wait_without_hints_sees_the_end_in_the_row(tenant: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK_AGAIN", 0.3)
    monkeypatch.setattr(hints.Hints, "channel", lambda self, run_id: "agentrun:nobody-sends-here")
    assert tenant.wait(tenant.enqueue("nap", NAP), timeout=15).result == "rested"


async def test_an_asynchronous_wait_without_hints_sees_the_end_in_the_row(
    async_tenant: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LOOK_AGAIN", 0.3)
    monkeypatch.setattr(hints.Hints, "channel", lambda self, run_id: "agentrun:nobody-sends-here")
    run = await async_tenant.wait(await async_tenant.enqueue("nap", NAP), timeout=15)
    assert run.result == "rested"


def test_a_wait_that_times_out_says_so_and_the_run_goes_on(tenant: Client) -> None:
    run_id = tenant.enqueue("echo", "later", delay=600)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=f"run `{run_id}` is still queued"):
        tenant.wait(run_id, timeout=0.5)
    assert 0.5 <= time.monotonic() - began < 1.5
    with pytest.raises(TimeoutError):
        tenant.wait(run_id, timeout=0)
    assert tenant.status(run_id).status is Status.QUEUED


async def test_an_asynchronous_wait_times_out_and_can_be_cancelled(async_tenant: AsyncClient) -> None:
    run_id = await async_tenant.enqueue("echo", "later", delay=600)
    with pytest.raises(TimeoutError):
        await async_tenant.wait(run_id, timeout=0.3)
    waiter = asyncio.create_task(async_tenant.wait(run_id))
    await asyncio.sleep(0.2)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_many_asynchronous_waits_go_side_by_side(async_tenant: AsyncClient) -> None:
    runs = await async_tenant.enqueue_many("nap", [NAP] * 30)
    began = time.monotonic()
    ended = await asyncio.gather(*(async_tenant.wait(run_id, timeout=20) for run_id in runs))
    assert {run.result for run in ended} == {"rested"}
    assert time.monotonic() - began < 15 * NAP


def test_a_cancelled_run_ends_the_wait_too(tenant: Client) -> None:
    run_id = tenant.enqueue("echo", "later", delay=600)
    ended: list[Any] = []
    waiter = threading.Thread(target=lambda: ended.append(tenant.wait(run_id, timeout=20)))
    waiter.start()
    tenant.cancel(run_id)
    waiter.join(10)
    assert [run.status for run in ended] == [Status.CANCELLED]


def test_a_run_that_has_ended_needs_no_waiting(tenant: Client) -> None:
    run_id = tenant.enqueue("echo", "done")
    until(lambda: tenant.status(run_id).status.final)
    assert tenant.wait(run_id, timeout=0).result == "done"
    assert tenant.result(run_id) == "done"


def test_the_result_of_a_run_without_one_raises(tenant: Client) -> None:
    run_id = tenant.enqueue("echo", "later", delay=600)
    tenant.cancel(run_id)
    with pytest.raises(RunFailed, match="cancelled"):
        tenant.result(run_id, timeout=5)


def test_an_unknown_run_is_not_waited_for(tenant: Client) -> None:
    with pytest.raises(NotFound):
        tenant.wait("00000000-0000-0000-0000-000000000000", timeout=5)
