"""One database for all cases: each plays in a namespace of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from agentrun.store.database import Database
from agentrun.testing.servers import Servers
from tests.guards.stage import open_stage


@pytest.fixture(scope="package")
def stage(shared_servers: Servers) -> Iterator[Database]:
    with contextlib.closing(open_stage(shared_servers)) as database:
        yield database
    shared_servers.drop_database(database.url)
