"""Everything of these tests goes through a pooler in transaction mode: ours, and PgBouncer where it is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from agentrun.testing.servers import Servers
from bench import pgbouncer
from tests.pooled.pooler import Pooler


@pytest.fixture
def direct_url(agentrun_servers: Servers) -> Iterator[str]:
    """The test's database, past the pooler."""
    url = agentrun_servers.create_database()
    yield url
    agentrun_servers.drop_database(url)


@pytest.fixture(
    params=[
        "strict",
        pytest.param(
            "pgbouncer", marks=pytest.mark.skipif(pgbouncer.PROGRAM is None, reason="no pgbouncer on the PATH")
        ),
    ]
)
def database_url(request: pytest.FixtureRequest, direct_url: str, tmp_path: Path) -> Iterator[str]:
    """The test's database, through the pooler: what all fixtures of the kit use."""
    pooled = pgbouncer.started(direct_url, tmp_path) if request.param == "pgbouncer" else strict(direct_url)
    with pooled as url:
        yield url


@contextlib.contextmanager
def strict(url: str) -> Generator[str]:
    """The one of `pooler.py`."""
    with Pooler(url, pgbouncer.CONNECTIONS) as pooler:
        yield pooler.url
