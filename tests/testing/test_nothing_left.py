"""Nothing of a test session outlives it: not after a failure, and not after its SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrun.testing import until

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]

INNER = """
import json, os, pathlib, time

def test_inner(client, worker, agentrun_servers):
    node = worker("--pool", "prefork", concurrency=2, imports=["tests.bodies.basic"])
    family = [process.pid for process in node.container.family()]
    embedded = agentrun_servers.embedded
    servers = [embedded.postgres.pid, embedded.redis.pid] if embedded else []
    done = pathlib.Path(os.environ["AGENTRUN_TEST_NOTE"])
    done.with_suffix(".new").write_text(json.dumps(family + servers))
    done.with_suffix(".new").rename(done)
    {ending}
"""


class Inner:
    """A test session of its own, whose only test starts a worker."""

    def __init__(self, folder: Path, ending: str) -> None:
        (folder / "test_inner.py").write_text(INNER.format(ending=ending))
        (folder / "conftest.py").write_text('pytest_plugins = ["agentrun.testing.plugin"]\n')
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:valkey -p no:cacheprovider\n")
        self._note = folder / "note"
        env = {**os.environ, "AGENTRUN_TEST_NOTE": str(self._note), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", str(folder)],
            cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def started(self) -> list[psutil.Process]:
        until(self._note.exists, 60, tell=lambda: self.process.poll())
        return [psutil.Process(pid) for pid in json.loads(self._note.read_text())]

    def output(self) -> str:
        return self.process.communicate(timeout=60)[0]


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Any]:
    sessions: list[Inner] = []

    def start(ending: str) -> Inner:
        sessions.append(Inner(tmp_path, ending))
        return sessions[-1]

    yield start
    for session in sessions:
        session.process.kill()
        session.process.communicate()


def test_a_failing_test_leaves_no_process_and_shows_the_workers_log(inner: Any) -> None:
    session = inner("assert False, 'on purpose'")
    started = session.started()
    output = session.output()
    assert session.process.returncode == 1
    assert "on purpose" in output
    assert "log of worker-1" in output
    assert "celery@" in output or "ready." in output
    until(lambda: not [process for process in started if process.is_running()], 10)


def test_a_session_that_is_killed_leaves_no_process(inner: Any) -> None:
    session = inner("time.sleep(60)")
    started = session.started()
    assert len(started) >= 3
    session.process.send_signal(signal.SIGKILL)
    until(lambda: not [process for process in started if _alive(process)], 20)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
