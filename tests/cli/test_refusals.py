"""Every refusal once: its exit code, and what stderr says about the next step. Nothing is stored by any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
import typer
from redis import Redis

from agentrun import Client, Status
from agentrun.cli.form import filled
from agentrun.cli.words import json_value
from agentrun.core.errors import InvalidRequest
from agentrun.embedded.home import Home
from agentrun.embedded.server import free_port
from agentrun.runtime.engine import Engine
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing.rows import Rows
from tests.cli.conftest import Cli

Ended = Callable[..., UUID]

AWAY = {"AGENTRUN_BROKER_URL": f"redis://127.0.0.1:{free_port()}/0"}


def refused(cli: Cli, code: int, *arguments: str, says: str, env: dict[str, str | None] | None = None) -> None:
    said = cli(*arguments, env=env)
    assert (said.code, said.out) == (code, ""), said
    assert says in " ".join(said.err.replace("│", " ").split()), said.err
    assert "Traceback" not in said.err
    if code != 2:
        assert len(said.err.splitlines()) == 1, "one paragraph"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["enqueue", "greet", "{not json"], "this is not JSON"),
        (["enqueue", "greet", "NaN"], "NaN is no JSON value"),
        (["enqueue"], "Missing argument"),
        (["enqueue", "greet", "1", "--delay", "soon"], "'soon' is no duration"),
        (["enqueue", "greet", "1", "--delay", "9" * 20 + "d"], "too long a duration"),
        (["enqueue", "greet", '"x"', "--attribute", "n"], "'n' is no name=value"),
        (["list", "--status", "sleeping"], "sleeping"),
        (["resolve", "x"], "say --applied"),
        (["resolve", "x", "--not-applied", "--result", "1"], "or --not-applied"),
        (["resolve", "x", "--applied", "--not-applied"], "only one of them is true"),
        (["resolve", "x", "--not-applied", "--applied", "--result", "1"], "only one of them is true"),
        (["resolve", "x", "--applied"], "--result null where it returns nothing"),
        (["resolve", "x", "--applied", "--result", "paid"], "this is not JSON"),
        (["redrive", "x", "--kind", "pay"], "go with --all"),
        (["redrive", "x", "--yes"], "go with --all"),
        (["budget", "ann", "--lift", "--max-tokens", "5"], "or --lift"),
        (["budget", "--max-tokens", "5"], "say whose"),
        (["budget", "--lift"], "say whose"),
        (["purge"], "Missing option"),
        (["purge", "--older-than", "1d", "--status", "failed,running"], "not running"),
        (["shwo", "x"], "No such command"),
        (["list", "--no-such-option"], "No such option"),
    ],
)
def test_wrong_usage_is_2(cli: Cli, client: Client, arguments: list[str], says: str) -> None:
    refused(cli, 2, *arguments, says=says)
    assert client.list() == []


@pytest.mark.parametrize("command", [["list"], ["show", str(uuid4())], ["enqueue", "greet", '"x"'], ["sweep"]])
def test_without_urls_the_missing_variable_is_named(cli: Cli, command: list[str]) -> None:
    neither = {"AGENTRUN_DATABASE_URL": None, "AGENTRUN_BROKER_URL": None}
    refused(cli, 3, *command, says="_URL is not set", env=neither)
    refused(cli, 3, *command, says="AGENTRUN_BROKER_URL is not set", env={"AGENTRUN_BROKER_URL": None})
    refused(cli, 3, *command, says="AGENTRUN_DATABASE_URL is not set", env={"AGENTRUN_DATABASE_URL": None})


def test_a_second_up_prints_all_that_another_program_needs_and_nothing_else_on_stdout(
    cli: Cli, settings: Settings, tmp_path: Path
) -> None:
    home = Home(tmp_path / "state")
    home.enter()
    urls = settings.require_database(), settings.require_broker()
    env = {"AGENTRUN_STATE_DIR": str(home.directory), "AGENTRUN_DATABASE_URL": None, "AGENTRUN_BROKER_URL": None}
    exports = [f"export AGENTRUN_{name}_URL={url}" for name, url in zip(("DATABASE", "BROKER"), urls, strict=True)]
    try:
        for namespace, further in {"default": [], "team": ["export AGENTRUN_NAMESPACE=team"]}.items():
            home.announce(*urls, namespace)
            said = cli("up", env=env)
            assert (said.code, said.out.splitlines()) == (1, exports + further)
            assert cli("up", "--json", env=env).json["namespace"] == namespace
    finally:
        home.leave()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("AGENTRUN_LEASE_SECONDS", "soon", "AGENTRUN_LEASE_SECONDS"),
        ("AGENTRUN_DATABSE_URL", "x", "did you mean AGENTRUN_DATABASE_URL?"),
        ("AGENTRUN_DATABASE_URL", "mysql://x", "must be postgresql://"),
        ("AGENTRUN_DATABASE_URL", f"postgresql://x@127.0.0.1:{free_port()}/x", "cannot be reached"),
        ("AGENTRUN_BROKER_URL", "foo", "AGENTRUN_BROKER_URL is no URL"),
        ("AGENTRUN_IMPORTS", "no.such.module", "AGENTRUN_IMPORTS names `no.such.module`"),
    ],
    ids=["no number", "no such setting", "another database", "away", "no broker", "no module"],
)
def test_a_wrong_setting_is_3_and_named(cli: Cli, name: str, value: str, says: str) -> None:
    refused(cli, 3, "enqueue", "greet", '"x"', says=says, env={name: value})


def test_a_database_that_is_away_is_3_for_every_command(cli: Cli) -> None:
    env: dict[str, str | None] = {"AGENTRUN_DATABASE_URL": f"postgresql://x@127.0.0.1:{free_port()}/x"}
    for command in (["migrate"], ["list"], ["sweep"], ["show", "01234567"]):
        refused(cli, 3, *command, says="cannot be reached", env=env)
    assert cli("check", env=env).code == 3


def test_a_database_without_the_schema_is_4_and_names_the_command(cli: Cli, empty_database_url: str) -> None:
    env: dict[str, str | None] = {"AGENTRUN_DATABASE_URL": empty_database_url}
    for command in (["list"], ["enqueue", "greet", '"x"'], ["sweep"], ["show", str(uuid4())]):
        refused(cli, 4, *command, says="agentrun migrate", env=env)
    said = cli("check", env=env)
    assert said.code == 4
    assert "agentrun migrate" in said.err


def test_both_answers_to_one_question_settle_no_write(cli: Cli, client: Client, ended: Ended) -> None:
    run_id = ended("pay")
    for flags in (["--applied", "--result", "1", "--not-applied"], ["--not-applied", "--applied", "--result", "1"]):
        refused(cli, 2, "resolve", str(run_id), *flags, says="only one of them is true")
    assert client.status(run_id).status is Status.FAILED
    assert [step.status for step in client.steps(run_id)] == ["started"]


def test_an_unknown_revision_is_4(cli: Cli) -> None:
    refused(cli, 4, "migrate", "--to", "9999", says="9999")


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "--to", "base", "--yes"], ["check"]])
def test_a_schema_of_a_newer_version_is_4_and_sends_nobody_to_migrate(
    cli: Cli, database: Database, command: list[str]
) -> None:
    with database.connection() as connection:
        connection.execute("UPDATE agentrun.alembic_version SET version_num = '9999'")
    said = cli(*command)
    assert (said.code, "pip install --upgrade agentrun" in said.err, "agentrun migrate" in said.err) == (4, True, False)


@pytest.fixture
def read_only(settings: Settings, rows: Rows, database: Database) -> UUID:
    """Every session of the test's database, from now on; there is one run in it."""
    run_id = rows.queued()
    name = urlsplit(settings.require_database()).path[1:]
    with database.connection() as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')  # pyright: ignore[reportArgumentType, reportCallIssue]
    return run_id


