"""`on_dead` hears of every dead letter once, whoever settled it; a run that dies again is told again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Effect, Reason, Status, durable, on_dead
from agentrun.core.errors import InvalidResult
from agentrun.core.failures import qualified_name
from agentrun.runtime import hooks
from agentrun.settings import Settings
from agentrun.store.claims import CLAIM_RUN
from agentrun.store.database import Database
from agentrun.store.diagnosis import DEAD_LETTERS
from agentrun.store.transitions import SETTLE
from agentrun.testing.rows import Rows
from tests.hooks.conftest import Data, Past
from tests.waits.conftest import Go

Sweep = Callable[[], Any]


@pytest.fixture
def heard() -> list[Data]:
    """What an `on_dead` hook of this process is told."""
    said: list[Data] = []
    on_dead(said.append, name="dead")
    return said


@pytest.fixture
def dies(client: Client, go: Go) -> Callable[[], UUID]:
    """A run whose segment settles it as a dead letter."""

    def look(secret: str) -> None:
        raise LookupError(f"nothing at {secret}")

    @durable("dies")
    async def body(ctx: Context, secret: str) -> None:
        await ctx.step(look, secret)

    def run() -> UUID:
        run_id = client.enqueue("dies", "s3cr3t")
        assert go(run_id).reason == Reason.NOT_RETRYABLE
        return run_id

    return run


def test_a_dead_letter_is_told_once_by_all_sweeps(
    dies: Callable[[], UUID], heard: list[Data], sweep: Sweep, past: Past, settings: Settings
) -> None:
    run_id = dies()
    assert heard == [], "nothing is called inside the segment"
    assert sweep().told == 1
    past.minute()
    past.notices()
    other = Database(settings.require_database(), name="another process")
    assert [sweep().told, hooks.notify(other, settings.namespace, limit=100)] == [0, 0]
    other.close()
    (said,) = heard
    assert (said["occasion"], said["run_id"], said["kind"], said["reason"]) == (
        "dead", str(run_id), "dies", "not_retryable",
    )  # fmt: skip
    assert (said["error_type"], said["step"], said["write_in_flight"]) == ("LookupError", "#1", False)
    assert said["command"] == f"agentrun redrive {run_id}"
    assert "s3cr3t" not in str(said), "messages of errors quote what a run works on"


@pytest.mark.parametrize(
    "said", ["nul \x00", "half \ud83d", "\udc00 half", "\ud83d\ud83d", "whole \U0001f600 \\\\u0000"]
)
def test_an_error_that_postgresql_cannot_take_apart_is_told_and_holds_up_no_sweep(
    said: str, rows: Rows, client: Client, heard: list[Data], sweep: Sweep, database: Database
) -> None:
    """JSON may hold what is no text there: PostgreSQL stores it, and refuses every question about it."""
    error = json.dumps({"class": "unknown", "type": "Failed", "message": said, "step": "\U0001f600"})
    run_id = rows.final(Status.FAILED, error=error)
    assert sweep().told == 1
    (told,) = heard
    assert (told["run_id"], told["error_type"], told["step"]) == (str(run_id), "Failed", "\U0001f600")
    found = database.rows(DEAD_LETTERS, {"namespace": client.settings.namespace})
    assert [(row["cause"], row["run_ids"]) for row in found] == [("other", [run_id])]
    stored = client.status(run_id).error
    assert stored is not None
    assert stored["message"] == said, "what is stored stays as it is"


def test_what_the_reaper_dead_letters_is_told_with_the_command_that_helps(
    rows: Rows, heard: list[Data], sweep: Sweep
) -> None:
    poison = rows.running(requeue_count=3, max_requeues=3)
    writing = rows.fenced("#1", Effect.NON_IDEMPOTENT_WRITE)
    for run_id in (poison, writing):
        rows.expire_lease(run_id)
    assert sweep().told == 2
    said = {each["run_id"]: each for each in heard}
    assert (said[str(poison)]["reason"], said[str(poison)]["crashes"]) == ("retries_exhausted", 1)
    assert said[str(poison)]["command"] == f"agentrun redrive {poison}"
    assert said[str(writing)]["write_in_flight"] is True
    assert said[str(writing)]["command"] == f"agentrun resolve {writing}"


def test_a_result_that_an_operator_said_and_that_does_not_fit_is_to_be_said_again(
    rows: Rows, client: Client, heard: list[Data], sweep: Sweep
) -> None:
    """A redrive would read the same result once more."""
    run_id = rows.fenced("#1", Effect.NON_IDEMPOTENT_WRITE)
    rows.do(SETTLE[Status.FAILED], run_id)
    client.resolve(run_id, applied=True, result=5)
    rows.do(CLAIM_RUN, run_id)
    error = {"class": "unknown", "type": qualified_name(InvalidResult), "message": "no text", "step": "#1"}
    rows.do(SETTLE[Status.FAILED], run_id, epoch=2, error=json.dumps(error))
    assert sweep().told == 1
    (said,) = heard
    assert said["command"] == f"agentrun resolve {run_id} --key '#1' --applied --result JSON"
    assert "unfit" not in said


@pytest.mark.settings(namespace="team")
def test_a_dead_letter_of_another_namespace_names_it_beside_its_command(
    dies: Callable[[], UUID], heard: list[Data], sweep: Sweep
) -> None:
    run_id = dies()
    assert sweep().told == 1
    (said,) = heard
    assert said["command"] == f"agentrun redrive {run_id}"
    assert said["needs"] == "AGENTRUN_NAMESPACE=team in its environment, or in a `.env` there"


def test_a_redriven_run_that_dies_again_is_told_again(
    dies: Callable[[], UUID], heard: list[Data], sweep: Sweep, client: Client, go: Go
) -> None:
    run_id = dies()
    sweep()
    client.redrive(run_id)
    sweep()
    assert len(heard) == 1
    assert go(run_id).status is Status.FAILED
    sweep()
    sweep()
    assert [said["run_id"] for said in heard] == [str(run_id)] * 2
    assert heard[0]["id"] != heard[1]["id"]


def test_other_ends_are_no_dead_letters(rows: Rows, heard: list[Data], sweep: Sweep) -> None:
    rows.final(Status.COMPLETED)
    rows.final(Status.CANCELLED)
    for reason in set(Reason) - {Reason.COMPLETED, Reason.CANCELLED, Reason.NOT_RETRYABLE, Reason.RETRIES_EXHAUSTED}:
        rows.final(Status.FAILED, reason)
    assert sweep().told == 0
    rows.final(Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert sweep().told == 1


def test_a_new_hook_is_not_told_of_history(rows: Rows, heard: list[Data], sweep: Sweep, past: Past) -> None:
    past.run(rows.final(Status.FAILED))
    assert sweep().told == 0
    rows.final(Status.FAILED)
    assert sweep().told == 1


def test_a_hook_that_was_away_hears_of_everything_since(
    rows: Rows, heard: list[Data], sweep: Sweep, past: Past, database: Database
) -> None:
    sweep()
    with database.connection() as connection:
        connection.execute("UPDATE agentrun.sweeps SET swept_at = swept_at - interval '3 hours'")
    past.run(rows.final(Status.FAILED), hours=2)
    assert sweep().told == 1


def test_more_dead_letters_than_a_pass_writes_are_all_told(
    rows: Rows, heard: list[Data], database: Database, settings: Settings
) -> None:
    died = {str(rows.final(Status.FAILED)) for _ in range(5)}
    for _ in range(4):
        hooks.notify(database, settings.namespace, limit=2)
    assert {said["run_id"] for said in heard} == died
    assert len(heard) == 5


def test_the_dead_of_another_namespace_are_told_there(
    database: Database, heard: list[Data], settings: Settings, sweep: Sweep
) -> None:
    Rows(database, namespace="another").final(Status.FAILED)
    assert sweep().told == 0
    assert hooks.notify(database, "another", limit=100) == 1
