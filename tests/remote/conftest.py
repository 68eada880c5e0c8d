"""Bodies and remote steps of these tests, and engines that execute them inside the test's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import pytest

from agentrun import Client, Context, Effect, Step, current_step, durable, remote_step
from agentrun.core.wake import Wake
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.remotesteps import remote_steps
from agentrun.runtime.settling import Report
from agentrun.runtime.taking import run_step
from agentrun.testing.publishing import RecordingPublisher
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers


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
    began: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> None:
        """Say that something has begun, and wait until it may go on."""
        self.began.set()
        assert self.go_on.wait(10)


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

    def taking(self, run_id: UUID, key: str | None = None, engine: Engine | None = None) -> Future[Report]:
        """Take and execute a step in the background."""
        engine = engine or self.engine
        return engine.submit(run_step(engine, run_id, key or self.step(run_id).key))

    def lost(self, run_id: UUID) -> None:
        """Whoever took the step died, and a sweep finds that."""
        self.taken_by_the_dead(run_id)
        self.sweep()

    def failure(self, run_id: UUID) -> str:
        """Execute the run, which fails; the type of its error."""
        assert self.engine.run(run_id).outcome == "failed"
        error = self.client.status(run_id).error
        assert error is not None
        return error["type"]

    def events(self, run_id: UUID) -> list[str]:
        """The types of the run's events."""
        return [str(event.type) for event in self.client.events(run_id)]

    def sql(self, statement: str, *values: Any) -> None:
        """Change rows by hand, as a fault would."""
        with self.rows.database.connection() as connection:
            connection.execute(statement, list(values))  # type: ignore[arg-type]

    def silent(self, run_id: UUID) -> None:
        """The step's timeout is over."""
        self.sql("UPDATE agentrun.steps SET due_at = now() - interval '1 s' WHERE run_id = %s "
                 "AND status = 'started' AND due_at IS NOT NULL", run_id)  # fmt: skip

    def unclaimed(self, run_id: UUID) -> None:
        """The step's pickup_timeout is over."""
        self.sql("UPDATE agentrun.steps SET lease_expires_at = now() - interval '1 s' WHERE run_id = %s "
                 "AND status = 'offered' AND lease_expires_at IS NOT NULL", run_id)  # fmt: skip

    def due(self, run_id: UUID) -> None:
        """Whatever pauses before its next try does so no longer."""
        self.sql("UPDATE agentrun.steps SET due_at = now() WHERE run_id = %s AND status = 'offered'", run_id)

    def lapse(self, run_id: UUID) -> None:
        """The lease of whoever took a step of the run is over."""
        self.sql("UPDATE agentrun.steps SET lease_expires_at = now() - interval '1 s' WHERE run_id = %s "
                 "AND status = 'started' AND kind IN ('remote', 'external')", run_id)  # fmt: skip

    def taken_by_the_dead(self, run_id: UUID) -> None:
        """Somebody took what the run has on offer, and died."""
        self.sql(
            "UPDATE agentrun.steps SET status = 'started', step_epoch = coalesce(step_epoch, 0) + 1, "
            "by = 'worker:dead:1', started_seq = nextval('agentrun.event_seq'), started_at = now(), due_at = NULL, "
            "lease_expires_at = now() - interval '1 s' WHERE run_id = %s AND status = 'offered'",
            run_id,
        )


@pytest.fixture(scope="module")
def one_database(shared_servers: Servers) -> Iterator[str]:
    """For all tests of a module: each finds it empty."""
    url = shared_servers.create_database()
    yield url
    shared_servers.drop_database(url)


@pytest.fixture
def database_url(one_database: str) -> Iterator[str]:
    """Instead of a database per test."""
    yield one_database
    with psycopg.connect(one_database) as connection:
        connection.execute("TRUNCATE agentrun.runs, agentrun.steps, agentrun.moves, agentrun.processes CASCADE")


@pytest.fixture
def here(client: Client, engine: Engine, publisher: RecordingPublisher, rows: Rows, sweep: Callable[[], Any]) -> Here:
    """One run and its remote steps, executed here."""
    client.commands.publisher = publisher
    return Here(client, engine, publisher, rows, sweep)


@pytest.fixture
def known_steps(doing: Doing) -> None:
    """The remote steps of this process."""

    @remote_step("double", effect=Effect.READ_ONLY)
    async def double(item: int) -> int:
        doing.done.append(item)
        return 2 * item

    @remote_step("held", effect=Effect.READ_ONLY)
    def held(item: int) -> int:
        doing.done.append(item)
        doing.hold()
        current_step().heartbeat({"done": item})
        return 3 * item

    @remote_step("held-charge", effect=Effect.NON_IDEMPOTENT_WRITE)
    def held_charge(item: int) -> str:
        doing.done.append(item)
        doing.hold()
        current_step().heartbeat()
        return f"charged {item}"

    @remote_step("flaky", effect=Effect.READ_ONLY)
    async def flaky(failures: int) -> int:
        doing.done.append(current_step().attempt)
        if len(doing.done) <= failures:
            raise ConnectionError("away")
        return len(doing.done)

    @remote_step("charge", effect=Effect.NON_IDEMPOTENT_WRITE)
    async def charge(item: int) -> str:
        doing.done.append(item)
        return f"charged {item}"


@pytest.fixture
def bodies(kinds: Registry, known_steps: None) -> None:
    """`asks`: one remote step named by the request; `fan`: one for each item of it.

    `elsewhere` and `reviews`: the same with external ones.
    """

    @durable("asks")
    async def asks(ctx: Context, options: dict[str, Any]) -> Any:
        name = options.pop("step")
        return await ctx.remote(name, options.pop("input", None), **options)

    @durable("elsewhere")
    async def elsewhere(ctx: Context, options: dict[str, Any]) -> Any:
        name = options.pop("step", "review")
        effect = Effect(options.pop("effect", "read_only"))
        return await ctx.external(name, options.pop("input", None), effect=effect, **options)

    @durable("reviews")
    async def reviews(ctx: Context, count: int) -> list[Any]:
        return await ctx.gather(*[ctx.external("review", number) for number in range(count)])

    @durable("fan")
    async def fan(ctx: Context, items: list[int]) -> list[Any]:
        return await ctx.gather(*[ctx.remote("double", item, queue="gpu") for item in items])
