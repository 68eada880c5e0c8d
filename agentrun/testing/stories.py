"""A run's story as a list of short lines, so that a test compares it with `==` and a failure shows what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from agentrun.client import Client
from agentrun.core.records import Event, Run, Step
from agentrun.core.words import Effect

PAGE = 1_000


class Story(list[str]):
    """The events of a run, a line each: `claimed`, `step_completed look`, `settled completed`.

    `steps` are the steps that ended or are in flight, `effects` the writes among them, both as lines in order; `run`
    is the row. Times, ids and epochs are left out: they differ from run to run.
    """

    def __init__(self, run: Run, events: Iterable[Event], steps: Sequence[Step]) -> None:
        super().__init__(_told(event) for event in events)
        self.run = run
        self.steps = [_step(step) for step in steps]
        self.effects = [_step(step) for step in steps if step.effect != Effect.READ_ONLY]

    def count(self, line: str) -> int:
        """How many lines begin with this."""
        return sum(each == line or each.startswith(f"{line} ") for each in self)

    def assert_in_order(self, *lines: str) -> None:
        """These lines come in this order, whatever comes between them. AssertionError with the whole story."""
        rest = iter(self)
        for line in lines:
            assert any(each == line or each.startswith(f"{line} ") for each in rest), (
                f"{line!r} does not come (any more) in the story of run {self.run.id}:\n{self}"
            )

    def __str__(self) -> str:
        return "\n".join(f"  {line}" for line in self)


def story(client: Client, run_id: UUID | str) -> Story:
    """What happened to a run: `assert story(client, run_id) == ["enqueued", "claimed", …]`. Raises NotFound."""
    return Story(client.status(run_id), _events(client, run_id), client.steps(run_id))


def _events(client: Client, run_id: UUID | str) -> Iterable[Event]:
    after = -1
    while page := client.events(run_id, after=after, limit=PAGE):
        yield from page
        after = page[-1].seq


def _told(event: Event) -> str:
    data: Mapping[str, Any] = event.data
    words = [str(event.type)]
    words += [str(data[name]) for name in ("name", "reason", "waiting_on") if data.get(name) is not None]
    failure = data.get("error") or data.get("failure")
    if failure:
        words.append(f"({failure.get('type')})")
    return " ".join(words)


def _step(step: Step) -> str:
    tried = f" (attempt {step.attempt})" if step.attempt > 1 else ""
    return f"{step.key} {step.kind} {step.name}: {step.status}{tried}"
