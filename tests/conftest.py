"""agentrun's tests use the testing kit as its users would."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
import redis.utils
import typer.main
import typer.testing

from agentrun.store.database import Database

pytest_plugins = ["agentrun.testing.plugin", "tests.spreading"]

# How long one example takes says how busy the machine is, and nothing else.
hypothesis.settings.register_profile("agentrun", deadline=None)
hypothesis.settings.load_profile("agentrun")

ROOMY = 4_000_000_000


def _use_memory() -> None:
    """Keep what tests store in memory, where there is room: a database per test takes 0.03 s there, and 0.3 on a disk.

    Before anybody has asked for the folder of temporary files; processes that tests start inherit it.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < ROOMY:
        return
    os.environ["TMPDIR"] = str(memory)
    tempfile.tempdir = None


def _hear_ctrl_c() -> None:
    """What a shell starts in the background ignores SIGINT, and so would all that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _ask_once() -> None:
    """What a process asks once or twice in its life, a test's asks thousands of times, and is told the same."""
    # The command line: out of the signatures of all commands, in 0.05 s.
    typer.testing.__dict__["_get_command"] = functools.cache(typer.main.get_command)
    # The version of the client: from its package's files, for each connection.
    redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


_probe: Callable[[Database], None] = Database._probe  # pyright: ignore[reportPrivateUsage]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A process probes its database before it opens its pool; a test, with three to ten pools, before the first."""
    answered: set[str] = set()

    def probe_once(database: Database) -> None:
        if database.url not in answered:
            _probe(database)
            answered.add(database.url)

    setattr(Database, _probe.__name__, _probe if item.get_closest_marker("own_servers") else probe_once)


# Several tests at once on a machine that may do more: what is waited for comes later than in a test by itself.
os.environ.setdefault("AGENTRUN_TEST_PATIENCE", "3")
_use_memory()
_hear_ctrl_c()
_ask_once()


@pytest.fixture(scope="session")
def worker_app() -> str:
    """Workers as the README starts them: `celery -A tasks worker`."""
    return "tasks"
