"""The processes of a chaos run: three workers on threads and prefork, a beat, and a second sweeper beside it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg

from agentrun.broker import CeleryPublisher, make_app
from agentrun.core.errors import AgentrunError
from agentrun.runtime.upkeep import Sweep
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing import environment
from agentrun.testing.guard import Guard
from agentrun.testing.nodes import LocalProcess, Node, celery_command
from tests.chaos.bodies import ELSEWHERE

POOLS = ("threads", "prefork", "threads")
ROOT = Path(__file__).parents[2]


class Fleet:
    """Starts, kills and replaces. A worker that was killed is replaced at once."""

    def __init__(self, settings: Settings, directory: Path, guard: Guard) -> None:
        self._settings, self._directory, self._guard = settings, directory, guard
        self._numbers = itertools.count(1)
        self.workers: list[Node] = []
        self.beat: Node | None = None

    def start(self) -> None:
        """All of them, ready to work."""
        schedule = ["-s", str(self._directory / "schedule"), "--pidfile", ""]
        self.beat = self._node("beat", *schedule, name="beat", ready="beat: Starting")
        self.workers = [self._worker(pool) for pool in POOLS]
        for node in (self.beat, *self.workers):
            node.container.wait_ready(60)

    def kill_worker(self, node: Node) -> None:
        """SIGKILL to all of it; another takes its place."""
        pool = node.container.argv[node.container.argv.index("-P") + 1]
        node.kill()
        self.workers[self.workers.index(node)] = self._worker(pool)

    def kill_child(self, node: Node, pid: int) -> None:
        """SIGKILL to one of a prefork worker's children; its parent replaces it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)

    def wait_ready(self) -> None:
        """Those that took a killed one's place are there."""
        for node in self.workers:
            node.container.wait_ready(60)

    def pause(self) -> None:
        """SIGSTOP to every worker, for a moment much shorter than a lease."""
        for node in self.workers:
            node.pause()

    def resume(self) -> None:
        """The end of it."""
        for node in self.workers:
            node.resume()

    def of(self, pid: int) -> Node | None:
        """The worker that a process belongs to."""
        for node in self.workers:
            if any(process.pid == pid for process in node.container.family()):
                return node
        return None

    def children(self, node: Node) -> list[psutil.Process]:
        """A prefork worker's children; none of a worker on threads."""
        return [process for process in node.container.family() if process.pid != node.pid]

    def stop(self) -> None:
        """Kill what is left."""
        for node in (*self.workers, *filter(None, [self.beat])):
            node.teardown()
            node.app.close()

    def _worker(self, pool: str) -> Node:
        name = f"worker-{next(self._numbers)}"
        queues = ",".join([self._settings.queue, self._settings.system_queue, ELSEWHERE])
        shape = ["-P", pool, "-c", "8" if pool == "threads" else "3", "-n", f"{name}@%h", "-Q", queues]
        return self._node("worker", *shape, "--without-mingle", "--without-gossip", name=name, ready=" ready.")

    def _node(self, *arguments: str, name: str, ready: str) -> Node:
        said = environment.variables(self._settings)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        process = LocalProcess(
            celery_command("-A", "agentrun.broker.default", *arguments, "-l", "INFO"),
            name=name,
            workdir=self._directory,
            env={**os.environ, **said, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            guard=self._guard,
            ready=ready,
        )
        return Node(process, make_app(self._settings, name="agentrun chaos"))


@contextlib.contextmanager
def second_sweeper(settings: Settings, luck: random.Random) -> Iterator[None]:
    """Sweeps as fast as it can, at the same time as everybody else."""
    over = threading.Event()
    database, publisher = Database(settings.require_database(), name="agentrun chaos"), CeleryPublisher(settings)

    def sweep() -> None:
        while not over.wait(0.2 + 0.4 * luck.random()):
            # The servers come and go; the next sweep finds what this one left.
            with contextlib.suppress(AgentrunError, psycopg.Error):
                Sweep(settings, database, publisher, by="sweep:chaos").run()

    thread = threading.Thread(target=sweep, name="second sweeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        publisher.close()
        database.close()
