"""PgBouncer in transaction mode in front of a server, where it is installed. It goes with the block that uses it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

import psycopg

from agentrun.testing import until

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

CONNECTIONS = 3
"""To the server, for all clients together."""


@contextlib.contextmanager
def started(url: str, directory: Path) -> Generator[str]:
    """The URL that leads through it; `directory` is for its configuration and its log."""
    assert PROGRAM is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server, config = urlsplit(url), directory / "pgbouncer.ini"
    config.write_text(_configuration(server, port))
    # It refuses to be root.
    command = [PROGRAM, *(["-u", "nobody"] if os.geteuid() == 0 else []), str(config)]
    with (directory / "pgbouncer.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        pooled = urlunsplit(server._replace(netloc=f"{server.username}@127.0.0.1:{port}"))
        try:
            until(lambda: psycopg.connect(pooled).close() is None, tolerate=psycopg.OperationalError)
            yield pooled
        finally:
            process.terminate()
            process.wait(10)


def _configuration(server: SplitResult, port: int) -> str:
    """As it comes but for the mode, and everybody is let in."""
    login = f"host={server.hostname} port={server.port} user={server.username} password={server.password}"
    lines = [
        "[databases]",
        f"* = {login}",
        "[pgbouncer]",
        "listen_addr = 127.0.0.1",
        f"listen_port = {port}",
        "unix_socket_dir =",
        "auth_type = any",
        "pool_mode = transaction",
        f"default_pool_size = {CONNECTIONS}",
        "max_client_conn = 200",
        "server_round_robin = 1",
    ]
    return "\n".join(lines) + "\n"
