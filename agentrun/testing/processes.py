"""The fixtures of real processes: workers and beat as pytest-celery nodes. Part of the plugin."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrun.broker import make_app
from agentrun.settings import Settings
from agentrun.testing import environment
from agentrun.testing.forking import Zygote
from agentrun.testing.guard import Guard
from agentrun.testing.nodes import LocalProcess, Node, celery_command

NODES = pytest.StashKey[list[Node]]()
"""What a test started, for the report of its failure."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the workers' logs with a failure."""
    report = yield
    if report.failed:
        for node in item.stash.setdefault(NODES, []):
            report.sections.append((f"log of {node.name()}", node.container.end_of_log(60)))
    return report


@pytest.fixture(scope="session")
def process_guard() -> Iterator[Guard]:
    """Ends what the session started, even where the session is killed."""
    with contextlib.closing(Zygote()) as guard:
        yield guard


@pytest.fixture(scope="session")
def worker_app() -> str:
    """The Celery application of workers and beat, as `celery -A` takes it; override it to test your own."""
    return "agentrun.broker.default"


@pytest.fixture
def start_node(
    request: pytest.FixtureRequest, settings: Settings, tmp_path: Path, process_guard: Guard, worker_app: str
) -> Iterator[Callable[..., Node]]:
    """Starts `celery -A APP …` as a node; the base of `worker` and `beat`."""
    nodes: list[Node] = request.node.stash.setdefault(NODES, [])
    root = request.config.rootpath
    ordinary = settings

    def start(
        *arguments: str,
        name: str,
        ready: str,
        app: str = worker_app,
        imports: Sequence[str] = (),
        settings: Settings = ordinary,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Node:
        said = environment.variables(settings.model_copy(update={"imports": (*settings.imports, *imports)}))
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        process = LocalProcess(
            celery_command("-A", app, *arguments),
            name=name,
            workdir=tmp_path,
            env={**os.environ, **said, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {})},
            guard=process_guard,
            ready=ready,
        )
        node = Node(process, make_app(settings, name="agentrun test"))
        undo.callback(node.app.close)
        undo.callback(node.teardown)
        nodes.append(node)
        if wait:
            process.wait_ready()
        return node

    with contextlib.ExitStack() as undo:
        yield start


@pytest.fixture
def worker(start_node: Callable[..., Node]) -> Callable[..., Node]:
    """Starts real workers: `worker(pool="threads", concurrency=8, imports=["tests.bodies.basic"])`.

    Further options: `queues` (comma-separated), `hostname`, `env`, `settings`, `wait=False`, further arguments;
    `mingle=True` asks the neighbours at its start, as Celery does by itself, which takes it a second.
    """
    count = 0

    def start(
        *arguments: str,
        pool: str = "threads",
        concurrency: int = 8,
        queues: str | None = None,
        hostname: str | None = None,
        mingle: bool = False,
        **options: Any,
    ) -> Node:
        nonlocal count
        count += 1
        shape = ["-P", pool, "-c", str(concurrency), "-n", hostname or f"w{count}@%h", "-l", "INFO"]
        where = ["-Q", queues] if queues is not None else []
        alone = [] if mingle else ["--without-mingle"]
        return start_node(
            "worker", *shape, *alone, *where, *arguments, name=f"worker-{count}", ready=" ready.", **options
        )

    return start


@pytest.fixture
def beat(start_node: Callable[..., Node], tmp_path: Path) -> Callable[..., Node]:
    """Starts a real beat."""

    def start(*arguments: str, **options: Any) -> Node:
        schedule = ["-s", str(tmp_path / "schedule"), "--pidfile", "", "-l", "INFO"]
        return start_node("beat", *schedule, *arguments, name="beat", ready="beat: Starting", **options)

    return start
