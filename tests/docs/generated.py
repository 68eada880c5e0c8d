"""What the pages take from the code. `python -m tests.docs.generated` writes it anew; a test sees that it is fresh."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrun.core.moves import BORN, MOVES
from agentrun.core.words import FINAL, Status
from agentrun.telemetry.gauges import GAUGES
from tests.docs.pages import ROOT
from tests.statements import costs

_BIRTHS = {Status.QUEUED: "enqueue", Status.RUNNING: "run"}


def moves() -> str:
    """The status diagram, from the list of legal moves."""
    lines = [f"    [*] --> {status}: {_BIRTHS[status]}" for status in sorted(BORN)]
    verbs: dict[tuple[Status, Status], list[str]] = {}
    for move in MOVES:
        for source in sorted(move.sources, key=list(Status).index):
            for target in sorted(move.targets, key=list(Status).index):
                verbs.setdefault((source, target), []).append(move.verb.replace("_", " "))
    lines += [f"    {source} --> {target}: {', '.join(words)}" for (source, target), words in verbs.items()]
    lines += [f"    {status} --> [*]" for status in sorted(FINAL) if not any(status in move.sources for move in MOVES)]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def gauges() -> str:
    """The metrics, with their labels beside the namespace."""
    rows = [
        f"| `agentrun_{name}` | {', '.join(f'`{label}`' for label in labels if label != 'namespace')} | {told} |"
        for name, (labels, told) in GAUGES.items()
    ]
    return "\n".join(["| metric | labels | says |", "|---|---|---|", *rows])


GENERATED: Mapping[tuple[str, str], Callable[[], str]] = {
    ("docs/concepts/statuses.md", "moves"): moves,
    ("docs/guides/observability.md", "gauges"): gauges,
    ("docs/guides/sizing.md", "costs"): costs.table,
}
"""By page and by the name in its markers."""


def renewed(page: Path, name: str, content: str) -> str:
    """The page's text with fresh content between the markers of `name`."""
    pattern = re.compile(rf"(<!-- generated: {name} [^>]*-->\n).*?(<!-- end -->)", re.DOTALL)
    text, found = pattern.subn(lambda match: f"{match[1]}{content}\n{match[2]}", page.read_text(encoding="utf-8"))
    assert found == 1, f"{page} needs one pair of markers of `{name}`"
    return text


if __name__ == "__main__":
    for (page_name, what), make in GENERATED.items():
        page = ROOT / page_name
        page.write_text(renewed(page, what, make()), encoding="utf-8")
