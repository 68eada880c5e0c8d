"""Answers belong to the wait that was asked: other code, another worker, another branch gets none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Client, Context, Status, durable
from agentrun.core.errors import AlreadyDecided
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher
from tests.waits.conftest import Go, Parked


def test_an_answer_is_given_to_no_other_wait_that_new_code_asks_for_in_its_place(
    client: Client, kinds: Registry, parked: Parked, go: Go
) -> None:
    @durable("changed")
    async def before(ctx: Context) -> Any:
        return bool(await ctx.approval("sure?"))

    run_id = parked("changed")
    client.approve(run_id, by="ann")
    del kinds._kinds["changed"]  # pyright: ignore[reportPrivateUsage]

    @durable("changed")
    async def after(ctx: Context) -> Any:
        return await ctx.input("how many?", schema={"type": "integer"})

    run = go(run_id)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["type"].endswith("NonDeterminism")
    assert "approval `sure?`" in run.error["message"]


def test_a_worker_without_the_kind_takes_no_answer_away(
    client: Client, settings: Settings, parked: Parked, go: Go, publisher: RecordingPublisher
) -> None:
    @durable("ask")
    async def ask(ctx: Context) -> bool:
        return bool(await ctx.approval("sure?"))

    run_id = parked("ask")
    client.approve(run_id, by="ann")
    stranger = Engine(settings, Database(settings.require_database(), name="stranger"), publisher, kinds=Registry())
    try:
        assert stranger.run(run_id).outcome == "elsewhere"
    finally:
        stranger.close()
        stranger.database.close()
    assert client.status(run_id).status is Status.QUEUED
    assert go(run_id).result is True


def test_another_worker_goes_on_from_the_answer_and_asks_nothing_again(
    client: Client, parked: Parked, make_engine: Callable[..., Engine]
) -> None:
    asked: list[str] = []

    @durable("ask")
    async def ask(ctx: Context) -> Any:
        said = await ctx.approval("first?")
        asked.append(str(said.by))
        again = await ctx.approval("second?")
        return [said.by, again.by]

    run_id = parked("ask")
    client.approve(run_id, by="ann")
    assert make_engine().run(run_id).outcome == "waiting"
    (waiting,) = client.waits(run_id)
    assert waiting["asks"]["question"] == "second?"
    client.approve(run_id, by="bob", key=waiting["step_key"])
    make_engine().run(run_id)
    assert client.status(run_id).result == ["ann", "bob"]


def test_data_for_another_question_than_was_read_is_refused(client: Client, parked: Parked, go: Go) -> None:
    @durable("ask")
    async def ask(ctx: Context) -> Any:
        return await ctx.input("n?", schema={"type": "integer"})

    run_id = parked("ask")
    (asked,) = client.waits(run_id)
    with pytest.raises(AlreadyDecided, match="another digest"):
        client.submit_input(run_id, 1, by="ann", digest="0" * 64)
    client.submit_input(run_id, 2, by="ann", digest=asked["asks_digest"])
    assert go(run_id).result == 2
