"""A recorded journal against today's code: does the body still take the same way?

Nothing is executed and nothing is written: a step that is not in the journal stops its branch as a wait does. What a
body does between its steps happens, as in every replay.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from agentrun.core.codec import decode
from agentrun.core.errors import NonDeterminism
from agentrun.core.outcome import Parked
from agentrun.core.words import ENDED, Status
from agentrun.runtime.body import ending_of_body
from agentrun.runtime.journals import Journal
from agentrun.runtime.keys import branching_tasks
from agentrun.runtime.kinds import Registry, registry
from agentrun.runtime.lease import Lease
from agentrun.runtime.parting import Replay, parting, passed_over, word_for
from agentrun.runtime.settling import Finished
from agentrun.runtime.spending import Spending
from agentrun.runtime.steps import Steps
from agentrun.runtime.stepspec import StepSpec
from agentrun.runtime.waits import Waits, WaitSpec
from agentrun.settings import Settings
from agentrun.store.batches import Write


def replay(journal: Journal, *, kinds: Registry = registry, settings: Settings | None = None) -> Replay:
    """Replay a journal against the body that is registered for its kind. Blocks until the body has ended.

    Raises UnknownKind where none is.
    """
    kinds.require(journal.run["kind"])

    def work() -> Replay:
        with asyncio.Runner(loop_factory=_loop) as runner:
            return runner.run(_Replaying(journal, kinds, settings or Settings()).outcome())

    # A thread and a loop of its own: the caller may be on a loop, and bodies expect ours.
    with ThreadPoolExecutor(1, "agentrun replay") as thread:
        return thread.submit(work).result()


def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(branching_tasks)  # pyright: ignore[reportArgumentType]
    return loop


class _Recorded(dict[str, Mapping[str, Any]]):
    """The journal by key; remembers what was asked for."""

    def __init__(self, steps: Sequence[Mapping[str, Any]]) -> None:
        super().__init__({step["key"]: step for step in steps})
        self.asked: dict[str, None] = {}

    def get(self, key: str, default: Any = None) -> Any:
        self.asked[key] = None
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked[str(key)] = None
        return super().__contains__(key)


class _Frontier:
    """The journal writer of a replay: whoever wants to write has come to the journal's end, and stops like a wait."""

    def __init__(self) -> None:
        self.reached: dict[str, str] = {}

    def stop(self, key: str, what: str) -> Parked:
        self.reached.setdefault(key, what)
        return Parked()

    async def write(self, write: Write) -> list[dict[str, Any]]:
        key = write.params.get("key")
        if key:
            kind = write.params.get("step_kind") or write.params.get("kind")
            self.stop(str(key), f"{kind} {write.params.get('name')}")
        raise Parked

    async def caught_up(self, run_id: UUID, epoch: int) -> None:
        """Nothing was written."""

    def trail(self, write: Write) -> None:
        raise self.stop(str(write.params["key"]), f"{write.params['kind']} {write.params['name']}")


class _Steps(Steps):
    """Steps that are read from the journal, or not at all."""

    __slots__ = ()

    async def _once(self, spec: StepSpec, there: Mapping[str, Any] | None) -> Any:
        raise cast("_Frontier", self.writer).stop(spec.key, f"{spec.kind} {spec.name}")

    async def may_spend(self, planned: Any = None) -> None:
        """Nothing is spent."""


class _Waits(Waits):
    """Waits that remember a parting which the body may swallow."""

    __slots__ = ()

    async def ask(self, spec: WaitSpec, *, decoded: Callable[[str], Any] = decode) -> Any:
        try:
            return await Waits.ask(self, spec, decoded=decoded)
        except NonDeterminism as error:
            self.steps.broken = self.steps.broken or error
            raise
        except Parked:
            cast("_Frontier", self.steps.writer).stop(spec.key, f"{spec.kind} {spec.name}")
            raise


@dataclass(slots=True)
class _Surroundings:
    """What a body needs of an engine."""

    settings: Settings
    threads: Executor
    database: None = None


@dataclass(slots=True)
class _Replaying:
    journal: Journal
    kinds: Registry
    settings: Settings
    frontier: _Frontier = field(default_factory=_Frontier)

    async def outcome(self) -> Replay:
        run, recorded = self.journal.run, _Recorded(self.journal.steps)
        with ThreadPoolExecutor(8, thread_name_prefix="agentrun replay") as threads:
            steps = self._steps(recorded, threads)
            waits = self._waits(steps)
            claimed = {**run, "model_calls": 1, "planned_cost": None}
            surroundings = cast("Any", _Surroundings(self.settings, threads))
            ending = await asyncio.ensure_future(
                ending_of_body(surroundings, self.kinds.require(run["kind"]), claimed, steps, waits)
            )
        reached = self.frontier.reached
        left_out = passed_over(self.journal, recorded.asked)
        result = ending.result if isinstance(ending, Finished) and run["status"] == Status.COMPLETED else None
        return Replay(
            run_id=run["id"],
            kind=run["kind"],
            recorded=sum(step["status"] in ENDED for step in self.journal.steps),
            replayed=steps.replayed,
            ending=word_for(ending),
            goes_on=tuple(f"{key} {what}" for key, what in reached.items()),
            left_out=tuple(f"{each['key']} {each['kind']} {each['name']}" for each in left_out),
            parts=parting(self.journal, ending, steps.broken, recorded.asked, reached),
            same_result=None if result is None else decode(result) == decode(run["result"]),
        )

    def _steps(self, recorded: _Recorded, threads: Executor) -> _Steps:
        run = self.journal.run
        return _Steps(
            writer=self.frontier,
            lease=Lease(run["id"], run["epoch"], "replay", math.inf, asked_at=time.monotonic()),
            recorded=recorded,
            result_limit=self.settings.max_result_bytes,
            default_lease=self.settings.lease_seconds,
            database=cast("Any", None),
            threads=threads,
            spending=cast("Spending", None),
            namespace=self.settings.namespace,
            owner=run["owner"],
        )

    def _waits(self, steps: _Steps) -> _Waits:
        return _Waits(
            steps=steps,
            rows={row["step_key"]: row for row in self.journal.waits},
            resolutions=0,
            wake=lambda _: None,
            settings=self.settings,
            kinds=self.kinds,
            kind=self.journal.run["kind"],
        )
