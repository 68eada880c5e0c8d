"""The tables of the reference say what the code says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import agentrun
import agentrun.agents
from agentrun import AsyncClient, Client, Context
from agentrun.broker.flower import FlowerSettings
from agentrun.cli import app
from agentrun.core import errors
from agentrun.core.words import EventType, FailureClass, Reason, Status
from agentrun.embedded.programs import SHARED
from agentrun.runtime.kinds import durable
from agentrun.settings import PREFIX, Settings
from agentrun.testing import environment
from tests.docs.generated import GENERATED, renewed
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"
NONE = "\N{EN DASH}"


def rows_of(page: Path, first: str) -> Iterator[list[str]]:
    """The rows of the table whose first column is called `first`."""
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith(f"| {first} |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|- "):
            yield cells


def verbs_of(face: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(face, callable) if not name.startswith("_")}


def words_in(cell: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", cell))


@pytest.mark.parametrize(("page", "name"), GENERATED, ids=str)
def test_what_is_generated_is_fresh(page: str, name: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert renewed(ROOT / page, name, GENERATED[page, name]()) == text, "run `python -m tests.docs.generated`"


# ---- settings


def test_the_settings_page_has_every_setting_with_its_default() -> None:
    said = {cells[0].strip("`"): cells[1].strip("`") for cells in rows_of(REFERENCE / "settings.md", "variable")}
    there = {f"{PREFIX}{name.upper()}": _shown(field.default) for name, field in Settings.model_fields.items()}
    flower = {
        f"{PREFIX}FLOWER_{name.upper()}": _shown(field.default) for name, field in FlowerSettings.model_fields.items()
    }
    others = {"AGENTRUN_STATE_DIR", "AGENTRUN_TEST_DATABASE_URL", "AGENTRUN_TEST_BROKER_URL"}
    assert said == there | flower | dict.fromkeys(others, NONE)


def _shown(default: object) -> str:
    match default:
        case None | ():
            return NONE
        case bool():
            return str(default).lower()
        case float():
            return f"{default:.12g}"
        case _:
            return str(default)


def test_a_setting_of_the_page_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.variables(Settings(lease_seconds=60, imports=("a", "b"))).items():
        monkeypatch.setenv(name, value)
    assert (Settings().lease_seconds, Settings().imports) == (60, ("a", "b"))


# ---- errors


def _errors() -> list[type[errors.AgentrunError]]:
    found = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [error for error in found if issubclass(error, errors.AgentrunError) and error is not errors.AgentrunError]


def test_the_errors_page_has_every_error_with_its_parent_and_exit_code() -> None:
    said = {
        cells[0].strip("`"): (cells[1].strip("`"), int(cells[2])) for cells in rows_of(REFERENCE / "errors.md", "error")
    }
    assert said == {error.__name__: (error.__bases__[0].__name__, error.exit_code) for error in _errors()}


# ---- commands


def test_the_command_lines_page_has_every_command_option_and_exit_code() -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert not {name for name in commands if not re.search(rf"\| `[^|]*\b{name}\b[^|]* \|", text)}
    options = {tuple(each.opts + each.secondary_opts) for command in commands.values() for each in command.params}
    options = {names for names in options if names[0].startswith("-")}
    assert not {names for names in options if not any(f"`{name}" in text for name in names)}
    assert not {error.__name__ for error in _errors() if error.exit_code > 1 and f"| {error.exit_code} |" not in text}


def test_the_command_lines_page_says_where_roots_data_are() -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    assert f"As root, PostgreSQL's data and log are in `{SHARED}/postgres-…`" in text


def test_every_module_of_store_and_runtime_has_an_owner() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    modules = [path for part in ("store", "runtime") for path in (ROOT / "agentrun" / part).glob("*.py")]
    names = {f"`{path.parent.name}/{path.name}`" for path in modules if path.name != "__init__.py"}
    assert not {name for name in names if name not in text}


# ---- words


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/concepts/statuses.md", {*Status}),
        ("docs/guides/operating.md", {*Reason} - {Reason.COMPLETED, Reason.CANCELLED}),
        ("docs/reference/failures.md", {*FailureClass}),
        ("docs/reference/events.md", {*EventType}),
    ],
)
def test_a_page_explains_every_word_of_its_subject(page: str, words: set[str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not {str(word) for word in words if f"`{word}`" not in text} - NOT_THERE_YET


NOT_THERE_YET = {"policy_denied", "approval_denied"}
"""Reasons of which nothing makes use yet."""


# ---- the Python page


def test_the_python_page_names_everything_that_can_be_imported() -> None:
    text = (REFERENCE / "python-api.md").read_text(encoding="utf-8")
    public: list[ModuleType] = [agentrun, agentrun.agents]
    names = {name for module in public for name in module.__all__}
    assert not {name for name in names if not re.search(rf"\b{name}\b", text)} - {"ToolFacts"}


@pytest.mark.parametrize(("first", "face"), [("verb", Client), ("verb", Context), ("record", None)])
def test_the_python_page_has_every_verb(first: str, face: type | None) -> None:
    said = {cells[0] for cells in rows_of(REFERENCE / "python-api.md", first)}
    if face is None:
        for record in (agentrun.Run, agentrun.Step, agentrun.Event, agentrun.Usage):
            members = {field.name for field in dataclasses.fields(record)}
            row = next(c for c in rows_of(REFERENCE / "python-api.md", "record") if c[0] == f"`{record.__name__}`")
            assert words_in(row[1]) == members
        return
    verbs = verbs_of(face)
    missing = {name for name in verbs - LEFT_OUT if not any(cell.startswith(f"`{name}(") for cell in said)}
    assert not missing


LEFT_OUT = {"close", "perform", "wishes", "threads", "sleep_until", "child_result", "webhook_spec"}
"""Told in the text or beside another one, or for bindings of other frameworks only."""


def test_the_async_client_has_the_verbs_that_the_page_says() -> None:
    said = {re.match(r"`(\w+)\(", cells[0]) for cells in rows_of(REFERENCE / "python-api.md", "verb")}
    verbs = {match[1] for match in said if match} & verbs_of(Client)
    assert verbs <= verbs_of(AsyncClient)


@pytest.mark.parametrize("function", [durable, agentrun.effect, agentrun.agents.register_agent])
def test_the_python_page_has_every_option(function: Callable[..., object]) -> None:
    row = next(c for c in rows_of(REFERENCE / "python-api.md", "name") if c[0].startswith(f"`{function.__name__}("))
    options = {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert {name for name in options if not re.search(rf"\b{name}\b", row[0])} <= {"kinds"}
