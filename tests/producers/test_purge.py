"""History goes when somebody says so, whole and in small batches; what anybody may still need stays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from agentrun import AsyncClient, Client, Purged, Reason, Status
from agentrun.core.actors import Actor, Scope
from agentrun.core.errors import Forbidden, InvalidRequest, NotFound
from agentrun.runtime import purging
from agentrun.runtime.upkeep import Found
from agentrun.store.database import Database
from agentrun.testing.clock import Clock
from agentrun.testing.rows import Rows

DAYS = timedelta(days=90)
pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def old(rows: Rows, clock: Clock) -> Callable[..., list[UUID]]:
    """So many runs that ended a hundred days ago."""

    def make(count: int, status: Status = Status.COMPLETED, reason: Reason | None = None, **columns: Any) -> list[UUID]:
        made = [rows.final(status, reason, **columns) for _ in range(count)]
        clock.travel(days=100)
        return made

    return make


def left(database: Database) -> set[UUID]:
    with database.connection() as connection:
        return {row["id"] for row in connection.execute("SELECT id FROM agentrun.runs").fetchall()}


def test_a_purge_removes_what_ended_long_ago_in_batches_and_tells_how_far_it_is(
    client: Client, database: Database, rows: Rows, old: Callable[..., list[UUID]]
) -> None:
    gone = old(5)
    young, open_run = rows.final(Status.COMPLETED), rows.queued()
    heard: list[Purged] = []
    assert client.purge(older_than=DAYS, dry_run=True) == Purged(runs=5)
    assert len(left(database)) == 7
    assert client.purge(older_than=DAYS, batch=2, told=heard.append) == Purged(runs=5, steps=0, events=10)
    assert [each.runs for each in heard][:3] == [2, 4, 5]
    assert left(database) == {young, open_run}
    with pytest.raises(NotFound):
        client.status(gone[0])
    assert client.purge(older_than=DAYS) == Purged()


def test_a_status_and_a_kind_choose_and_dead_letters_stay_until_they_are_asked_for(
    client: Client, rows: Rows, database: Database, clock: Clock
) -> None:
    done, other = rows.final(Status.COMPLETED), rows.final(Status.COMPLETED, kind="test")
    dead, late = rows.final(Status.FAILED), rows.final(Status.FAILED, Reason.DEADLINE_EXCEEDED)
    with database.connection() as connection:
        connection.execute("UPDATE agentrun.runs SET kind = 'another' WHERE id = %s", [other])
    clock.travel(days=100)
    assert client.purge(older_than=DAYS, status="cancelled").runs == 0
    assert client.purge(older_than=DAYS, kind="another").runs == 1
    assert client.purge(older_than=DAYS, status=[Status.COMPLETED]).runs == 1
    assert left(database) == {dead, late}
    assert client.purge(older_than=DAYS).runs == 1
    assert left(database) == {dead}
    assert client.purge(older_than=DAYS, dead=True).runs == 1
    assert done not in left(database)


def test_a_failed_run_goes_before_its_children_and_all_of_them_in_one_purge(
    client: Client, rows: Rows, database: Database, clock: Clock
) -> None:
    parent = rows.final(Status.FAILED, Reason.DEADLINE_EXCEEDED)
    child = rows.final(Status.FAILED, Reason.BUDGET_EXHAUSTED, parent_id=parent)
    rows.final(Status.COMPLETED, parent_id=child)
    clock.travel(days=100)
    assert client.purge(older_than=DAYS, status="completed").runs == 0
    assert client.purge(older_than=DAYS).runs == 3
    assert left(database) == set()


def test_an_idempotency_key_is_free_again_once_its_run_is_gone(client: Client, clock: Clock) -> None:
    first = client.enqueue("digest", 1, idempotency_key="2026-11-29")
    client.cancel(first)
    clock.travel(days=100)
    assert client.enqueue("digest", 1, idempotency_key="2026-11-29") == first
    client.purge(older_than=DAYS)
    assert client.enqueue("digest", 2, idempotency_key="2026-11-29") != first


def test_a_run_that_somebody_has_locked_is_passed_over_and_not_waited_for(
    client: Client, database: Database, old: Callable[..., list[UUID]]
) -> None:
    locked, _ = old(2)
    with database.transaction() as other:
        other.execute("SELECT 1 FROM agentrun.runs WHERE id = %s FOR KEY SHARE", [locked])
        assert client.purge(older_than=DAYS).runs == 1
    assert left(database) == {locked}


def test_a_purge_is_of_its_own_namespace(client: Client, old: Callable[..., list[UUID]], database: Database) -> None:
    made = old(1)
    settings = client.settings.model_copy(update={"namespace": "another"})
    assert purging.purge(database, settings, older_than=DAYS) == Purged()
    assert left(database) == set(made)


def test_what_cannot_be_meant_is_refused_before_anything_is_removed(client: Client) -> None:
    for wish in ({"status": "running"}, {"status": ["completed", "waiting"]}, {"batch": 0}, {"older_than": -1}):
        with pytest.raises(InvalidRequest):
            client.purge(**{"older_than": DAYS} | wish)
    with pytest.raises(InvalidRequest, match="older_than must be said"):
        client.purge(older_than=None)  # type: ignore[arg-type]
    with pytest.raises(Forbidden):
        client.acting(Actor("ada", frozenset({Scope.READ}))).purge(older_than=DAYS)
    assert client.acting(Actor("ada", frozenset({Scope.OPERATE}))).purge(older_than=DAYS) == Purged()


async def test_the_asynchronous_client_purges_alike(async_client: AsyncClient, old: Callable[..., list[UUID]]) -> None:
    old(2)
    assert (await async_client.purge(older_than=DAYS, dry_run=True)).runs == 2
    assert (await async_client.purge(older_than=DAYS, status="completed")).runs == 2


# ---- scheduled


@pytest.mark.settings(retention_days=90)
def test_retention_goes_on_from_sweep_to_sweep_and_then_rests_for_an_hour(
    sweep: Callable[[], Found], old: Callable[..., list[UUID]], rows: Rows, clock: Clock,
    database: Database, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(purging, "BATCH", 2)
    dead = rows.final(Status.FAILED)
    old(4)
    # The dead letter is the oldest: it is looked at, and stays.
    assert sweep().purged == 1
    assert sweep().purged == 0  # at the same moment
    for purged in (2, 1):
        clock.travel(seconds=5)
        assert sweep().purged == purged
    more = old(1)
    clock.travel(minutes=1)
    with database.connection() as connection:
        connection.execute("UPDATE agentrun.sweeps SET swept_at = now() - interval '59 min' WHERE name = 'retention'")
    assert sweep().purged == 0
    clock.travel(minutes=2)
    assert sweep().purged == 1
    assert left(database) == {dead}
    assert more[0] not in left(database)


def test_without_the_setting_nothing_goes_and_nothing_is_asked(
    sweep: Callable[[], Found], old: Callable[..., list[UUID]], database: Database
) -> None:
    made = old(1)
    assert sweep().purged == 0
    assert left(database) == set(made)
    with database.connection() as connection:
        assert connection.execute("SELECT 1 FROM agentrun.sweeps WHERE name = 'retention'").fetchone() is None


def test_what_runs_spent_that_are_gone_counts_for_its_month_and_is_then_forgotten(
    client: Client, old: Callable[..., list[UUID]], database: Database, clock: Clock
) -> None:
    """Whatever may go within its month: nothing of it is left behind for ever."""
    runs = old(3)
    with database.connection() as connection:
        connection.execute(SPENT, [runs])
    client.set_budget("ada", period="month", max_cost=Decimal(10))
    (before,) = client.budgets("ada")
    assert client.purge(older_than=DAYS, batch=2).runs == 3
    (after,) = client.budgets("ada")
    assert (before["cost"], after["cost"], after["tokens"]) == (Decimal(3), Decimal(3), 30)
    clock.travel(days=32)
    client.purge(older_than=DAYS)
    with database.connection() as connection:
        assert connection.execute("SELECT * FROM agentrun.spend").fetchall() == []


SPENT = """
INSERT INTO agentrun.spend (namespace, owner, day, run_id, tokens, cost, model_calls)
SELECT 'default', 'ada', date_trunc('day', now() AT TIME ZONE 'UTC'), run_id, 10, 1, 1 FROM unnest(%s::uuid[]) AS run_id
"""


@pytest.mark.settings(retention_days=1)
def test_retention_forgets_what_runs_spent_that_are_gone(
    client: Client, old: Callable[..., list[UUID]], database: Database, clock: Clock, sweep: Callable[[], Found]
) -> None:
    runs = old(2)
    with database.connection() as connection:
        connection.execute(SPENT, [runs])
    assert sweep().purged == 2
    with database.connection() as connection:
        assert len(connection.execute("SELECT * FROM agentrun.spend").fetchall()) == 1
    clock.travel(days=32)
    sweep()
    with database.connection() as connection:
        assert connection.execute("SELECT * FROM agentrun.spend").fetchall() == []
