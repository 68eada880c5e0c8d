"""What waits for people, on the command line: the inbox, and every way to answer."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from agentrun import Client, Context, Retryable, Status, durable
from agentrun.core.errors import AlreadyDecided, InvalidAnswer, InvalidRequest, NotAllowed, NotFound
from agentrun.runtime.engine import Engine
from agentrun.settings import Settings
from agentrun.testing import environment
from agentrun.testing.rows import Rows
from tests.cli.conftest import Cli

Waiting = Callable[..., UUID]


class Parcel(BaseModel):
    """What is sent."""

    size: Literal["s", "m"]
    count: int = Field(ge=1)
    note: str = ""


@pytest.fixture
def waiting(client: Client, engine: Engine) -> Waiting:
    @durable("refund")
    async def refund(ctx: Context, wishes: dict[str, Any]) -> list[Any]:
        said = await ctx.approval("refund?", payload={"amount": 50, "secret": "s3cr3t"}, role="boss", **wishes)
        return [said.approved, said.by, said.comment, said.payload["amount"]]

    @durable("send")
    async def send(ctx: Context) -> dict[str, Any]:
        given = await ctx.input("what is sent?", schema=Parcel)
        return given.model_dump()

    @durable("listen")
    async def listen(ctx: Context) -> Any:
        return await ctx.signal("go")

    @durable("call-me")
    async def call_me(ctx: Context) -> Any:
        return await (await ctx.webhook()).wait()

    @durable("two")
    async def two(ctx: Context) -> list[Any]:
        asked = [ctx.input(name, schema={"type": "integer"}) for name in ("first", "second")]
        return await ctx.gather(*asked)

    def park(kind: str, request: Any = None, **wishes: Any) -> UUID:
        run_id = client.enqueue(kind, request, **wishes)
        engine.run(run_id)
        assert client.status(run_id).status is Status.WAITING
        return run_id

    return park


@pytest.fixture
def result(client: Client, engine: Engine) -> Callable[[UUID], Any]:
    def end(run_id: UUID) -> Any:
        engine.run(run_id)
        run = client.status(run_id)
        assert run.status is Status.COMPLETED, run
        return run.result

    return end


def test_the_inbox_lists_what_waits_oldest_first_with_the_command_that_answers(cli: Cli, waiting: Waiting) -> None:
    assert "nothing waits" in cli("inbox").err
    assert cli("inbox", "--json").json == []
    refund, parcel, signal = waiting("refund", {}), waiting("send"), waiting("listen")
    rows = cli("inbox", "--json").json
    assert [row["run_id"] for row in rows] == [str(refund), str(parcel), str(signal)]
    assert [row["kind"] for row in rows] == ["approval", "input", "signal"]
    assert (rows[0]["role"], rows[0]["key"], len(rows[0]["digest"])) == ("boss", "#1", 64)
    assert "s3cr3t" not in str(rows)
    assert "s3cr3t" in str(cli("inbox", "--json", "--payloads").json)
    assert [row["run_id"] for row in cli("inbox", "--json", "--role", "boss").json] == [str(refund)]
    assert [row["run_id"] for row in cli("inbox", "--json", "--kind", "input").json] == [str(parcel)]
    assert len(cli("inbox", "--json", "--limit", "1").json) == 1
    shown = " ".join(cli("inbox").out.split())
    assert "refund?" in shown
    assert "boss" in shown


def test_what_the_inbox_says_can_be_pasted_as_it_stands(
    cli: Cli, waiting: Waiting, result: Callable[[UUID], Any]
) -> None:
    run_id, parcel = waiting("refund", {}), waiting("send")
    said = [line[line.index("agentrun ") :].rstrip() for line in cli("inbox").out.splitlines() if "agentrun " in line]
    assert said == [f"agentrun {verb} {run} --key '#1'" for verb, run in
                    (("approve", run_id), ("reject", run_id), ("input", parcel))]  # fmt: skip
    assert cli(*shlex.split(said[1])[1:], "--by", "boss").code == 0
    assert cli(*shlex.split(said[0])[1:], "--by", "boss").code == 14, "answered already"


def test_show_tells_the_question_that_a_run_asks_and_its_payload_only_when_asked(cli: Cli, waiting: Waiting) -> None:
    run_id = str(waiting("refund", {}))
    shown = cli("show", run_id).out
    assert "refund?" in shown
    assert "boss" in shown
    assert "s3cr3t" not in shown
    assert "s3cr3t" not in cli("show", run_id, "--json").out
    assert f"agentrun show {run_id} --payloads" in shown
    assert "s3cr3t" in cli("show", run_id, "--payloads").out
    told = cli("show", run_id, "--payloads", "--json").json["waits"]
    assert [(wait["kind"], wait["key"], wait["name"]) for wait in told] == [("approval", "#1", "refund?")]
    assert "s3cr3t" in str(told)


def test_what_only_a_token_answers_is_listed_as_such(cli: Cli, waiting: Waiting) -> None:
    run_id = waiting("call-me")
    shown = cli("inbox").out
    assert f"agentrun signal {run_id}" not in " ".join(shown.split())
    assert "token" in shown


def test_approving_records_who_and_why_and_is_done_once(
    cli: Cli, waiting: Waiting, result: Callable[[UUID], Any]
) -> None:
    run_id = waiting("refund", {})
    (asked,) = cli("inbox", "--json").json
    stale = cli("approve", str(run_id), "--digest", "0" * 64)
    assert (stale.code, stale.out) == (AlreadyDecided.exit_code, "")
    said = cli("approve", str(run_id), "--by", "ann", "--comment", "fine", "--digest", asked["digest"], "--json")
    assert (said.code, said.json["status"]) == (0, "queued")
    for late in ("approve", "reject"):
        assert cli(late, str(run_id)).code == AlreadyDecided.exit_code
    assert result(run_id) == [True, "ann", "fine", 50]


def test_an_answered_run_is_told_without_an_error_that_it_got_over(
    cli: Cli, client: Client, engine: Engine, rows: Rows
) -> None:
    tries: list[int] = []

    @durable("hesitant")
    async def hesitant(ctx: Context) -> bool:
        tries.append(1)
        if len(tries) == 1:
            raise Retryable("not yet")
        return (await ctx.approval("now?")).approved

    run_id = client.enqueue("hesitant")
    engine.run(run_id)
    rows.make_due(run_id)
    assert engine.run(run_id).outcome == "waiting"
    assert "not yet" in str(client.status(run_id).error)
    assert cli("approve", str(run_id)).out == f"run {run_id} is queued\n"


def test_rejecting_is_an_answer_and_the_user_of_the_shell_is_recorded(
    cli: Cli, waiting: Waiting, result: Callable[[UUID], Any]
) -> None:
    run_id = waiting("refund", {})
    assert cli("reject", str(run_id), "--comment", "no").code == 0
    approved, by, comment, _ = result(run_id)
    assert (approved, comment) == (False, "no")
    assert by.startswith("cli")


def test_edits_replace_what_was_asked_where_that_is_permitted(
    cli: Cli, waiting: Waiting, result: Callable[[UUID], Any]
) -> None:
    fixed, editable = waiting("refund", {}), waiting("refund", {"editable": True})
    assert cli("approve", str(fixed), "--edits", '{"amount": 1}').code == InvalidAnswer.exit_code
    assert cli("approve", str(editable), "--edits", '{"amount": 1}').code == 0
    assert result(editable)[3] == 1


def test_with_here_the_run_goes_on_in_this_process(cli: Cli, waiting: Waiting) -> None:
    approved = cli("approve", str(waiting("refund", {})), "--here", "--json")
    assert (approved.code, approved.json["status"]) == (0, "completed")
    given = cli("input", str(waiting("send")), '{"size": "s", "count": 1}', "--here", "--json")
    assert (given.code, given.json["status"]) == (0, "completed")


def test_resume_goes_on_with_a_queued_run_and_refuses_any_other(cli: Cli, client: Client, waiting: Waiting) -> None:
    run_id = waiting("refund", {})
    refused = cli("resume", str(run_id))
    assert refused.code == NotAllowed.exit_code
    assert "waiting" in refused.err
    client.approve(run_id, by="ann")
    assert cli("resume", str(run_id), "--json").json["status"] == "completed"


def test_input_is_given_as_json_or_on_stdin_and_refused_as_a_whole(
    cli: Cli, client: Client, waiting: Waiting, result: Callable[[UUID], Any]
) -> None:
    argument, piped = waiting("send"), waiting("send")
    for wrong in ('{"size": "xl", "count": 1}', '{"size": "s", "count": 0}', "{}", "7"):
        refused = cli("input", str(argument), wrong)
        assert (refused.code, refused.out) == (InvalidAnswer.exit_code, ""), wrong
    assert cli("input", str(argument), "{not json").code == 2
    assert client.status(argument).status is Status.WAITING
    assert cli("input", str(argument), '{"size": "s", "count": 2}').code == 0
    assert cli("input", str(piped), "-", stdin='{"size": "m", "count": 1, "note": "n"}').code == 0
    assert result(argument) == {"size": "s", "count": 2, "note": ""}
    assert result(piped) == {"size": "m", "count": 1, "note": "n"}


def test_without_a_terminal_there_is_no_form(cli: Cli, waiting: Waiting) -> None:
    refused = cli("input", str(waiting("send")))
    assert refused.code == InvalidRequest.exit_code
    assert "stdin" in refused.err


def test_one_of_several_inputs_is_named_by_its_key(cli: Cli, client: Client, waiting: Waiting) -> None:
    run_id = waiting("two")
    first, second = client.waits(run_id)
    refused = cli("input", str(run_id), "1")
    assert refused.code == InvalidRequest.exit_code
    assert first["step_key"] in refused.err
    assert cli("input", str(run_id), "1", "--key", second["step_key"]).code == 0
    assert [wait["step_key"] for wait in client.waits(run_id)] == [first["step_key"]]


def test_a_form_asks_member_by_member_until_each_fits(
    settings: Settings, waiting: Waiting, result: Callable[[UUID], Any], tmp_path: Path
) -> None:
    run_id = waiting("send")
    code, screen = on_a_terminal(["input", str(run_id)], ["xl", "s", "0", "many", "3", ""], settings, tmp_path)
    assert code == 0, screen
    for shown in ("what is sent?", "(s, m)", "enum", "minimum", "type"):
        assert shown in screen, screen
    assert result(run_id) == {"size": "s", "count": 3, "note": ""}


def on_a_terminal(arguments: list[str], lines: list[str], settings: Settings, cwd: Path) -> tuple[int, str]:
    """The command line on a pseudo terminal on which somebody has typed ahead; its exit code and what it showed."""
    ours, theirs = pty.openpty()
    env = {**os.environ, **environment.variables(settings), "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrun.cli", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=cwd, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown: list[bytes] = []

    def read() -> None:
        try:
            while got := os.read(ours, 4096):
                shown.append(got)
        except OSError:  # its end has gone
            return

    reader = threading.Thread(target=read)
    reader.start()
    os.write(ours, "".join(f"{line}\n" for line in lines).encode())
    try:
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        os.close(ours)
    return code, b"".join(shown).decode(errors="replace")


def test_signals_are_sent_kept_and_refused_for_a_run_that_has_ended(
    cli: Cli, client: Client, engine: Engine, waiting: Waiting, result: Callable[[UUID], Any]
) -> None:
    run_id = waiting("listen")
    assert cli("signal", str(run_id), "other").code == 0
    assert client.status(run_id).status is Status.WAITING
    assert cli("signal", str(run_id), "go", "-", "--expires", "1h", stdin='{"n": 1}').code == 0
    assert result(run_id) == {"n": 1}
    refused = cli("signal", str(run_id), "go")
    assert refused.code == NotAllowed.exit_code
    assert "completed" in refused.err


def test_one_signal_goes_to_several_runs_and_whoever_is_refused_is_told(
    cli: Cli, client: Client, waiting: Waiting, result: Callable[[UUID], Any]
) -> None:
    first, ended, second = waiting("listen"), waiting("listen"), waiting("listen")
    client.cancel(ended)
    start = str(second)[:-2]
    told = cli("signal", f"{first},{ended},{start}", "go", "7")
    assert told.code == NotAllowed.exit_code
    assert "cancelled" in told.err
    assert [str(run_id) in told.out for run_id in (first, ended, second)] == [True, False, True]
    assert (result(first), result(second)) == (7, 7)


def test_one_signal_to_several_runs_is_told_as_a_list_of_json(cli: Cli, client: Client, waiting: Waiting) -> None:
    first, ended, second = waiting("listen"), waiting("listen"), waiting("listen")
    client.cancel(ended)
    told = cli("signal", f"{first}, {ended} ,{second}", "go", "--json")
    assert (told.code, [row["id"] for row in told.json]) == (
        NotAllowed.exit_code, [str(run_id) for run_id in (first, ended, second)],
    )  # fmt: skip
    assert [row.get("status") for row in told.json] == ["queued", None, "queued"]
    assert ("cancelled" in told.json[1]["refused"], told.json[1]["exit_code"]) == (True, NotAllowed.exit_code)
    assert cli("signal", f"{second},{second}", "go").code == 0
    assert len(client.signals(second)) == 2


def test_nothing_is_sent_where_one_of_several_runs_cannot_be_meant(cli: Cli, client: Client, waiting: Waiting) -> None:
    run_id = waiting("listen")
    for other in ("", "not-a-run", "0" * 8):
        assert cli("signal", f"{run_id},{other}", "go").code in (InvalidRequest.exit_code, NotFound.exit_code)
    assert client.status(run_id).status is Status.WAITING


def test_a_place_without_a_run_is_named(cli: Cli, client: Client) -> None:
    run_id = client.enqueue("somewhere else")
    for named, place in ((f"{run_id},", "place 2 of 2"), (f"{run_id}, ,{run_id}", "place 2 of 3")):
        said = cli("signal", named, "go")
        assert said.code == InvalidRequest.exit_code
        assert place in said.err


def test_signals_that_came_early_are_listed(cli: Cli, waiting: Waiting) -> None:
    assert "no signal is kept" in cli("signals").err
    run_id, other = waiting("listen"), waiting("listen")
    cli("signal", str(run_id), "early", '{"code": "s3cr3t"}', "--by", "ann")
    cli("signal", str(other), "stop", "--expires", "1h")
    rows = cli("signals", "--json").json
    assert [(row["run_id"], row["name"]) for row in rows] == [(str(run_id), "early"), (str(other), "stop")]
    assert rows[0]["sent_by"] == "ann"
    assert [row["name"] for row in cli("signals", str(other), "--json").json] == ["stop"]
    shown = cli("signals").out
    assert "early" in shown
    assert "s3cr3t" not in shown
    assert "s3cr3t" in cli("signals", "--payloads").out
    assert cli("signals", "00000000-0000-7000-8000-000000000000").code == NotFound.exit_code


@pytest.mark.parametrize("command", [["approve"], ["reject"], ["input", "--key", "k"], ["resume"]])
def test_a_run_that_is_not_there_is_told_as_such(cli: Cli, command: list[str]) -> None:
    unknown = "00000000-0000-7000-8000-000000000000"
    data = ["1"] if command[0] == "input" else []
    refused = cli(command[0], unknown, *data, *command[1:])
    assert (refused.code, refused.out) == (NotFound.exit_code, "")
    assert unknown in refused.err


def test_what_does_not_wait_for_that_answer_is_told_so(cli: Cli, waiting: Waiting) -> None:
    run_id = waiting("listen")
    for command in (["approve", str(run_id)], ["reject", str(run_id)], ["input", str(run_id), "1"]):
        assert cli(*command).code == NotAllowed.exit_code
