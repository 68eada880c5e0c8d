"""Every code block of the documentation runs, or says why it does not."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from agentrun.cli import app
from tests.docs.pages import FIRST_RUNS, KNOWN, ROOT, Block, blocks_of, name_of, pages
from tests.docs.sessions import commands_of, missing

LANGUAGES = {"python", "console", "text", "mermaid", "sql", "json", "ini", "toml", "yaml", "dotenv"}
RUNNABLE = ("python", "console", "sql")
PAGES_WITH_CODE = [page for page in pages() if any(block.runs for block in blocks_of(page, *RUNNABLE))]


def test_every_block_names_its_language_and_is_marked_as_the_tests_understand() -> None:
    for page in pages():
        for block in blocks_of(page):
            assert block.language in LANGUAGES, f"{block.where}: {block.language!r} is no language of ours"
            assert block.said.keys() <= KNOWN, f"{block.where}: {block.said}"


def test_what_is_not_run_says_why(record_property: pytest.RecordProperty) -> None:
    left_out = [block for page in pages() for block in blocks_of(page, *RUNNABLE) if not block.runs]
    for block in left_out:
        assert len(block.said["not-run"]) > 10, f"{block.where} has to say why it is not run"
        record_property(block.where, block.said["not-run"])
        print(f"{block.where} is not run: {block.said['not-run']}")


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=name_of)
def test_the_blocks_of_a_page_run(
    page: Path,
    as_a_reader: Path,
    served: object,
    close_clients: Callable[[dict[str, Any]], None],
) -> None:
    with _module(f"docs_{page.stem.replace('-', '_')}") as module:
        close_clients(module.__dict__)
        printed = ""
        for block in blocks_of(page, *RUNNABLE, "text"):
            if block.runs and not (block.language == "console" and name_of(page) in FIRST_RUNS):
                printed = _run(block, module, as_a_reader, printed)


def _run(block: Block, module: ModuleType, folder: Path, printed: str) -> str:
    """What the block printed. A `text` block is what the block above it prints."""
    match block.language:
        case "text":
            lost = missing(block.text.splitlines(), printed)
            assert lost is None, f"{block.where}: {lost!r} is not what is printed:\n{printed}"
            return ""
        case "console":
            return _commands(block, module)
        case "sql":
            with psycopg.connect(os.environ["AGENTRUN_DATABASE_URL"], autocommit=True) as connection:
                connection.execute(block.text.encode())
            return ""
        case _ if "file" in block.said:
            (folder / block.said["file"]).write_text(block.text)
            importlib.import_module(Path(block.said["file"]).stem)
            return ""
        case _:
            return _executed(block, module)


def test_a_page_that_says_something_else_than_what_is_printed_fails(tmp_path: Path) -> None:
    page = ROOT / "docs" / "a-page-for-this-test.md"
    with _module("docs_a_page") as module:
        shown = Block(page, 1, "python", {}, "print('one', 'thing')")
        printed = _run(shown, module, tmp_path, "")
        assert _run(Block(page, 3, "text", {}, "one …"), module, tmp_path, printed) == ""
        with pytest.raises(AssertionError, match="another"):
            _run(Block(page, 3, "text", {}, "another thing"), module, tmp_path, printed)
        with pytest.raises(AssertionError, match="one"):
            _run(Block(page, 3, "text", {}, "one thing"), module, tmp_path, "")


@contextlib.contextmanager
def _module(name: str) -> Iterator[ModuleType]:
    """The blocks of a page are one module."""
    module = ModuleType(name)
    sys.modules[name] = module
    try:
        yield module
    finally:
        del sys.modules[name]


def _executed(block: Block, module: ModuleType) -> str:
    # As many lines as stand above it in the page, so that a traceback names the page's line.
    code = compile("\n" * block.line + block.text, str(block.page), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, module.__dict__)
    return out.getvalue()


def _commands(block: Block, module: ModuleType) -> str:
    """`agentrun` commands, inside this process. `$RUN` is the page's `run_id`."""
    for command in commands_of(block.text):
        program, *arguments = shlex.split(command.text.replace("$RUN", str(getattr(module, "run_id", ""))))
        assert program == "agentrun", f"{block.where}: only agentrun's own commands run here, not {program}"
        result = CliRunner().invoke(app, arguments)
        lost = missing(command.expected, result.output)
        assert lost is None, f"{block.where}: `{command.text}` does not print {lost!r}, but:\n{result.output}"
        assert result.exit_code == 0 or command.expected, f"{block.where}: {result.output}"
    return ""
