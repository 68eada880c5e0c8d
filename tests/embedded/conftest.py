"""Servers for the tests of the servers themselves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrun.embedded import Embedded, programs

SHARED = "AGENTRUN_TEST_SHARED"


@pytest.fixture(scope="session", autouse=True)
def roots_folder() -> Iterator[None]:
    """As root, data lie in a folder for PostgreSQL's account: here beside all else that tests store."""
    before, shared = programs.SHARED, programs.scratch_path("shared")
    programs.SHARED, os.environ[SHARED] = shared, str(shared)
    yield
    programs.SHARED = before
    del os.environ[SHARED]
    shutil.rmtree(shared, ignore_errors=True)


@pytest.fixture(scope="module")
def servers() -> Iterator[Embedded]:
    with Embedded.temporary() as servers:
        yield servers


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Callable[[], Embedded]]:
    """Makes handles, not started, on one state folder."""
    made: list[Embedded] = []

    def make() -> Embedded:
        made.append(Embedded.kept(tmp_path / "state"))
        return made[-1]

    yield make
    for servers in made:
        servers.close()
        shutil.rmtree(servers.postgres.directory, ignore_errors=True)  # as root it may lie elsewhere
