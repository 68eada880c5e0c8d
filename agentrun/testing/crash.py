"""The crash sweep: a run whose process dies before or after its n-th commit, for every n, and goes on elsewhere.

Everything durable is a commit, so no crash points are planted in production code, and a new commit is covered the day
it is written. Death happens inside this process; what SIGKILL does beyond it is for tests with real workers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from agentrun.client import Client
from agentrun.core.records import Event, Run, Step
from agentrun.core.wake import Publisher
from agentrun.core.words import EventType, Status
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.settings import Settings
from agentrun.store.batches import Rows as Answer
from agentrun.store.batches import Write
from agentrun.store.database import Database
from agentrun.store.writer import Writer
from agentrun.testing.rows import Rows

MOST_COMMITS = 200
ENDED = ("completed", "failed")


class When(StrEnum):
    """Where the n-th commit meets its end."""

    BEFORE = "before"
    """It never happens, and the process is gone."""

    AFTER = "after"
    """It happens, nobody hears of it, and the process is gone."""

    LOST = "lost"
    """It happens, the answer is lost with the connection, and the process lives."""


class Death(BaseException):
    """This process is gone: nothing that it still does reaches the database."""


@dataclass(frozen=True, slots=True)
class Story:
    """What became of one run that died once."""

    when: When
    commit: int
    run: Run
    steps: Mapping[str, Step]
    events: Sequence[Event]
    ended_at_death: Mapping[str, Step]
    """The journal's ended steps at the moment of death."""

    def __str__(self) -> str:
        return f"{self.when} commit {self.commit}: {self.run.status} ({self.run.reason})"


class DyingWriter(Writer):
    """A journal writer whose process dies at its n-th commit."""

    def __init__(self, url: str, *, commit: int, when: When) -> None:
        super().__init__(url, name="agentrun dying")
        self._at, self._when = commit, when
        self.commits = 0
        self.dead = False

    def _put(self, write: Write, *, at_once: bool = True) -> asyncio.Future[Answer]:
        done = super()._put(write, at_once=at_once)
        if self.dead:
            self._waiting.remove(write)
            write.fail(Death())
        return done

    async def _commit(self, batch: Sequence[Write]) -> None:
        self.commits += 1
        if self.commits != self._at or self.dead:
            await super()._commit(batch)
            return
        if self._when is not When.BEFORE:
            await super()._commit([_unheard(write) for write in batch])
        if self._when is When.LOST:
            for write in batch:
                await self._commit_alone(write, unsure=True)
            return
        self.dead = True
        for write in [*batch, *self._waiting]:
            write.fail(Death())
        self._waiting.clear()


def _unheard(write: Write) -> Write:
    copy = Write(write.statement, write.params, write.landed, write.landed_params)
    copy.done = asyncio.get_running_loop().create_future()
    copy.after = write.after
    return copy


class Crash:
    """Lets one process take a run and die at its n-th commit."""

    def __init__(
        self,
        settings: Settings,
        kinds: Registry,
        client: Client,
        publisher: Publisher,
        sweep: Callable[[], object],
        rows: Rows,
    ) -> None:
        self._settings, self._kinds, self._client, self._publisher = settings, kinds, client, publisher
        self._sweep, self._rows = sweep, rows

    def at(self, commit: int, run_id: UUID, *, when: When = When.AFTER) -> bool:
        """Execute a segment in a process of its own that dies at that commit (1 is the claim); whether it came to that.

        After it the lease is over and the run reaped: whoever is woken next takes over. The run has to be due.
        """
        died, reached = self.first_segment(run_id, commit, when)
        if died:
            self.requeue(run_id)
        return reached

    def first_segment(self, run_id: UUID, commit: int, when: When) -> tuple[bool, bool]:
        """Whether the process died, and whether its segment came that far."""
        database = Database(self._settings.require_database(), name="agentrun dying")
        with closing(database), closing(self._engine(database)) as engine:
            writer = engine.writer = DyingWriter(database.url, commit=commit, when=when)
            try:
                engine.run(run_id)
            except Death:
                return True, True
            return writer.dead, writer.commits >= commit

    def requeue(self, run_id: UUID) -> None:
        """What the reaper does once the lease of a dead process is over."""
        if self._client.status(run_id).status is Status.RUNNING:
            self._rows.expire_lease(run_id)
            self._sweep()

    def _engine(self, database: Database) -> Engine:
        return Engine(self._settings, database, self._publisher, kinds=self._kinds)


class CrashSweep:
    """Lets a run die at every commit and recover; yields what became of it.

    Checked every time: what the journal held at the death is untouched, the story is in order and ends once, and a
    completed run leaves no write in flight.
    """

    def __init__(self, crash: Crash, client: Client, rows: Rows, survivor: Engine) -> None:
        self._crash, self._client, self._rows, self._survivor = crash, client, rows, survivor

    def __call__(self, start: Callable[[], UUID], *, whens: Sequence[When] = tuple(When)) -> Iterator[Story]:
        """`start` enqueues a fresh run every time; ends, per `when`, with the first run that did not die."""
        for when in whens:
            for commit in itertools.count(1):
                run_id = start()
                died, reached = self._crash.first_segment(run_id, commit, when)
                if not reached:
                    break
                assert commit < MOST_COMMITS, "the run makes commits without end"
                yield self._survived(run_id, commit, when, died=died)

    def relentless(self, run_id: UUID, *, every: int, most: int = 100) -> tuple[Run, int]:
        """Every process that takes the run dies after its n-th commit; returns the run and how many died."""
        for deaths in range(most):
            died, _ = self._crash.first_segment(run_id, every, When.AFTER)
            run = self._client.status(run_id)
            if run.status.final:
                return run, deaths
            assert died, f"the segment ended, and the run is {run.status}"
            self._crash.requeue(run_id)
        raise AssertionError(f"not done after {most} deaths: {self._client.status(run_id)}")

    def _survived(self, run_id: UUID, commit: int, when: When, *, died: bool) -> Story:
        at_death = {step.key: step for step in self._client.steps(run_id) if step.status in ENDED}
        if died:
            self._recover(run_id)
        steps = {step.key: step for step in self._client.steps(run_id)}
        story = Story(
            when, commit, self._client.status(run_id), steps, self._client.events(run_id), at_death if died else {}
        )
        _check(story)
        return story

    def _recover(self, run_id: UUID, most: int = 20) -> None:
        self._crash.requeue(run_id)
        for _ in range(most):
            run = self._client.status(run_id)
            if run.status.final:
                return
            if run.status is Status.QUEUED:
                self._rows.make_due(run_id)
            self._survivor.run(run_id)
        raise AssertionError(f"not final after {most} segments: {self._client.status(run_id)}")


def _check(story: Story) -> None:
    assert story.run.status.final, story
    for key, step in story.ended_at_death.items():
        if step.status == "completed":
            assert story.steps[key] == step, f"{story}: the recorded step {key} was touched"
    told = [event.type for event in story.events]
    assert told[0] is EventType.ENQUEUED, (str(story), told)
    assert told.count(EventType.SETTLED) == 1, (str(story), told)
    assert told[-1] is EventType.SETTLED, (str(story), told)
    numbers = [event.seq for event in story.events]
    assert numbers == sorted(set(numbers)), (str(story), numbers)
    if story.run.status is Status.COMPLETED:
        assert story.run.pending_effect is None, story
        assert not [step for step in story.steps.values() if step.status == "started"], story
    if story.when is When.LOST:
        assert story.run.epoch == 1, f"{story}: a lost answer must not cost a segment"
