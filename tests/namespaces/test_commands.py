"""No command reaches into another namespace. A new one has to be named here, or the test of all of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer

from agentrun import Client
from agentrun.cli import app
from agentrun.core.errors import NamespaceMismatch, NotFound
from tests.namespaces.conftest import MARK, Cli, Other

MORE = {
    "signal": ["go", "1"],
    "input": ["1"],
    "resolve": ["--not-applied"],
    "wait": ["--timeout", "1s"],
    "replay": [],
}
"""What a command that takes a run needs besides."""

OF_TOKENS = {"step complete": ["1"], "step fail": ["message"], "step heartbeat": []}

OF_ALL = {
    "list": ["--json"],
    "inbox": ["--json"],
    "signals": ["--json"],
    "step list": ["--json", "--taken"],
    "budget": ["--json"],
    "workers": ["--json"],
    "doctor": ["--json"],
    "metrics": [],
    "redrive": ["--all", "--yes", "--json"],
    "sweep": ["--json"],
    "purge": ["--older-than", "0", "--dead", "--json"],
    "check": ["--json"],
    "kinds": ["--json"],
}
"""What shows or touches all that there is: in its own namespace."""

NONE = {
    "up": "starts servers and workers, with the settings of its environment",
    "web": "serves the client's verbs, which refuse as the commands do",
    "migrate": "the schema is everybody's",
    "enqueue": "stores a run in its own namespace",
}


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))
OF_RUNS = sorted(
    name for name, command in COMMANDS.items() if any(each.name == "run" and each.param_type_name == "argument"
    for each in command.params)
)  # fmt: skip


def test_every_command_is_played() -> None:
    assert set(COMMANDS) == {*OF_RUNS, *OF_TOKENS, *OF_ALL, *NONE}


def test_every_command_on_a_run_of_another_namespace_is_refused(cli: Cli, other: Other) -> None:
    before = other.stored()
    answers = {name: cli(*name.split(), str(other.runs["asks"]), *MORE.get(name, [])) for name in OF_RUNS}
    assert {name: said.code for name, said in answers.items()} == dict.fromkeys(OF_RUNS, NamespaceMismatch.exit_code)
    assert {name for name, said in answers.items() if "AGENTRUN_NAMESPACE" not in said.err} == set()
    assert cli("cancel", str(other.runs["asks"])[:18]).code == NotFound.exit_code, "nor by the start of its id"
    assert other.stored() == before


def test_every_token_of_another_namespace_is_unknown(cli: Cli, other: Other) -> None:
    before = other.stored()
    codes = {name: cli(*name.split(), other.token, *more).code for name, more in OF_TOKENS.items()}
    assert codes == dict.fromkeys(OF_TOKENS, NotFound.exit_code)
    assert other.stored() == before


def test_every_listing_shows_its_own_namespace_only_and_every_sweep_touches_no_other(cli: Cli, other: Other) -> None:
    before = other.stored()
    private = [MARK, *map(str, other.runs.values()), other.engine.owner_suffix, "gpu.other"]
    for name, arguments in OF_ALL.items():
        said = cli(*name.split(), *arguments)
        assert [word for word in private if word in said.out + said.err] == [], name
    assert other.stored() == before


@pytest.mark.parametrize("command", ["list", "inbox", "workers", "doctor"])
def test_an_operators_view_of_all_namespaces_is_asked_for(cli: Cli, other: Other, command: str, client: Client) -> None:
    here = client.enqueue("greet", "you")
    said = cli(command, "--all-namespaces", "--json")
    assert "other" in said.out
    assert "other" in cli(command, "--all-namespaces").out
    if command == "list":
        assert next(run["id"] for run in said.json["runs"]) == str(here), "newest first, wherever they are"
        assert {run["namespace"] for run in said.json["runs"]} == {"default", "other"}
        assert len(cli("list", "--all-namespaces", "--limit", "2", "--json").json["runs"]) == 2


def test_a_run_is_shown_wherever_it_is_where_that_is_asked_for(cli: Cli, other: Other) -> None:
    run_id = str(other.runs["asks"])
    for named in (run_id, run_id[:20]):
        assert cli("show", named, "--all-namespaces", "--json").json["namespace"] == "other"
    assert cli("show", "0" * 8, "--all-namespaces").code == NotFound.exit_code
