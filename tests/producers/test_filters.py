"""What reads and options cannot be is refused in words, by every face, and never as another library's error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from agentrun import AsyncClient, Client, Settings
from agentrun.core.actors import Actor, Scope
from agentrun.core.errors import AgentrunError, ConfigurationError, InvalidRequest, NotFound
from agentrun.testing.rows import Rows
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

NAN = float("nan")
Ask = Callable[[Any, UUID], Any]

REFUSED: dict[str, tuple[Ask, str]] = {
    "a reason that is none": (lambda c, r: c.list(reason="nope"), "reason must be one of completed, max_iterations"),
    "a misspelt reason": (lambda c, r: c.redrivable(reason="not_retriable"), "did you mean `not_retryable`"),
    "a misspelt kind of wait": (lambda c, r: c.inbox(kind="aproval"), "approval, input, signal, not 'aproval'; did"),
    "a kind of wait that is no one's": (lambda c, r: c.inbox(kind="timer"), "must be one of approval, input, signal"),
    "a number as status": (lambda c, r: c.list(status=5), "status must be one of queued"),
    "one bad status of two": (lambda c, r: c.list(status=["failed", "faild"]), "did you mean `failed`"),
    "a NUL in a kind": (lambda c, r: c.list(kind="\x00"), "kind must be 1 to 200"),
    "a NUL in a tag": (lambda c, r: c.list(tag="\x00"), "tag must be 1 to 200"),
    "a number as owner": (lambda c, r: c.list(owner=7), "owner must be 1 to 200"),
    "a NUL in a failed kind": (lambda c, r: c.redrivable(kind="\x00"), "kind must be 1 to 200"),
    "a NUL in a role": (lambda c, r: c.inbox(role="\x00"), "role must be 1 to 200"),
    "a NUL in a budget's owner": (lambda c, r: c.budgets("\x00"), "owner must be 1 to 200"),
    "a NUL in a step's name": (lambda c, r: c.external_steps(name="\x00"), "name must be 1 to 200"),
    "a text as attributes": (lambda c, r: c.list(attributes="x"), "attributes must be an object"),
    "a list as attributes": (lambda c, r: c.list(attributes=[]), "attributes must be an object"),
    "a NUL in attributes": (lambda c, r: c.list(attributes={"a": "\x00"}), "attributes cannot be stored"),
    "a text as limit": (lambda c, r: c.list(limit="x"), "limit must be 1 to 1000, not 'x'"),
    "too many events": (lambda c, r: c.events(r, limit=10_001), "limit must be 1 to 10000"),
    "less than no events": (lambda c, r: c.events(r, limit=-1), "limit must be 1 to 10000"),
    "events after a text": (lambda c, r: c.events(r, after="x"), "after must be the `seq`"),
    "events after all": (lambda c, r: c.events(r, after=2**63), "after must be the `seq`"),
    "less than no waits": (lambda c, r: c.inbox(limit=-1), "limit must be 1 to 10000"),
    "no signals": (lambda c, r: c.signals(limit=0), "limit must be 1 to 10000"),
    "half a run": (lambda c, r: c.redrivable(limit=0.5), "limit must be 1 to 10000"),
    "a text as external steps": (lambda c, r: c.external_steps(limit="x"), "limit must be 1 to 1000"),
    "a text as timeout": (lambda c, r: c.wait(r, timeout="x"), "timeout must be seconds or a timedelta"),
    "no number as timeout": (lambda c, r: c.wait(r, timeout=NAN), "timeout must be seconds or a timedelta, not nan"),
    "no number as a result's": (lambda c, r: c.result(r, timeout=NAN), "timeout must be seconds"),
    "no token": (lambda c, r: c.complete_step(None, 1), "a token is the text"),
    "a number as token": (lambda c, r: c.heartbeat_step(7), "a token is the text"),
    "no token of a webhook": (lambda c, r: c.webhook(None, 1), "a token is the text"),
    "a text to try again after": (lambda c, r: c.fail_step("x", "m", retry_after="x"), "retry_after must be"),
    "no number to try again after": (lambda c, r: c.fail_step("x", "m", retry_after=NAN), "retry_after must be"),
    "a text as word of a write": (lambda c, r: c.resolve(r, applied="no"), "applied must be True or False, not 'no'"),
    "no word of a write": (lambda c, r: c.resolve(r, applied=None), "applied must be True or False"),
    "a text for what did not happen": (lambda c, r: c.fail_step("x", "m", not_applied="false"), "not_applied must be"),
    "a number for trying again": (lambda c, r: c.fail_step("x", "m", retryable=0), "retryable must be True or False"),
    "a key that cannot be stored": (lambda c, r: c.resolve(r, applied=True, key="\x00"), "PostgreSQL has no place"),
}


@pytest.mark.parametrize(("ask", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_in_words_also_to_an_actor(client: Client, rows: Rows, ask: Ask, says: str) -> None:
    run_id = rows.queued()
    for asker in (client, client.acting(Actor("ada", frozenset(Scope)))):
        with pytest.raises(InvalidRequest) as refused:
            ask(asker, run_id)
        assert type(refused.value) is InvalidRequest
        assert says in str(refused.value)
    assert client.status(run_id).cancel_requested_at is None


ON_CLIENT_ONLY = ("redrivable", "budgets")


@pytest.mark.parametrize(("ask", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_the_asynchronous_client_says_the_same(
    async_client: AsyncClient, rows: Rows, ask: Ask, says: str
) -> None:
    run_id = rows.queued()
    if any(verb in ask.__code__.co_names for verb in ON_CLIENT_ONLY):
        return
    with pytest.raises(InvalidRequest) as refused:
        await asyncio.wait_for(ask(async_client, run_id), 20)
    assert says in str(refused.value)


def test_a_timeout_that_is_over_or_endless_is_one(client: Client, rows: Rows) -> None:
    run_id, over = rows.queued(), rows.queued()
    client.cancel(over)
    for timeout in (0, -1, timedelta(seconds=-1)):
        with pytest.raises(TimeoutError):
            client.wait(run_id, timeout=timeout)
    assert client.wait(over, timeout=float("inf")).status == "cancelled"


def test_who_acts_has_a_name_that_can_be_stored(client: Client, rows: Rows) -> None:
    run_id = rows.queued()
    for name in ("\ud800", "\x00"):
        with pytest.raises(InvalidRequest, match="PostgreSQL has no place"):
            client.cancel(run_id, by=name)
    assert client.status(run_id).status == "queued"


def test_who_acts_is_a_name_or_an_actor_and_a_name_restricts_nobody(client: Client, rows: Rows) -> None:
    run_id = rows.queued()
    nobody: Any
    for nobody in (None, 3, ["ada"]):
        for act in (client.cancel, client.redrive, client.approve, client.take_step):
            with pytest.raises(InvalidRequest, match="a name for the record or an Actor"):
                act(run_id, by=nobody)
    for nobody in ("ada", None):
        with pytest.raises(InvalidRequest, match="takes an Actor with scopes"):
            client.acting(nobody)
    assert client.status(run_id).status == "queued"


def test_what_is_no_token_belongs_to_nothing(client: Client) -> None:
    for answer in (client.complete_step, client.webhook):
        with pytest.raises(NotFound):
            answer("\ud800", 1)


@pytest.mark.parametrize("word", ["zz", None, True, ""])
def test_what_becomes_of_a_run_that_cannot_be_woken_is_one_of_two_words(settings: Settings, word: Any) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(ConfigurationError, match=r'dispatch_failure must be "leave".* or "fail"'):
            make(settings=settings, dispatch_failure=word)


COMMANDS = {
    "redrive": (("redrive", "--all", "--reason", "zz"), 5, "reason must be one of"),
    "inbox": (("inbox", "--kind", "zz"), 5, "kind must be one of approval, input, signal"),
    "list": (("list", "--kind", "\x01"), 5, "kind must be 1 to 200"),
}


@pytest.mark.parametrize(("command", "code", "says"), COMMANDS.values(), ids=COMMANDS.keys())
def test_the_command_line_says_the_words_that_there_are(
    cli: Cli, client: Client, command: tuple[str, ...], code: int, says: str
) -> None:
    refused = cli(*command)
    assert (refused.code, refused.out) == (code, "")
    assert says in " ".join(refused.err.replace("│", " ").split())


def test_a_key_of_a_run_here_and_now_is_checked_as_any_other(client: Client) -> None:
    async def body(ctx: Any, request: Any) -> None: ...

    for key in ("", "\x00", 7):
        with pytest.raises(AgentrunError, match="idempotency_key must be 1 to 200"):
            client.run(body, idempotency_key=key)  # pyright: ignore[reportArgumentType]
    assert client.list() == []
