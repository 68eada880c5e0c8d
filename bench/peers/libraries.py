"""Other libraries as sides of the comparison: a database of their own each time, a worker, a producer."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from bench.common import Bench
from bench.nodes import ROOT, BenchError, Node, clean_environment
from bench.peers import protocol
from bench.peers.waiting import counted_off, idle_times, steady_rate
from bench.ticks import VARIABLE, Ticks

INTERPRETER = ROOT / ".venv-peers" / "bin" / "python"
_SECONDS = 400.0


@dataclass(frozen=True)
class Library:
    """One library with one way of using it. `ended` counts, in its own tables, runs and jobs that are over."""

    bench: Bench
    name: str
    script: str
    ended: str
    poll: float = 0.0
    steps: bool = False
    many: bool = False
    all_at_once: bool = False
    """Starts whatever waits, so that runs end together: their rate is taken from the first start to the last end."""

    # ---- what is measured

    def one_by_one(self, runs: int) -> float:
        with self._database(), self._producer() as producer:
            producer.enqueue(protocol.NOOP, 1, 50)
            return runs / producer.enqueue(protocol.NOOP, 1, runs)

    def at_once(self, runs: int) -> float:
        with self._database() as database, self._producer() as producer:
            seconds = producer.enqueue(protocol.NOOP, 1, runs, at_once=True)
            stored = database.execute(self.ended.partition(" WHERE ")[0]).fetchone()
            if stored != (runs,):
                raise BenchError(f"{self.name}: of {runs} jobs, {stored} were stored")
            return runs / seconds

    def noop_rate(self, runs: int, room: int) -> float:
        with self._filled(protocol.NOOP, 1, runs) as database, self._worker(room) as (node, ticks):
            self._until(ticks, runs, node)
            self._until_ended(database, runs, node)
            return self._rate(ticks.times(), runs, room)

    def run_rate(self, runs: int, count: int, room: int) -> float:
        jobs = 1 if self.steps else count
        marks = 2 if self.all_at_once else jobs
        with self._filled(protocol.RUN, count, runs) as database, self._worker(room) as (node, ticks):
            self._until(ticks, marks * runs, node)
            self._until_ended(database, jobs * runs, node)
            return self._rate(ticks.times(), runs, room, jobs=jobs)

    def step_rate(self, count: int, room: int, seconds: float) -> float:
        """In a span of time in which there is always room's worth of runs to go on with."""
        with self._filled(protocol.STEPS, count, room), self._worker(room) as (node, ticks):
            self._until(ticks, room, node)
            return counted_off(self.bench, ticks, node, seconds, at_most=int(0.8 * count * room))

    def idle(self, samples: int) -> list[float]:
        with self._database(), self._producer() as producer, self._worker(10) as (node, ticks):
            return idle_times(
                self.bench, ticks, node, lambda: producer.ask(protocol.NOOP, 1, 1)["began"], samples, self.poll
            )

    # ---- how

    @cached_property
    def slug(self) -> str:
        return f"peer_{self.script}"

    @contextlib.contextmanager
    def _database(self) -> Iterator[psycopg.Connection]:
        """As it is after installing, each time."""
        self._install()
        with self._server() as server:
            server.execute(f"DROP DATABASE IF EXISTS {self.slug} WITH (FORCE)")
            server.execute(f"CREATE DATABASE {self.slug} TEMPLATE {self.slug}_installed")
        with psycopg.connect(self._url(self.slug), autocommit=True, application_name="bench") as database:
            yield database

    @contextlib.contextmanager
    def _filled(self, kind: str, count: int, runs: int) -> Iterator[psycopg.Connection]:
        with self._database() as database:
            with self._producer() as producer:
                producer.enqueue(kind, count, runs, at_once=self.many)
            database.execute("ANALYZE")
            yield database

    def _install(self) -> None:
        name = f"{self.slug}_installed"
        with self._server() as server:
            if server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                return
            server.execute(f"CREATE DATABASE {name}")
        done = subprocess.run([*self._program, "prepare"], env=self._environment(name), capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"{self.name} could not be installed: {done.stderr[-500:]}")

    def _server(self) -> psycopg.Connection:
        return psycopg.connect(self.bench.servers.database_url, autocommit=True, application_name="bench")

    @contextlib.contextmanager
    def _producer(self) -> Iterator[Producer]:
        producer = Producer(self.name, [*self._program, "produce"], self._environment(self.slug), self.bench.directory)
        try:
            yield producer
        finally:
            producer.end()

    @contextlib.contextmanager
    def _worker(self, room: int) -> Iterator[tuple[Node, Ticks]]:
        ticks = Ticks(self.bench.directory / f"{self.slug}.ticks")
        environment = self._environment(self.slug) | {VARIABLE: str(ticks.path)}
        node = Node(self.slug, ["work", str(room)], environment, self.bench.directory, program=self._program)
        try:
            yield node, ticks
        finally:
            node.kill()

    @property
    def _program(self) -> list[str]:
        return [str(INTERPRETER), "-m", f"bench.peers.{self.script}"]

    def _environment(self, database: str) -> dict[str, str]:
        own = {protocol.DATABASE: self._url(database), protocol.POLL: str(self.poll)}
        return clean_environment() | own

    def _url(self, database: str) -> str:
        return self.bench.servers.database_url.rpartition("/")[0] + f"/{database}"

    def _until(self, ticks: Ticks, count: int, node: Node) -> None:
        self.bench.until(lambda: len(ticks) >= count, [node], seconds=_SECONDS)

    def _rate(self, times: list[float], runs: int, room: int, *, jobs: int = 1) -> float:
        """Runs per second, when all have just ended. Chains advance side by side: their jobs tell, not their ends."""
        return runs / (time.monotonic() - times[0]) if self.all_at_once else steady_rate(times, room) / jobs

    def _until_ended(self, database: psycopg.Connection, count: int, node: Node) -> None:
        """BenchError where the library itself does not hold them for done a minute later."""
        self.bench.until(lambda: database.execute(self.ended).fetchone() == (count,), [node], seconds=60)


class Producer:
    """A library's client in a process of its own: asked line by line."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], directory: Path) -> None:
        self._name = name
        with (directory / "producers.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answer()

    def enqueue(self, kind: str, count: int, runs: int, *, at_once: bool = False) -> float:
        """Seconds that it took."""
        return self.ask(kind, count, runs, at_once=at_once)["seconds"]

    def ask(self, kind: str, count: int, runs: int, *, at_once: bool = False) -> dict[str, float]:
        assert self._process.stdin is not None
        asked = {"kind": kind, "count": count, "runs": runs, "at_once": at_once}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # some libraries print as they start
                return json.loads(line)
        raise BenchError(f"{self._name}: its producer ended with code {self._process.wait()}")