@pytest.mark.parametrize(
    "command",
    [
        ["enqueue", "greet", '"x"'],
        ["cancel", "RUN"],
        ["signal", "RUN", "paid"],
        ["budget", "ann", "--max-tokens", "5"],
        ["purge", "--older-than", "1d"],
        ["sweep"],
        ["migrate", "--to", "base", "--yes"],
    ],
    ids=lambda command: command[0],
)
def test_a_database_that_takes_no_write_is_3_and_named(cli: Cli, read_only: UUID, command: list[str]) -> None:
    refused(cli, 3, *(str(read_only) if word == "RUN" else word for word in command), says="takes no write")


def test_check_sees_a_database_that_takes_no_write(cli: Cli, read_only: UUID) -> None:
    said = cli("check", "--json")
    (found,) = [each for each in said.json["findings"] if each["level"] == "error"]
    assert (said.code, found["about"], "default_transaction_read_only" in found["says"]) == (3, "database", True)


def test_check_sees_a_redis_that_is_full(cli: Cli, redis: Redis) -> None:
    redis.config_set("maxmemory", 1)
    try:
        said = cli("check", "--json")
    finally:
        redis.config_set("maxmemory", 0)
    (found,) = [each for each in said.json["findings"] if each["level"] == "error"]
    assert (said.code, found["about"], "maxmemory" in found["says"]) == (3, "broker", True)


