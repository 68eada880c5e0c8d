"""Every scenario, every bug of others and every symptom is told of, with a test that exists or why it cannot happen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FAILURE_MODES = ROOT / "docs" / "reference" / "failure-modes.md"
OPERATING = ROOT / "docs" / "guides" / "operating.md"
SCENARIOS = {1: 4, 2: 9, 3: 7, 4: 3, 5: 11, 6: 8, 7: 1, 8: 14, 9: 10, 10: 8, 11: 7}
"""How many each part has."""

_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(tests/[\w/]+\.py)\)")


def rows(page: Path, numbers: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a page's tables whose first cell is such a number, by that."""
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| ") and re.fullmatch(numbers, cells[0]):
            yield cells[0], cells


@lru_cache
def names_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def not_there(text: str) -> set[str]:
    """The tests that a text names and that do not exist."""
    named = {(path, "test_" + name.replace(" ", "_")) for name, path in _LINK.findall(text)}
    return {f"{path}::{name}" for path, name in named if not (ROOT / path).is_file() or name not in names_of(path)}


def unshown(page: Path, numbers: str) -> set[str]:
    """The rows that name no test, and do not say what excludes them."""
    return {
        number for number, cells in rows(page, numbers)
        if not _LINK.search(cells[-1]) and not re.match(r"Excluded: \w", cells[2])
    }  # fmt: skip


@pytest.mark.parametrize(
    ("page", "numbers", "all_of_them"),
    [
        (FAILURE_MODES, r"2\.\d+\.\d+", [f"2.{part}.{n + 1}" for part in SCENARIOS for n in range(SCENARIOS[part])]),
        (FAILURE_MODES, r"\d+", [str(number) for number in range(1, 62)]),
        (OPERATING, "[A-S]", list("ABCDEFGHIJKLMNOPQRS")),
    ],
    ids=["scenarios", "bugs", "symptoms"],
)  # fmt: skip
def test_every_number_is_there_once_with_a_test_or_what_excludes_it(
    page: Path, numbers: str, all_of_them: list[str]
) -> None:
    assert [number for number, _ in rows(page, numbers)] == all_of_them
    assert unshown(page, numbers) == set()


@pytest.mark.parametrize("page", [FAILURE_MODES, OPERATING], ids=lambda page: page.stem)
def test_every_test_that_is_named_exists(page: Path) -> None:
    assert not_there(page.read_text(encoding="utf-8")) == set()


def test_a_test_that_is_gone_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| 1 | wrong | right | [of two claims one executes](../../tests/races/test_moves.py) |\n"
        "| 2 | wrong | right | [of two claims none executes](../../tests/races/test_moves.py) |\n"
        "| 3 | wrong | right | - |\n| 4 | wrong | Excluded: by a CHECK | - |\n"
    )
    assert not_there(page.read_text()) == {"tests/races/test_moves.py::test_of_two_claims_none_executes"}
    assert unshown(page, r"\d+") == {"3"}
