"""Every command once, through the command line's own front door, on a real database and broker."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from agentrun import Client, Status, register_agent, remote_step
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.settings import Settings
from agentrun.store.schema import current, head
from agentrun.testing import until
from tests.cli.conftest import Cli

Ended = Callable[..., UUID]


def test_enqueue_stores_the_run_with_everything_that_was_said(cli: Cli, client: Client) -> None:
    said = cli(
        "enqueue", "greet", '"bob"', "--queue", "express", "--priority", "3", "--delay", "1h30m", "--deadline", "2d",
        "--tag", "a", "--tag", "b", "--attribute", "n=1", "--attribute", "city=Graz", "--owner", "ann",
        "--idempotency-key", "k",
    )  # fmt: skip
    assert said.code == 0, said.err
    run = client.status(said.run_id)
    assert (run.kind, run.request, run.queue, run.priority) == ("greet", "bob", "express", 3)
    assert (run.tags, run.attributes, run.owner, run.idempotency_key) == (
        ["a", "b"], {"n": 1, "city": "Graz"}, "ann", "k",
    )  # fmt: skip
    assert run.due_at is not None
    assert run.deadline_at is not None
    assert (run.due_at - run.created_at).total_seconds() == pytest.approx(5400)
    assert (run.deadline_at - run.created_at).total_seconds() == pytest.approx(2 * 86400)


def test_enqueue_reads_its_request_from_stdin_and_tells_the_id_as_json(cli: Cli, client: Client) -> None:
    said = cli("enqueue", "render", "-", "--json", stdin='{"width": 2, "height": 3}')
    assert said.code == 0, said.err
    assert client.status(said.json["id"]).request == {"width": 2, "height": 3}
    assert client.status(said.json["id"]).queue == "gpu"


@pytest.mark.usefixtures("serving")
def test_enqueue_waits_for_the_end_and_keeps_the_result_to_itself(cli: Cli) -> None:
    said = cli("enqueue", "greet", '"bob"', "--wait")
    assert said.code == 0, said.err
    assert "is completed" in said.out
    assert "hello bob" not in said.out
    assert "hello bob" in cli("enqueue", "greet", '"bob"', "--wait", "--payloads").out
    told = cli("enqueue", "greet", '"bob"', "--wait", "--json").json
    assert told["status"] == "completed"
    assert "result" not in told


def test_list_filters_and_pages(cli: Cli, client: Client) -> None:
    ids = [str(client.enqueue("greet", "x", tags=["even" if n % 2 == 0 else "odd"])) for n in range(5)]
    client.cancel(ids[4])

    def listed(*options: str) -> list[str]:
        return [run["id"] for run in cli("list", "--json", *options).json["runs"]]

    assert listed() == ids[::-1]
    assert listed("--status", "cancelled") == [ids[4]]
    assert listed("--status", "cancelled", "--status", "queued") == ids[::-1]
    assert listed("--tag", "odd", "--kind", "greet") == [ids[3], ids[1]]
    assert listed("--reason", "cancelled") == [ids[4]]
    assert listed("--owner", "nobody") == []
    page = cli("list", "--json", "--limit", "2").json
    assert page["next"] == ids[3]
    assert listed("--limit", "2", "--before", page["next"]) == [ids[2], ids[1]]
    assert cli("list", "--limit", "5").out.count("greet") == 5


def test_show_tells_the_whole_story_of_a_failed_run_and_what_heals_it(cli: Cli, ended: Ended) -> None:
    run_id = ended("break", "s3cret", tags=["night"], owner="ann")
    said = cli("show", str(run_id))
    assert said.code == 0, said.err
    for part in (
        str(run_id), "failed (not_retryable)", "ann", "night", "enqueued", "claimed", "step_completed", "_greeting",
        "settled", "Fatal: the drawer is", f"agentrun redrive {run_id}",
    ):  # fmt: skip
        assert part in said.out
    assert "s3cret" not in said.out
    assert "\x1b" not in said.out, "a run's words must not command the terminal"


def test_show_calls_a_transaction_what_it_is(cli: Cli, client: Client, ended: Ended) -> None:
    run_id = ended("book", 2500)
    said = cli("show", str(run_id))
    assert "_book  [#1]  in one transaction with its record" in said.out
    (row,) = [line for line in said.out.splitlines() if line.strip(" │").startswith("#1")]
    assert "transaction" in row
    assert "exactly once" in row
    assert "read_only" not in said.out
    assert [(step.kind, step.name) for step in client.steps(run_id)] == [("transaction", "_book")]


def test_timeline_draws_what_the_run_did_and_how_long_each_step_took(cli: Cli, ended: Ended) -> None:
    run_id = str(ended("linger", 0.3))
    said = cli("timeline", run_id)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    (executing,) = [line for line in lines if line.startswith("executing ") and "█" in line]
    steps = [line for line in lines if line.startswith("  sleep [#")]
    assert [line.split()[1] for line in steps] == ["[#1]", "[#2]", "[#3]"]
    starts = [line.index("▬") for line in steps]
    assert starts == sorted(starts)
    assert starts[0] >= executing.index("█")
    assert starts[0] < starts[2], "one after the other"
    assert "Where it went" in said.out
    assert [line for line in lines if line.split()[:3] == ["sleep", "step", "3"]], "three of them, in all"


def test_timeline_as_json_has_the_same_in_seconds(cli: Cli, client: Client, ended: Ended) -> None:
    run_id = ended("linger", 0.3)
    told = cli("timeline", str(run_id), "--json").json
    assert (told["id"], told["kind"], told["status"]) == (str(run_id), "linger", "completed")
    assert {phase["doing"] for phase in told["phases"]} <= {"queued", "executing"}
    assert [step["key"] for step in told["steps"]] == ["#1", "#2", "#3"]
    assert all(0.09 < step["seconds"] < 5 for step in told["steps"])
    run = client.status(run_id)
    assert run.finished_at is not None
    assert sum(told["spent"].values()) == pytest.approx((run.finished_at - run.created_at).total_seconds())


def test_timeline_puts_the_shorter_ones_together(cli: Cli, ended: Ended) -> None:
    said = cli("timeline", str(ended("linger", 0.5)), "--most", "2")
    drawn = [line for line in said.out.splitlines() if set(line) & set("▬█")]
    assert len(drawn) == 2
    assert " shorter" in said.out
    assert cli("timeline", "0" * 36, "--most", "0").code == 2, "none is no picture"


def test_show_tells_payloads_only_when_asked(cli: Cli, ended: Ended) -> None:
    run_id = str(ended("greet", "s3cret"))
    assert "s3cret" not in cli("show", run_id, "--json").out
    assert "s3cret" not in cli("show", run_id).out
    assert cli("show", run_id, "--payloads").out.count("hello s3cret") == 2, "the run's result and its step's"
    told = cli("show", run_id, "--payloads", "--json").json
    assert (told["request"], told["result"]) == ("s3cret", "hello s3cret")
    assert [event["type"] for event in told["events"]] == ["enqueued", "claimed", "step_completed", "settled"]
    assert [step["name"] for step in told["steps"]] == ["_greeting"]


def test_arguments_of_a_write_in_flight_are_payloads_too(cli: Cli, client: Client, ended: Ended) -> None:
    run_id = str(ended("pay"))
    said = cli("show", run_id)
    assert "write in flight" in said.out
    assert client.steps(run_id)[0].idempotency_key in said.out
    told = cli("show", run_id, "--json").json
    assert all("args" not in write for write in told["error"].get("in_flight", ()))
    assert f"agentrun resolve {run_id}" in told["heal"], "a person has to find out whether it was paid"


def test_show_says_why_a_run_does_not_move(cli: Cli, client: Client) -> None:
    later, now = client.enqueue("greet", "x", delay=3600), client.enqueue("greet", "x", queue="gpu")
    assert "due in" in cli("show", str(later), "--json").json["why"]
    told = cli("show", str(now), "--json").json
    assert "no live worker consumes `gpu`; no worker was seen" in told["why"]
    assert told["heal"] == "celery -A agentrun.broker.default worker -P threads -c 100 -Q gpu"


def test_show_says_when_the_workers_do_not_know_the_kind(
    cli: Cli, client: Client, make_engine: Callable[..., Engine]
) -> None:
    make_engine(queues=("agentrun",)).announce()
    run_id = client.enqueue("somewhere-else", None)
    until(lambda: "has a body for it" in cli("show", str(run_id), "--json").json["why"])


def test_a_run_may_be_named_by_the_start_of_its_id(cli: Cli, client: Client) -> None:
    run_id = str(client.enqueue("greet", "x"))
    assert cli("show", run_id[:20], "--json").json["id"] == run_id
    assert cli("cancel", run_id.replace("-", "")[:16], "--json").json["id"] == run_id


@pytest.mark.usefixtures("serving")
def test_tail_follows_a_run_to_its_end(cli: Cli, client: Client) -> None:
    run_id = client.enqueue("linger", 1.0)
    said = cli("tail", str(run_id))
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert "enqueued" in lines[0]
    assert "settled" in lines[-2]
    assert lines[-1] == f"run {run_id} is completed"
    events = [json.loads(line) for line in cli("tail", str(run_id), "--json").out.splitlines()]
    assert [event["type"] for event in events] == [event.type for event in client.events(run_id)]
    later = cli("tail", str(run_id), "--json", "--after", str(events[3]["seq"])).out.splitlines()
    assert [json.loads(line) for line in later] == events[4:]


@pytest.mark.usefixtures("serving")
def test_wait_ends_with_the_run(cli: Cli, client: Client) -> None:
    said = cli("wait", str(client.enqueue("linger", 0.5)), "--json", "--payloads", "--timeout", "30s")
    assert said.code == 0, said.err
    assert (said.json["status"], said.json["result"]) == ("completed", "gone")


def test_cancel_ends_a_queued_run_and_says_by_whom(cli: Cli, client: Client) -> None:
    run_id = client.enqueue("greet", "x")
    said = cli("cancel", str(run_id), "--by", "ann")
    assert said.out == f"run {run_id} is cancelled\n"
    assert client.status(run_id).status is Status.CANCELLED
    assert client.events(run_id)[-1].data["by"] == "ann"
    assert cli("cancel", str(run_id)).code == 0, "twice is no error"


def test_redrive_puts_a_failed_run_back(cli: Cli, client: Client, ended: Ended) -> None:
    run_id = ended("break", "x")
    told = cli("redrive", str(run_id), "--json").json
    assert told["status"] == "queued"
    assert client.events(run_id)[-1].type == "redriven"
    assert client.events(run_id)[-1].data["by"].startswith("cli")


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        ("break", ["redrive"]),
        ("pay", ["resolve", "--applied", "--result", "null"]),
        ("pay", ["resolve", "--not-applied"]),
    ],
)
def test_a_run_that_goes_on_is_told_without_the_error_that_stopped_it(
    cli: Cli, ended: Ended, kind: str, verb: list[str]
) -> None:
    run_id = ended(kind, "x" if kind == "break" else None)
    said = cli(verb[0], str(run_id), *verb[1:])
    assert (said.code, said.out) == (0, f"run {run_id} is queued\n"), said.err


def test_resolve_says_which_write_is_in_flight_still(cli: Cli, client: Client, ended: Ended) -> None:
    run_id = ended("pay-two")
    one, other = (step.key for step in client.steps(run_id))
    said = cli("resolve", str(run_id), "--key", one, "--not-applied")
    assert said.out.endswith(f", and has a write in flight still: {other}\n"), said
    assert "nobody knows" not in said.out


def test_what_heals_an_interrupted_write_can_be_pasted_changes_nothing_and_tells_both_answers(
    cli: Cli, client: Client, ended: Ended
) -> None:
    run_id = ended("pay")
    heal = cli("show", str(run_id), "--json").json["heal"]
    assert heal == f"agentrun resolve {run_id}"
    said = cli(*shlex.split(heal)[1:])
    err = " ".join(said.err.replace("│", " ").split())
    assert (said.code, "--applied with --result JSON" in err, "--not-applied" in err) == (2, True, True)
    assert f"agentrun show {run_id}" in err
    assert [step.status for step in client.steps(run_id)] == ["started"]


def test_resolve_tells_an_interrupted_write_and_the_run_goes_on(
    cli: Cli, client: Client, engine: Engine, ended: Ended
) -> None:
    run_id = ended("pay", None)
    assert f"agentrun resolve {run_id}" in cli("show", str(run_id)).out
    told = cli("resolve", str(run_id), "--applied", "--result", '"receipt 4711"', "--json").json
    assert told["status"] == "queued"
    assert engine.run(run_id).outcome == "completed"
    assert client.status(run_id).result == "receipt 4711"
    assert [event.data["by"][:3] for event in client.events(run_id) if event.type == "resolved"] == ["cli"]


def test_a_result_that_does_not_fit_is_said_again_by_the_command_that_show_names(
    cli: Cli, client: Client, engine: Engine, ended: Ended
) -> None:
    run_id = ended("pay")
    assert cli("resolve", str(run_id), "--applied", "--result", "null").code == 0
    engine.run(run_id)
    stands = cli("show", str(run_id), "--json").json
    assert stands["heal"] == f"agentrun resolve {run_id} --key '#1' --applied --result JSON"
    assert "does not fit its function" in stands["why"]
    assert "redrive" not in cli("show", str(run_id)).out.splitlines()[-1]
    *verb, _ = shlex.split(stands["heal"])[1:]
    assert cli(*verb, '"paid"').out == f"run {run_id} is queued\n"
    assert engine.run(run_id).outcome == "completed"
    assert client.status(run_id).result == "paid"


def test_another_failure_after_a_resolve_is_healed_by_a_redrive(cli: Cli, engine: Engine, ended: Ended) -> None:
    run_id = ended("pay-and-break")
    cli("resolve", str(run_id), "--applied", "--result", '"paid"')
    engine.run(run_id)
    assert cli("show", str(run_id), "--json").json["heal"] == f"agentrun redrive {run_id}"


def test_check_finds_nothing_wrong_where_everything_runs(cli: Cli, engine: Engine, known: Registry) -> None:
    engine.announce()
    cli("sweep")
    until(lambda: cli("check", "--json").json["findings"][5]["level"] == "ok", tell=lambda: cli("check").out)
    said = cli("check", "--json")
    assert said.code == 0
    assert said.json["ok"] is True
    assert {each["about"]: each["level"] for each in said.json["findings"]} == dict.fromkeys(
        ("settings", "database", "schema", "clock", "sweep", "workers", "broker", "kinds"), "ok"
    )


def test_check_tells_errors_apart_from_warnings(cli: Cli, kinds: Registry) -> None:
    kinds._kinds = {}  # whatever other tests' modules have registered
    said = cli("check", env={"AGENTRUN_IMPORTS": None})
    assert said.code == 0, "warnings are no errors"
    assert "0 errors, 3 warnings" in said.err
    said = cli("check", "--json", env={"AGENTRUN_BROKER_URL": "redis://127.0.0.1:1/0"})
    assert said.code == 3
    assert {each["about"] for each in said.json["findings"] if each["level"] == "error"} == {"broker"}
    assert {each["about"] for each in said.json["findings"] if each["level"] == "warning"} == {"sweep", "workers"}
    assert "1 error, 2 warnings" in said.err


def test_migrate_brings_an_empty_database_up_and_down_again(cli: Cli, empty_database_url: str) -> None:
    env = {"AGENTRUN_DATABASE_URL": empty_database_url}
    assert cli("migrate", "--json", env=env).json == {"from": None, "to": head()}
    assert "already" in cli("migrate", env=env).out
    refused = cli("migrate", "--to", "base", env=env)
    assert refused.code == 11
    assert "every run" in refused.err
    assert current(empty_database_url) == head()
    assert cli("migrate", "--to", "base", "--yes", "--json", env=env).json == {"from": head(), "to": None}


def test_purge_counts_first_and_then_removes(cli: Cli, client: Client, ended: Ended) -> None:
    run_id = ended("greet", "bob")
    assert cli("purge", "--older-than", "1d").out == "0 runs removed, with 0 steps and 0 events\n"
    assert cli("purge", "--older-than", "0", "--dry-run", "--json").json == {"dry_run": True, "runs": 1}
    assert client.status(run_id).status is Status.COMPLETED
    assert cli("purge", "--older-than", "0", "--status", "failed", "--json").json["runs"] == 0
    assert cli("purge", "--older-than", "0", "--status", "completed,failed").out.startswith("1 run removed, with ")
    assert client.list() == []


def test_sweep_makes_one_pass_now(cli: Cli, client: Client) -> None:
    assert cli("sweep").out == "nothing to do\n"
    run_id = client.enqueue("greet", "x", deadline=0)
    assert cli("sweep", "--json").json["expired"] == 1
    assert client.status(run_id).reason == "deadline_exceeded"


def test_kinds_tells_requests_and_options(cli: Cli, settings: Settings) -> None:
    told = {kind["name"]: kind for kind in cli("kinds", "--json").json["kinds"]}
    assert told["render"]["queue"] == "gpu"
    assert told["render"]["request"]["required"] == ["width", "height"]
    assert told["greet"]["queue"] == settings.queue
    assert "width, height" in cli("kinds").out


def _render(page: int) -> str:
    return f"page {page}"


def test_kinds_shows_an_agent_by_its_name_and_the_remote_steps(cli: Cli, kinds: Registry) -> None:
    register_agent(Agent(TestModel(), name="desk"), name="support", kinds=kinds)
    remote_step("render-page", effect="read_only")(_render)
    said = cli("kinds")
    assert "agent desk" in said.out
    assert "AgentBody" not in said.out
    (line,) = [line for line in said.out.splitlines() if line.startswith("render-page")]
    assert "remote step" in line
    told = cli("kinds", "--json").json
    assert {kind["name"]: kind["agent"] for kind in told["kinds"]}["support"] == "desk"
    step = {step["name"]: step for step in told["remote_steps"]}["render-page"]
    assert (step["effect"], step["function"].startswith("tests.cli.")) == ("read_only", True)


def test_an_unknown_run_is_not_found_by_any_command(cli: Cli) -> None:
    for command in ("show", "tail", "wait", "cancel", "redrive"):
        said = cli(command, str(uuid4()))
        assert (said.code, said.out) == (9, ""), command
