"""The verdict on a replay: whether today's code took the recorded way, and where it parted from it. Decides pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentrun.core.counting import counted
from agentrun.core.errors import NonDeterminism
from agentrun.core.words import ENDED, Status, StepKind
from agentrun.runtime.journals import Journal
from agentrun.runtime.settling import Broke, Ending, Finished


@dataclass(frozen=True, slots=True)
class Parting:
    """Where today's code leaves the recorded way: the key, what is recorded there, and what comes now."""

    key: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return f"at {self.key}: recorded is {self.recorded}; today's code {self.now}"


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a replay. True where today's code takes the recorded way as far as it goes."""

    run_id: UUID
    kind: str
    recorded: int
    """Steps in the journal that have ended."""

    replayed: int
    ending: str
    """How today's code ends: `completes`, `fails`, or `goes on` beyond the journal."""

    goes_on: tuple[str, ...]
    """What it would do next, a branch each: `#3 step look`."""

    left_out: tuple[str, ...]
    """Recorded steps for which it did not ask, be that a parting or not: steps with keys of their own may go, and what
    comes after a new one is not seen."""

    parts: Parting | None
    same_result: bool | None
    """Of a completed run: whether the result is the recorded one, too."""

    @property
    def same(self) -> bool:
        """Whether it takes the recorded way."""
        return self.parts is None

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        if self.parts is not None:
            return f"run {self.run_id} ({self.kind}) parts {self.parts}"
        where = f"goes on with {', '.join(self.goes_on)}" if self.goes_on else self.ending
        return f"run {self.run_id} ({self.kind}) takes the same way over {counted(self.replayed, 'step')}, and {where}"

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        parts = self.parts
        return {
            "run": str(self.run_id),
            "kind": self.kind,
            "same": self.same,
            "recorded": self.recorded,
            "replayed": self.replayed,
            "ending": self.ending,
            "goes_on": list(self.goes_on),
            "left_out": list(self.left_out),
            "same_result": self.same_result,
            "parts": None if parts is None else {"key": parts.key, "recorded": parts.recorded, "now": parts.now},
        }


def parting(
    journal: Journal,
    ending: Ending,
    broken: BaseException | None,
    asked: Mapping[str, None],
    reached: Mapping[str, str],
) -> Parting | None:
    """The first place where the ways part.

    `broken` is what the body was told and may have swallowed, `asked` are the keys that it asked for, `reached` is
    what it asked for beyond the journal.
    """
    if isinstance(broken, NonDeterminism):
        return Parting(broken.key, broken.recorded, f"asks for {broken.came}")
    other = _OTHER.match(ending.failure.message) if isinstance(ending, Broke) else None
    if other:
        return Parting(other[1], other[2], f"asks for {other[3]}")
    instead = _instead(ending, reached)
    may_follow = any(_keyed(key, what.partition(" ")[0]) for key, what in reached.items())
    for step in passed_over(journal, asked):
        if not may_follow and not _may_go(step, journal, ending):
            return Parting(step["key"], f"{step['kind']} `{step['name']}`", instead)
    status = journal.run["status"]
    if isinstance(ending, Broke) and status not in (Status.FAILED, Status.CANCELLED):
        return Parting("the end", f"a run that is {status}", instead)
    if reached and status == Status.COMPLETED and not may_follow:
        return Parting(next(iter(reached)), "nothing: the run had completed", instead)
    return None


def word_for(ending: Ending) -> str:
    """How today's code ends."""
    match ending:
        case Finished():
            return "completes"
        case Broke():
            return "fails"
        case _:
            return "goes on"


def passed_over(journal: Journal, asked: Mapping[str, None]) -> Iterator[Mapping[str, Any]]:
    """Ended steps for which nobody asked."""
    for step in journal.steps:
        if step["status"] in ENDED and not _covered(step["key"], asked):
            yield step


def _may_go(step: Mapping[str, Any], journal: Journal, ending: Ending) -> bool:
    """A step with a key of its own may be taken out; a branch may be cut short by the failure that ended the run."""
    cut_short = isinstance(ending, Broke) and journal.run["status"] == Status.FAILED
    return _keyed(step["key"], step["kind"]) or (cut_short and step["key"].startswith("#") and "." in step["key"])


def _keyed(key: str, kind: str) -> bool:
    """Whether the body's author gave the key: an agent's steps are counted by their conversation."""
    return not key.startswith("#") and kind not in (StepKind.MODEL, StepKind.TOOL)


def _covered(key: str, asked: Mapping[str, None]) -> bool:
    """Asked for, or done inside a step that was: its own steps are behind it."""
    return key in asked or any(key.startswith((f"{outer}/", f"{outer}:")) for outer in asked)


def _instead(ending: Ending, reached: Mapping[str, str]) -> str:
    if isinstance(ending, Broke):
        return f"fails with {ending.failure.error_type}: {ending.failure.message}"
    if reached:
        return "asks for " + ", ".join(f"`{key}` {what}" for key, what in reached.items())
    return f"{word_for(ending)} without it"


# Of a step that another verb than `step` asked for, only the failure is left.
_OTHER = re.compile(r"step (.+?) is recorded as (.+?), but the body now asks for (.+?);")
