"""The bodies whose statements are counted, and the one process that executes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentrun import Client, Context, Effect, Retryable, Settings, remote_step
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry, kind_of
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher


async def one(number: int) -> int:
    return number


def remote(number: int) -> int:
    return number


async def nothing(ctx: Context) -> None: ...


async def steps(ctx: Context, count: int) -> None:
    for number in range(count):
        await ctx.step(one, number)


async def again(ctx: Context, count: int) -> None:
    await ctx.gather(*(ctx.step(one, number) for number in range(count)))
    if ctx.run.epoch == 1:
        raise Retryable("once more, from the journal")


async def write(ctx: Context) -> None:
    await ctx.write(one, 1, effect=Effect.NON_IDEMPOTENT_WRITE)


async def signal(ctx: Context) -> None:
    await ctx.signal("go")


async def approval(ctx: Context) -> None:
    await ctx.approval("may it?")


async def parent(ctx: Context) -> None:
    await ctx.child("nothing")


async def timer(ctx: Context) -> None:
    await ctx.sleep(600)


async def elsewhere(ctx: Context) -> None:
    await ctx.remote("costs.remote", 1)


def bodies() -> Registry:
    kinds = Registry()
    for body in (nothing, steps, again, write, signal, approval, parent, timer, elsewhere):
        kinds.add(kind_of(body.__name__, body))
    remote_step("costs.remote", effect=Effect.READ_ONLY)(remote)
    return kinds


@dataclass
class Stage:
    """One process with its connections open, and what operations need."""

    settings: Settings
    client: Client
    engine: Engine
    publisher: RecordingPublisher
    database: Database
    sent: Callable[[], Counter[tuple[str, str]]]

    def queued(self, kind: str, request: Any = None) -> UUID:
        return self.client.enqueue(kind, request)

    def waiting(self, kind: str, request: Any = None) -> UUID:
        run_id = self.queued(kind, request)
        assert self.engine.run(run_id).outcome == "waiting"
        return run_id

    def answered(self, kind: str, answer: Callable[[UUID], object]) -> UUID:
        run_id = self.waiting(kind)
        answer(run_id)
        return run_id

    def run(self, run_id: UUID, outcome: str = "completed") -> None:
        assert self.engine.run(run_id).outcome == outcome

    def child_of(self, run_id: UUID) -> UUID:
        (child,) = [wake.run_id for wake in self.publisher.wakes if wake.kind == "nothing"]
        return child

    def step(self, run_id: UUID) -> None:
        (wake,) = [wake for wake in self.publisher.wakes if wake.step_key is not None]
        assert self.engine.run_step(run_id, wake.step_key or "").outcome == "completed"
