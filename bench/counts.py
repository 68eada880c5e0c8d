"""How many statements each operation sends to PostgreSQL. Exact, and the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from rich.console import Console
from rich.table import Table

from agentrun.runtime.upkeep import Sweep
from bench.common import FULL, Bench
from bench.statements import counted


def counts(bench: Bench) -> None:
    """Print a table of operations and their statements."""
    shown = Table("operation", "statements", "which")
    with bench.engine(backoff_base_seconds=0.001, backoff_max_seconds=0.001) as engine, bench.client() as client:

        def enqueued(kind: str, request: int) -> UUID:
            return client.enqueue(kind, request, queue=FULL)

        def waiting(kind: str, request: int) -> Callable[[], object]:
            run_id = enqueued(kind, request)
            return lambda: engine.run(run_id)

        failed = enqueued("bench.replay", 10)
        engine.run(failed)
        engine.run(enqueued("bench.noop", 1))  # the connections are there from now on
        bench.until(lambda: bench.value("SELECT max(due_at) <= now() FROM agentrun.runs"), ())
        done = enqueued("bench.noop", 1)
        engine.run(done)
        sweep = Sweep(engine.settings, engine.database, engine.publisher, by="bench")
        operations: dict[str, Callable[[], object]] = {
            "enqueue": lambda: enqueued("bench.noop", 1),
            "enqueue_many of 100": lambda: client.enqueue_many("bench.noop", list(range(100)), queue=FULL),
            "a no-op run": waiting("bench.noop", 1),
            "a run of 10 steps": waiting("bench.steps", 10),
            "a run of 10 writes": waiting("bench.writes", 10),
            "a segment that replays 10 steps": lambda: engine.run(failed),
            "a wake of a run that has ended": lambda: engine.run(done),
            "a heartbeat": engine.heartbeat.beat,
            "a sweep, one queue waiting": sweep.run,
            "status": lambda: client.status(done),
            "events": lambda: client.events(done),
        }
        for name, operation in operations.items():
            with counted(bench.servers) as statements:
                operation()
            which = ", ".join(f"{number} {name}" for (_, name), number in statements.most_common())
            shown.add_row(name, str(statements.total()), which)
    Console(width=150).print(shown)
