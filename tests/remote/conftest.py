"""Bodies and remote steps of these tests, and engines that execute them inside the test's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from agentrun import Client, Context, Effect, Step, durable, remote_step
from agentrun.core.wake import Wake
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.remotesteps import remote_steps
from agentrun.testing.publishing import RecordingPublisher
from agentrun.testing.rows import Rows


@pytest.fixture(autouse=True)
def forget_steps() -> Iterator[None]:
    """What a test registers with `@remote_step` is forgotten after it."""
    before = remote_steps.snapshot()
    yield
    remote_steps.restore(before)


@dataclass
class Doing:
    """What the remote steps of a test did, in order."""

    done: list[Any] = field(default_factory=list[Any])


@pytest.fixture
def doing() -> Doing:
    """What was done."""
    return Doing()


@dataclass
class Here:
    """One run and its remote steps, executed here, message by message."""

    client: Client
    engine: Engine
    publisher: RecordingPublisher
    rows: Rows
    sweep: Callable[[], Any]

    def parked(self, kind: str, request: Any = None) -> UUID:
        """A new run of that kind, executed until it parks."""
        run_id = self.client.enqueue(kind, request)
        assert self.engine.run(run_id).outcome == "waiting"
        return run_id

    def offers(self) -> list[Wake]:
        """The messages for steps that were sent and not looked at yet."""
        sent = [wake for wake in self.publisher.wakes if wake.step_key is not None]
        self.publisher.wakes[:] = [wake for wake in self.publisher.wakes if wake.step_key is None]
        return sent

    def step(self, run_id: UUID) -> Step:
        """The run's only remote step."""
        (step,) = [step for step in self.client.steps(run_id) if step.kind in ("remote", "external")]
        return step

    def take(self, run_id: UUID, key: str | None = None) -> str:
        """Take and execute a step; the outcome."""
        return str(self.engine.run_step(run_id, key or self.step(run_id).key).outcome)

    def events(self, run_id: UUID) -> list[str]:
        """The types of the run's events."""
        return [str(event.type) for event in self.client.events(run_id)]

    def sql(self, statement: str, *values: Any) -> None:
        """Change rows by hand, as a fault would."""
        with self.rows.database.connection() as connection:
            connection.execute(statement, list(values))  # type: ignore[arg-type]

    def lapse(self, run_id: UUID) -> None:
        """The lease of whoever took a step of the run is over."""
        self.sql("UPDATE agentrun.steps SET lease_expires_at = now() - interval '1 s' WHERE run_id = %s "
                 "AND status = 'started' AND kind IN ('remote', 'external')", run_id)  # fmt: skip

    def taken_by_the_dead(self, run_id: UUID) -> None:
        """Somebody took the step and died."""
        self.sql("UPDATE agentrun.steps SET status = 'started', step_epoch = coalesce(step_epoch, 0) + 1, by = 'worker:dead:1', "
                 "started_seq = nextval('agentrun.event_seq'), started_at = now(), lease_expires_at = now() - interval '1 s', "
                 "due_at = NULL WHERE run_id = %s AND status = 'offered'", run_id)  # fmt: skip


@pytest.fixture
def here(client: Client, engine: Engine, publisher: RecordingPublisher, rows: Rows, sweep: Callable[[], Any]) -> Here:
    """One run and its remote steps, executed here."""
    return Here(client, engine, publisher, rows, sweep)


@pytest.fixture
def bodies(kinds: Registry, doing: Doing) -> None:
    """`asks`: one remote step named by the request; `fan`: one for each item of the request."""

    @durable("asks")
    async def asks(ctx: Context, options: dict[str, Any]) -> Any:
        name = options.pop("step")
        return await ctx.remote(name, options.pop("input", None), **options)

    @durable("fan")
    async def fan(ctx: Context, items: list[int]) -> list[Any]:
        return await ctx.gather(*[ctx.remote("double", item, queue="gpu") for item in items])

    @remote_step("double", effect=Effect.READ_ONLY)
    async def double(item: int) -> int:
        doing.done.append(item)
        return 2 * item

    @remote_step("charge", effect=Effect.NON_IDEMPOTENT_WRITE)
    async def charge(item: int) -> str:
        doing.done.append(item)
        return f"charged {item}"
