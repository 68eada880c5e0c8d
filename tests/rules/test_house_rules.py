"""The house rules hold in the code, and each of them can tell: a good sample passes, a bad one is found."""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.rules import house
from tests.rules.house import RULES, Finder, Rule

ROOT = Path(__file__).parents[2]
EACH_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@cache
def sources() -> list[tuple[PurePosixPath, ast.Module]]:
    files = [file for folder in ("agentrun", "tasks", "migrations") for file in sorted((ROOT / folder).rglob("*.py"))]
    return [(PurePosixPath(file.relative_to(ROOT).as_posix()), ast.parse(file.read_text())) for file in files]


@EACH_RULE
def test_the_code_keeps_the_rule(rule: Rule) -> None:
    found = [f"{path}:{line}" for path, tree in sources() for line in rule.find(path, tree)]
    assert found == [], f"{rule.name}, because {rule.why}"


@EACH_RULE
def test_a_good_sample_passes(rule: Rule) -> None:
    assert list(rule.find(PurePosixPath(rule.where), ast.parse(rule.good))) == []


@EACH_RULE
def test_a_bad_sample_is_found(rule: Rule) -> None:
    assert list(rule.find(PurePosixPath(rule.where), ast.parse(rule.bad)))


def _breaks(rule: Finder, name: str) -> bool:
    files = [ROOT / name] if name.endswith(".py") else list((ROOT / name).rglob("*.py"))
    return any(list(rule(PurePosixPath("elsewhere.py"), ast.parse(file.read_text()))) for file in files)


@pytest.mark.parametrize(
    ("allowed", "rule"),
    [
        (house.MAY_UPDATE_STATUS, house._status_updates),
        (house.MAY_GIVE_BIRTH, house._births),
        (house.MAY_CATCH_EVERYTHING, house._catches_everything),
        (house.SQL_HOMES, house._sql_imports),
    ],
    ids=["status", "births", "everything", "SQL"],
)
def test_every_exception_to_a_rule_is_still_needed(allowed: Collection[str], rule: Finder) -> None:
    """An allowance for a file that no longer needs it would hide the next violation there."""
    assert [name for name in sorted(allowed) if not _breaks(rule, name)] == []


def test_there_is_code_to_look_at() -> None:
    assert len(sources()) > 50
