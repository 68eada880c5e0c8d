"""Children that nobody starts: by a time that their parent says, or because no live process knows their kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from agentrun import Client, Context, Reason, Status, durable
from agentrun.core.errors import StepFailed
from agentrun.runtime.children import LOOKS
from agentrun.runtime.engine import Engine
from agentrun.store import claims
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked, Travel

Sweep = Callable[[], Any]


@pytest.fixture(autouse=True)
def family(client: Client) -> None:
    @durable("known")
    async def known(ctx: Context) -> str:
        return "done"

    @durable("parent")
    async def parent(ctx: Context, kind: str, start_within: float | None = None) -> Any:
        try:
            return await ctx.child(kind, start_within=start_within)
        except StepFailed as error:
            return error.message


@pytest.fixture
def process(database: Database) -> Callable[..., None]:
    """A process that lives now and knows these kinds."""

    def alive(*kinds: str) -> None:
        with database.connection() as connection:
            connection.execute(
                "INSERT INTO agentrun.processes (id, namespace, name, kinds) VALUES (%s, 'default', 'worker', %s)",
                [uuid4(), list(kinds)],
            )

    return alive


def child_of(client: Client, run_id: UUID) -> UUID:
    (child,) = client.list(parent=run_id)
    return child.id


def test_a_child_that_nobody_started_in_time_fails_and_its_parent_hears_why(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Sweep, publisher: RecordingPublisher
) -> None:
    run_id = parked("parent", {"kind": "known", "start_within": 60})
    assert client.status(run_id).due_at is None, "the parent itself is not due then"
    assert sweep().dead_lettered == 0
    assert client.status(run_id).status is Status.WAITING
    travel.past_due(run_id)
    assert sweep().dead_lettered == 1
    child = client.status(child_of(client, run_id))
    assert (child.status, child.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert publisher.causes(run_id)[-1] == "child"
    assert "was not started in time" in go(run_id).result
    assert sweep().dead_lettered == 0


def test_a_child_that_was_started_in_time_may_take_as_long_as_it_wants(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Sweep, rows: Rows
) -> None:
    run_id = parked("parent", {"kind": "known", "start_within": 60})
    child = child_of(client, run_id)
    assert rows.do(claims.CLAIM_RUN, child, kinds=["known"])
    travel.past_due(run_id)
    assert sweep().dead_lettered == 0
    assert travel.waits(run_id)[0]["due_at"] is None
    rows.expire_lease(child)
    sweep()
    assert client.status(child).status is Status.QUEUED, "queued again, and started once: not watched any more"
    travel.past_due(run_id)
    assert sweep().dead_lettered == 0
    rows.make_due(child)
    go(child)
    assert go(run_id).result == "done"


def test_a_child_of_a_kind_that_no_live_process_knows_fails_after_several_looks(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Sweep, process: Callable[..., None]
) -> None:
    process("parent", "known")
    run_id = parked("parent", {"kind": "nobody's"})
    for _ in range(LOOKS - 1):
        travel.past_due(run_id)
        assert sweep().dead_lettered == 0
        assert sweep().dead_lettered == 0, "not due: another sweep at the same time is no second look"
    travel.past_due(run_id)
    assert sweep().dead_lettered == 1
    assert "no live process knows its kind" in go(run_id).result


def test_a_kind_that_somebody_knows_by_then_is_waited_for(
    client: Client, parked: Parked, travel: Travel, sweep: Sweep, process: Callable[..., None]
) -> None:
    """Its workers may just have been starting, or may have much to do."""
    process("parent", "known")
    run_id = parked("parent", {"kind": "rare"})
    for _ in range(LOOKS - 1):
        travel.past_due(run_id)
        sweep()
    process("rare")
    travel.past_due(run_id)
    assert sweep().dead_lettered == 0
    assert travel.waits(run_id)[0]["due_at"] is None
    assert client.status(child_of(client, run_id)).status is Status.QUEUED


def test_while_nobody_is_alive_nothing_is_known_of_anybody(
    client: Client, parked: Parked, travel: Travel, sweep: Sweep, engine: Engine
) -> None:
    """All is down, and a sweep is run by hand: a restart of everything costs no child."""
    run_id = parked("parent", {"kind": "rare"})
    engine.close()
    for _ in range(LOOKS + 2):
        travel.past_due(run_id)
        assert sweep().dead_lettered == 0
    assert client.status(run_id).status is Status.WAITING


def test_a_child_of_a_kind_that_is_known_here_has_all_the_time_it_needs(parked: Parked, travel: Travel) -> None:
    run_id = parked("parent", {"kind": "known"})
    assert travel.waits(run_id)[0]["due_at"] is None


def test_a_continuation_of_a_child_that_was_started_is_not_taken_for_one_that_was_not(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Sweep
) -> None:
    @durable("chain")
    async def chain(ctx: Context, left: int = 1) -> str:
        if left:
            ctx.continue_as_new(0)
        return "the end"

    @durable("of-chain")
    async def of_chain(ctx: Context) -> str:
        return await ctx.child("chain", 1, start_within=60)

    run_id = parked("of-chain")
    go(child_of(client, run_id))
    travel.past_due(run_id)
    assert sweep().dead_lettered == 0
    (link,) = client.list(parent=run_id, status="queued")
    go(link.id)
    assert go(run_id).result == "the end"


def test_a_time_that_is_none_is_refused_before_anything_is_stored(client: Client, go: Go) -> None:
    run = go(client.enqueue("parent", {"kind": "known", "start_within": -1}))
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert client.list(parent=run.id) == []