@pytest.mark.parametrize("name", ["nofile.json", "journals/nofile", "a.journal"])
def test_a_journal_that_is_not_there_is_told_as_such(cli: Cli, name: str) -> None:
    refused(cli, 5, "replay", name, says=f"there is no file `{name}`")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["greet", "5"], "does not fit kind `greet`"),
        (["render", '{"width": 1}'], "height"),
        (["greet", '"x"', "--delay", "-5"], "delay must be"),
        (["greet", '"x"', "--priority", "10"], "priority must be"),
        (["greet", '"x"', "--queue", "q" * 201], "queue must be"),
        (["greet", '"x"', "--tag", "a\tb"], "tag must be"),
    ],
)
def test_a_bad_request_is_5_and_nothing_is_stored(cli: Cli, client: Client, arguments: list[str], says: str) -> None:
    refused(cli, 5, "enqueue", *arguments, says=says)
    assert client.list() == []


def test_what_is_no_run_id_is_5(cli: Cli, client: Client) -> None:
    for text in ("hello", "0123", "0123456g", "x" * 36):
        refused(cli, 5, "show", text, says="is no run")
    ids = [str(client.enqueue("greet", "x")) for _ in range(2)]
    refused(cli, 5, "show", ids[0][:8], says="several runs start with")
    refused(cli, 5, "list", "--limit", "0", says="limit must be")


def test_an_unknown_kind_is_6_with_the_near_miss_where_a_worker_is_up(
    cli: Cli, client: Client, known: Any, make_engine: Callable[..., Engine]
) -> None:
    make_engine(queues=("agentrun",)).heartbeat.beat()
    refused(cli, 6, "enqueue", "gret", '"x"', says="did you mean `greet`?")
    assert client.list() == []


def test_too_large_a_request_is_7(cli: Cli, client: Client) -> None:
    env: dict[str, str | None] = {"AGENTRUN_MAX_REQUEST_BYTES": "10"}
    refused(cli, 7, "enqueue", "greet", f'"{"x" * 20}"', says="AGENTRUN_MAX_REQUEST_BYTES", env=env)
    assert client.list() == []


def test_an_idempotency_key_for_something_else_is_8(cli: Cli, client: Client) -> None:
    first = cli("enqueue", "greet", '"x"', "--idempotency-key", "k")
    assert cli("enqueue", "greet", '"x"', "--idempotency-key", "k").run_id == first.run_id
    refused(cli, 8, "enqueue", "greet", '"y"', "--idempotency-key", "k", says=str(first.run_id))
    assert len(client.list()) == 1


def test_an_unknown_run_is_9(cli: Cli) -> None:
    refused(cli, 9, "show", str(uuid4()), says="agentrun list")
    refused(cli, 9, "show", "deadbeef", says="no run starts with `deadbeef`")


def test_another_namespace_is_10(cli: Cli, client: Client) -> None:
    run_id = str(client.enqueue("greet", "x"))
    refused(cli, 10, "cancel", run_id, says="AGENTRUN_NAMESPACE", env={"AGENTRUN_NAMESPACE": "other"})
    refused(cli, 9, "cancel", run_id[:20], says="no run starts with", env={"AGENTRUN_NAMESPACE": "other"})


def test_what_the_status_does_not_permit_is_11(cli: Cli, ended: Ended) -> None:
    completed, paying = str(ended("greet", "x")), str(ended("pay"))
    refused(cli, 11, "cancel", completed, says="is completed and cannot be cancelled")
    refused(cli, 11, "redrive", completed, says="only a failed run can be redriven")
    refused(cli, 11, "redrive", paying, says="has a write in flight")


def test_with_the_broker_away_a_run_is_stored_and_strict_is_12(cli: Cli, client: Client) -> None:
    said = cli("enqueue", "greet", '"x"', env=AWAY)
    assert said.code == 0
    assert client.status(said.run_id).status == "queued"
    refused(cli, 12, "enqueue", "greet", '"x"', "--strict", says="no wake could be sent", env=AWAY)
    assert [run.status for run in client.list()] == ["failed", "queued"]


@pytest.mark.usefixtures("serving")
def test_a_run_without_a_result_is_13(cli: Cli, ended: Ended) -> None:
    run_id = ended("break", "x")
    refused(cli, 13, "wait", str(run_id), says="is failed (not_retryable): the drawer is")
    said = cli("enqueue", "break", '"x"', "--wait", "--json")
    assert said.code == 13
    assert said.json["status"] == "failed"


def test_a_wait_that_takes_too_long_is_1_and_leaves_the_run_alone(cli: Cli, client: Client) -> None:
    run_id = client.enqueue("greet", "x")
    refused(cli, 1, "wait", str(run_id), "--timeout", "0.2", says="is still queued; it goes on")
    assert client.status(run_id).status == "queued"


def test_a_closed_stdin_is_wrong_usage_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(typer.BadParameter, match="stdin is closed"):
        json_value("-")
    with pytest.raises(InvalidRequest, match="no terminal to ask on"):
        filled({"schema": {"type": "object"}})
