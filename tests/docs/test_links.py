"""Links between the pages resolve, headings included; nothing of a machine or a workplace stands in a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.pages import ROOT, name_of, pages


def links_of(page: Path) -> Iterator[str]:
    for token in _inline(page):
        for child in token.children or ():
            href = child.attrGet("href") if child.type == "link_open" else None
            if isinstance(href, str):
                yield href


def anchors_of(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    headings = (tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open")
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _inline(page: Path) -> Iterator[Token]:
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    return (token for token in tokens if token.type == "inline")


def broken(page: Path, link: str) -> bool:
    """Whether a link leads nowhere. Links to other hosts are not followed."""
    if "://" in link or link.startswith("mailto:"):
        return False
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return True
    return bool(anchor) and anchor not in anchors_of(target)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert not [link for link in links_of(page) if broken(page, link)]


def test_a_broken_link_is_found() -> None:
    page = ROOT / "docs" / "README.md"
    assert broken(page, "guides/nothing.md")
    assert broken(page, "concepts/statuses.md#no-such-heading")
    assert not broken(page, "concepts/statuses.md#the-retry-decision")


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links_of(page) if "://" not in link}
        waiting += [target for target in targets - reached if target.suffix == ".md" and target.exists()]
    assert not {name_of(page) for page in set(pages()) - reached} - {"AGENTS.md"}


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_page_names_no_folder_of_somebodys_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:work|home|root|Users)/\S*", page.read_text(encoding="utf-8"))
