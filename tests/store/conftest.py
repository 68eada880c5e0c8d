"""Tests of statements share one database per module: each makes rows of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from agentrun.store.database import Database
from agentrun.store.writer import Writer
from agentrun.testing.rows import Rows
from agentrun.testing.servers import Servers


@pytest.fixture(scope="module")
def shared_database(shared_servers: Servers) -> Iterator[Database]:
    url = shared_servers.create_database()
    with contextlib.closing(Database(url, name="agentrun test")) as database:
        yield database
    shared_servers.drop_database(url)


@pytest.fixture(scope="module")
def rows(shared_database: Database) -> Rows:
    return Rows(shared_database)


@pytest.fixture
async def writer(rows: Rows) -> AsyncIterator[Writer]:
    writer = Writer(rows.database.url, name="writer of the test")
    yield writer
    await asyncio.wait_for(writer.close(), 5)
