"""Shared plumbing: the servers, workers in front of full or empty queues, waiting for the end, samples."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import redis

from agentrun import Client, Settings
from agentrun.broker import CeleryPublisher
from agentrun.embedded import Embedded
from agentrun.runtime.engine import Engine
from agentrun.store.database import Database
from agentrun.store.schema import migrate
from bench import bare
from bench.measure import Samples
from bench.nodes import POOL, BenchError, Node, wait_ready, worker_arguments
from bench.ticks import VARIABLE, Ticks

WARM, FULL = "bench.warm", "bench.full"
"""Workers listen to the first from their start; they are given the second when it is full."""

POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "log_line_prefix": "@%a@ ",
    "log_parameter_max_length": "0",
}
"""Thrown away afterwards like any temporary server's, but its commits wait for the disk."""

_TABLES = "agentrun.runs, agentrun.steps, agentrun.moves"


class Bench:
    """One run of the benchmark: its servers, its sizes, its samples."""

    def __init__(self, servers: Embedded, directory: Path, *, rounds: int, quick: bool, history: int) -> None:
        self.servers, self.directory, self.quick, self.history = servers, directory, quick, history
        self.samples, self.notes, self.trouble = Samples(), dict[str, Any](), Counter[str]()
        self.rounds_wanted, self._numbers = rounds, itertools.count(1)
        self.database = psycopg.connect(servers.database_url, autocommit=True, application_name="bench")
        self.redis = redis.Redis.from_url(servers.broker_url)
        self.control = bare.make_app(servers.broker_url)

    @classmethod
    @contextlib.contextmanager
    def started(cls, directory: Path, **sizes: Any) -> Iterator[Bench]:
        """Servers of our own with the schema in place; both are gone at the end."""
        with Embedded.temporary(postgres_settings=POSTGRES) as servers:
            migrate(servers.database_url)
            bench = cls(servers, directory, **sizes)
            if bench.value("SHOW fsync") != "on":
                raise BenchError("PostgreSQL does not wait for the disk, so nothing measured on it would be worth much")
            yield bench
            bench.database.close()
            bench.redis.close()

    def size(self, full: int, quick: int) -> int:
        """How many: fewer with --quick."""
        return quick if self.quick else full

    def rounds(self) -> Iterator[int]:
        """Each from empty tables and queues."""
        for number in range(self.rounds_wanted):
            self.clear()
            yield number

    def clear(self) -> None:
        """Forget all runs and waiting messages. Bindings of queues stay: producers believe that they are there."""
        self.database.execute(f"TRUNCATE {_TABLES} CASCADE")
        queues = [WARM, FULL, bare.QUEUE, "agentrun"]
        self.redis.delete(*queues, *(f"{queue}\x06\x16{level}" for queue in queues for level in (3, 6, 9)))

    # ---- agentrun in this process

    def settings(self, **values: Any) -> Settings:
        """Defaults, on our servers, whatever the environment says."""
        urls = {"database_url": self.servers.database_url, "broker_url": self.servers.broker_url}
        return Settings(_env_file=None, **(urls | values))  # pyright: ignore[reportCallIssue]

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        with Client(settings=self.settings()) as client:
            yield client

    @contextlib.contextmanager
    def engine(self, **values: Any) -> Iterator[Engine]:
        """A worker's engine without Celery around it."""
        import bench.bodies  # noqa: F401 - registers the kinds

        settings = self.settings(**values)
        engine = Engine(settings, Database(settings.require_database()), CeleryPublisher(settings))
        try:
            yield engine
        finally:
            engine.close()

    # ---- processes

    @contextlib.contextmanager
    def workers(
        self,
        count: int = 1,
        *,
        pool: int = POOL,
        queues: Sequence[str] = (WARM,),
        variables: Mapping[str, str] | None = None,
    ) -> Iterator[list[Node]]:
        """agentrun's workers, ready. `variables` are added to their environment."""
        environment = self._environment() | dict(variables or {})
        with self._celery("agentrun", "tasks", count, queues, pool, environment) as nodes:
            yield nodes

    @contextlib.contextmanager
    def bare_workers(
        self, ticks: Ticks, count: int = 1, *, pool: int = POOL, queues: Sequence[str] = (WARM,)
    ) -> Iterator[list[Node]]:
        """Bare Celery's workers, ready."""
        environment = {"AGENTRUN_BENCH_BROKER_URL": self.servers.broker_url, VARIABLE: str(ticks.path)}
        with self._celery("celery", "bench.bare", count, queues, pool, environment) as nodes:
            yield nodes

    @contextlib.contextmanager
    def beat(self, variables: Mapping[str, str] | None = None) -> Iterator[Node]:
        """Celery's beat, which sends the sweep."""
        environment = self._environment() | dict(variables or {})
        arguments = ["-A", "tasks", "beat", "-l", "WARNING", "-s", str(self.directory / "schedule"), "--pidfile="]
        node = Node(f"beat{next(self._numbers)}", arguments, environment, self.directory)
        try:
            yield node
            node.check()
        finally:
            node.kill()

    @contextlib.contextmanager
    def _celery(
        self, side: str, app: str, count: int, queues: Sequence[str], pool: int, environment: Mapping[str, str]
    ) -> Iterator[list[Node]]:
        names = [f"{side}{next(self._numbers)}@bench" for _ in range(count)]
        with contextlib.ExitStack() as undo:
            nodes: list[Node] = []
            for name in names:
                nodes.append(Node(name, worker_arguments(app, name, queues, pool), environment, self.directory))
                undo.callback(nodes[-1].kill)
            wait_ready(self.control, nodes, names)
            yield nodes
            for node in nodes:
                self.trouble.update(node.problems())

    def _environment(self) -> dict[str, str]:
        return {
            "AGENTRUN_DATABASE_URL": self.servers.database_url,
            "AGENTRUN_BROKER_URL": self.servers.broker_url,
            "AGENTRUN_IMPORTS": "bench.bodies",
        }

    def open(self, queue: str, nodes: Sequence[Node]) -> None:
        """Let running workers at a queue that was filled before."""
        names = [node.name for node in nodes]
        replies = self.control.control.add_consumer(queue, destination=names, reply=True, timeout=10, limit=len(names))
        if len(replies or []) < len(names):
            raise BenchError(f"of {len(names)} workers {len(replies or [])} took queue {queue}")

    # ---- waiting and reading

    def until(
        self, what: Callable[[], bool], nodes: Sequence[Node], *, seconds: float = 300, every: float = 0.1
    ) -> None:
        """Wait for something. BenchError after `seconds`, or where a process ends."""
        deadline = time.monotonic() + seconds
        while not what():
            for node in nodes:
                node.check()
            if time.monotonic() > deadline:
                raise BenchError(f"not done within {seconds:.0f} s: {self.statuses()}")
            time.sleep(every)

    def watch(self, look: Callable[[], float], what: Callable[[], bool], nodes: Sequence[Node]) -> list[float]:
        """What `look` sees, again and again, until something holds. As `until`."""
        seen: list[float] = []

        def looked() -> bool:
            seen.append(look())
            return what()

        self.until(looked, nodes)
        return seen

    def ended(self) -> bool:
        """Whether no run is queued or running: asked through the partial indexes."""
        return not self.value("SELECT EXISTS (SELECT FROM agentrun.runs WHERE status IN ('queued', 'running'))")

    def statuses(self) -> dict[str, int]:
        return dict(self.database.execute("SELECT status, count(*) FROM agentrun.runs GROUP BY 1").fetchall())

    def value(self, query: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row."""
        row = self.database.execute(query, parameters).fetchone()  # pyright: ignore[reportArgumentType]
        return row[0] if row is not None else None

    def column(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        return [row[0] for row in self.database.execute(query, parameters)]  # pyright: ignore[reportArgumentType]

    def finish_times(self, expected: int) -> list[float]:
        """When the runs completed, in seconds by the database's clock. BenchError where some did not."""
        statuses = self.statuses()
        if statuses != {"completed": expected}:
            raise BenchError(f"expected {expected} completed runs, found {statuses}")
        return self.column("SELECT extract(epoch FROM finished_at)::float8 FROM agentrun.runs ORDER BY 1")
