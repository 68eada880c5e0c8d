"""`agentrun redispatch` and `agentrun step …`, and what `show` and `check` say of steps done elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from agentrun import Client, Context, Effect, durable, remote_step
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.remotesteps import remote_steps
from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def bodies(kinds: Registry) -> Iterator[None]:
    before = remote_steps.snapshot()

    @durable("asks-elsewhere")
    async def asks_elsewhere(ctx: Context, what: str) -> Any:
        if what == "external":
            return await ctx.external("review", {"secret": "input"}, effect=Effect.READ_ONLY)
        return await ctx.remote("draw", "cat", queue="gpu")

    @remote_step("draw", effect=Effect.READ_ONLY)
    async def draw(what: str) -> str:
        return f"a {what}"

    yield
    remote_steps.restore(before)


@pytest.fixture
def parked(client: Client, engine: Engine) -> Callable[[str], UUID]:
    def park(what: str) -> UUID:
        run_id = client.enqueue("asks-elsewhere", what)
        assert engine.run(run_id).outcome == "waiting"
        return run_id

    return park


def test_a_step_is_listed_taken_and_completed(
    cli: Cli, client: Client, engine: Engine, parked: Callable[[str], UUID]
) -> None:
    run_id = parked("external")
    listed = cli("step", "list", "--json").json
    assert [(step["run_id"], step["name"], "input" in step) for step in listed] == [(str(run_id), "review", False)]
    assert cli("step", "list", "--json", "--payloads").json[0]["input"] == {"secret": "input"}
    assert "secret" not in cli("step", "list").out
    assert "secret" in cli("step", "list", "--payloads").out
    taken = cli("step", "take", str(run_id), "--by", "legal", "--json").json
    assert taken["input"] == {"secret": "input"}
    assert "legal" in cli("step", "list", "--taken", "--run", str(run_id)).out
    assert cli("step", "heartbeat", taken["token"], '{"page": 3}', "--json").json == {"outcome": "go on", "go_on": True}
    shown = cli("show", str(run_id)).out
    assert "no queue" in shown
    assert "legal" in shown
    assert cli("step", "complete", taken["token"], '{"fine": true}').out == "completed\n"
    assert engine.run(run_id).outcome == "completed"
    assert client.status(run_id).result == {"fine": True}


def test_people_see_what_they_took(cli: Cli, parked: Callable[[str], UUID]) -> None:
    said = cli("step", "take", str(parked("external")), "--by", "legal")
    assert said.code == 0
    for word in ("review", "token", "secret", "idempotency key"):
        assert word in said.out


def test_the_token_may_be_in_the_environment(cli: Cli, parked: Callable[[str], UUID]) -> None:
    token = cli("step", "take", str(parked("external")), "--json").json["token"]
    assert cli("step", "complete", env={"AGENTRUN_STEP_TOKEN": token}).out == "completed\n"


def test_a_step_fails(cli: Cli, parked: Callable[[str], UUID]) -> None:
    token = cli("step", "take", str(parked("external")), "--json").json["token"]
    assert cli("step", "fail", token, "illegible", "--type", "Illegible", "--json").json == {"outcome": "failed"}


def test_refusals_say_why_and_have_their_codes(cli: Cli, parked: Callable[[str], UUID], client: Client) -> None:
    run_id = parked("external")
    first = cli("step", "take", str(run_id), "--json").json
    assert cli("step", "take", str(run_id)).code == 11
    assert cli("redispatch", str(run_id), "--by", "ops").code == 0
    stale = cli("step", "complete", first["token"])
    assert (stale.code, "offered again" in stale.err) == (17, True)
    assert cli("step", "complete", "no-token").code == 9
    again = cli("step", "take", str(run_id), "--json").json
    client.cancel(run_id)
    stop = cli("step", "heartbeat", again["token"])
    assert (stop.code, stop.out) == (1, "stop: the run is over\n")
    assert cli("redispatch", str(run_id)).code == 11
    assert cli("step", "list").err == "no external step is on offer\n"


def test_redispatch_says_how_many_and_why_others_were_left(
    cli: Cli, parked: Callable[[str], UUID], database_url: str
) -> None:
    run_id = parked("remote")
    assert f"1 step of run {run_id} sent again, 0 left" in cli("redispatch", str(run_id)).out
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE agentrun.steps SET status = 'started', step_epoch = 1, by = 'worker:gpu:1', started_at = now(), "
            "started_seq = nextval('agentrun.event_seq'), lease_expires_at = now() + interval '1 hour'"
        )
    said = cli("redispatch", str(run_id), "--json").json
    assert (said["sent"], list(said["left"])) == (0, ["#1"])
    assert "worker:gpu:1" in cli("redispatch", str(run_id)).out


def test_show_tells_where_a_remote_step_is(
    cli: Cli, parked: Callable[[str], UUID], engine: Engine, client: Client, database_url: str
) -> None:
    run_id = parked("remote")
    shown = cli("show", str(run_id))
    assert "its step is on offer, and no live worker consumes `gpu`" in shown.out
    assert "Done elsewhere" in shown.out
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE agentrun.steps SET status = 'started', step_epoch = 1, by = 'worker:gpu:1', started_at = now(), "
            "started_seq = nextval('agentrun.event_seq'), lease_expires_at = now() - interval '1 s', "
            "heartbeat_at = now(), progress = '{\"page\": 3}'"
        )
    shown = cli("show", str(run_id))
    for words in ("worker:gpu:1", '{"page": 3}', "1 step lost by a taker that died"):
        assert words in shown.out
    client.redispatch(run_id, by="ops")
    assert engine.run_step(run_id, "#1").outcome == "completed"
    shown = cli("show", str(run_id)).out
    for words in ("redispatched", "sent again by hand", "lost: worker:gpu:1", "re-dispatched"):
        assert words in shown
    (step,) = cli("show", str(run_id), "--json").json["steps"]
    assert (step["queue"], step["redispatch_count"], "progress" in step) == ("gpu", 1, False)


def test_check_names_remote_steps_that_declare_no_effect(cli: Cli) -> None:
    assert "undeclared-one" not in cli("check").out

    @remote_step("undeclared-one")
    async def undeclared() -> None: ...

    said = cli("check")
    assert "undeclared-one" in said.out
    assert "never repeated" in " ".join(said.out.split())


def test_web_says_what_is_missing(cli: Cli) -> None:
    refused = cli("web", env={"AGENTRUN_DATABASE_URL": None})
    assert (refused.code, "AGENTRUN_DATABASE_URL" in refused.err) == (3, True)
