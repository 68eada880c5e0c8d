"""The pages of the documentation, and their fenced blocks.

A fence's info string is a language, then words that say how the block is tested:

- `file=NAME`: the block is a file of that name, beside the commands that follow
- `terminal=NAME`: the commands run in another terminal, which stays open (console blocks of a first run)
- `not-run="reason"`: the block is not executed; the reason is shown by `test_what_is_not_run_says_why`
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
FIRST_RUNS = ("README.md", "docs/start/first-run.md")
"""Pages whose console blocks are one session with real processes; everywhere else they are single commands."""

KNOWN = {"file", "terminal", "not-run"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `line` is the line of its fence, counted from 1."""

    page: Path
    line: int
    language: str
    said: dict[str, str]
    text: str

    @property
    def where(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def runs(self) -> bool:
        return "not-run" not in self.said


def pages() -> list[Path]:
    """README, the other pages of the root, and everything in docs/."""
    root = [ROOT / name for name in ("README.md", "CHANGELOG.md", "AGENTS.md")]
    return [*root, *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in their order, those of some languages where any are named."""
    return [block for block in _fences(page) if not languages or block.language in languages]


def _fences(page: Path) -> Iterator[Block]:
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and token.map is not None:
            language, *words = shlex.split(token.info) or [""]
            said = dict(word.partition("=")[::2] for word in words)
            yield Block(page, token.map[0] + 1, language, said, token.content)
