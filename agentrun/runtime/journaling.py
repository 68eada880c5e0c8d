"""What every step of a segment goes by: its lease, the journal that it is written to, and what is recorded already."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Protocol, cast
from uuid import UUID

from agentrun.core.codec import within
from agentrun.core.errors import BodyError, StepFailed
from agentrun.core.failures import Failure
from agentrun.core.outcome import Cancelled, LeaseLost
from agentrun.core.words import StepStatus
from agentrun.runtime.current import CURRENT, CurrentStep
from agentrun.runtime.keys import BRANCH
from agentrun.runtime.lease import Lease
from agentrun.runtime.observing import Seen
from agentrun.runtime.stepspec import StepSpec, stored
from agentrun.store import journal
from agentrun.store.batches import Write
from agentrun.store.reads import HELD
from agentrun.store.sql import Statement


class JournalWriter(Protocol):
    """What steps need of the engine."""

    async def write(self, write: Write) -> list[dict[str, Any]]: ...

    def trail(self, write: Write) -> None: ...

    async def caught_up(self, run_id: UUID, epoch: int) -> None: ...


@dataclass(slots=True, kw_only=True)
class Journaling:
    """How a step is called, named and written: under the segment's epoch, and no other way."""

    writer: JournalWriter
    lease: Lease
    recorded: dict[str, Mapping[str, Any]]
    result_limit: int
    default_lease: float
    threads: Executor
    owner: str | None = None
    seen: Seen | None = None
    """Who looks on, where anybody does."""

    def _called(self, spec: StepSpec, attempt: int) -> Coroutine[Any, Any, Any]:
        called = self._inside(spec, attempt, spec.call)
        called = called if spec.timeout is None else _in_time(called, spec.timeout)
        return called if self.seen is None else _looked_at(called, self.seen, spec, attempt)

    async def _inside(self, spec: StepSpec, attempt: int, call: Callable[[], Any]) -> Any:
        """Call with the step's own context: `current_step()` works, and steps do not nest."""
        step = CurrentStep(self.lease.run_id, spec.key, spec.name, attempt, self.owner, self._beat)
        inside, outside = CURRENT.set(step), BRANCH.set(None)
        try:
            answer = call()
            if type(answer) is CoroutineType:  # nearly always; to ask whether it is awaitable takes longer
                return await cast("Awaitable[Any]", answer)
            return await answer if inspect.isawaitable(answer) else answer
        except (SystemExit, KeyboardInterrupt) as error:
            # On their way further up they would end the event loop, and every other run's segment with it.
            raise BodyError(f"`{spec.name}` raised {type(error).__name__}; a step must not end its process") from error
        finally:
            CURRENT.reset(inside)
            BRANCH.reset(outside)

    def _beat(self, _progress: object) -> None:
        self.lease.check()

    def _encoded(self, spec: StepSpec, value: Any) -> tuple[str, Any]:
        """As `stored`. Raises TooLarge, too."""
        text, replayed = stored(spec, value)
        what = f"the result of step `{spec.name}`"
        return within(text, self.result_limit, what=what, setting="AGENTRUN_MAX_RESULT_BYTES"), replayed

    def _written(
        self, statement: Statement, params: dict[str, Any], status: StepStatus
    ) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        landed = {"landed_status": str(status)}
        return self.writer.write(Write(statement, params, landed=journal.STEP_LANDED, landed_params=landed))

    def _guard(self, key: str) -> dict[str, Any]:
        return {"run_id": self.lease.run_id, "epoch": self.lease.epoch, "by": self.lease.owner, "key": key}

    def _named(self, spec: StepSpec, attempt: int) -> dict[str, Any]:
        return {
            "run_id": self.lease.run_id,
            "epoch": self.lease.epoch,
            "by": self.lease.owner,
            "key": spec.key,
            "kind": str(spec.kind),
            "name": spec.name,
            "effect": str(spec.effect),
            "attempt": attempt,
            "args_digest": None,
            "args": None,
        }

    def _failed(self, spec: StepSpec, failure: Failure) -> StepFailed:
        failed = StepFailed(spec.key, spec.name, failure.error_type, failure.message, str(failure.failure_class))
        failed.retry_after = failure.retry_after
        return failed

    async def _refused(self) -> BaseException:
        """A guard refused: the row is another owner's, or a cancel was asked for before the heartbeat brought it."""
        if self.lease.stopped is None:
            rows = await self.writer.write(Write(HELD, self._guard("")))
            self.lease.stop(Cancelled() if rows and rows[0]["cancel_requested"] else LeaseLost())
        return Cancelled() if isinstance(self.lease.stopped, Cancelled) else LeaseLost()

    def _remember(self, spec: StepSpec, attempt: int, said: Mapping[str, Any]) -> None:
        """Whoever asks for the same key again in this segment gets what a replay would get. Positions never repeat."""
        if not by_position(spec.key):
            self.recorded[spec.key] = {**self._named(spec, attempt), **said}


def by_position(key: str) -> bool:
    """Whether the key is a position in a branch: no other step of the segment has it."""
    return key[0] == "#" and "/" not in key


async def _in_time(called: Coroutine[Any, Any, Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        return await called


async def _looked_at(called: Coroutine[Any, Any, Any], seen: Seen, spec: StepSpec, attempt: int) -> Any:
    with seen.step(spec, attempt):
        return await called
