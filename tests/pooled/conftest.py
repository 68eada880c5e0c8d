"""Everything of these tests goes through a pooler in transaction mode: ours, and PgBouncer where it is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from agentrun.testing import until
from agentrun.testing.servers import Servers
from tests.pooled.pooler import Pooler

CONNECTIONS = 3
PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@pytest.fixture
def direct_url(agentrun_servers: Servers) -> Iterator[str]:
    """The test's database, past the pooler."""
    url = agentrun_servers.create_database()
    yield url
    agentrun_servers.drop_database(url)


@pytest.fixture(
    params=[
        "strict",
        pytest.param("pgbouncer", marks=pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer on the PATH")),
    ]
)
def database_url(request: pytest.FixtureRequest, direct_url: str, tmp_path: Path) -> Iterator[str]:
    """The test's database, through the pooler: what all fixtures of the kit use."""
    pooled = pgbouncer(direct_url, tmp_path) if request.param == "pgbouncer" else strict(direct_url)
    with pooled as url:
        yield url


@contextlib.contextmanager
def strict(url: str) -> Generator[str]:
    """The one of `pooler.py`."""
    with Pooler(url, CONNECTIONS) as pooler:
        yield pooler.url


@contextlib.contextmanager
def pgbouncer(url: str, directory: Path) -> Generator[str]:
    """The real one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = urlsplit(url)
    config = directory / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={server.hostname} port={server.port} user={server.username} "
        f"password={server.password}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {CONNECTIONS}\nmax_client_conn = 200\n"
        "server_round_robin = 1\n"
    )
    # It refuses to be root.
    command = [str(PGBOUNCER), *(["-u", "nobody"] if os.geteuid() == 0 else []), str(config)]
    with (directory / "pgbouncer.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        pooled = urlunsplit(server._replace(netloc=f"{server.username}@127.0.0.1:{port}"))
        try:
            until(lambda: psycopg.connect(pooled).close() is None, tolerate=psycopg.OperationalError)
            yield pooled
        finally:
            process.terminate()
            process.wait(10)
