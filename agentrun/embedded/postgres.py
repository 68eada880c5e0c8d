"""Embedded PostgreSQL: a cluster in a directory, one database `agentrun`, reached over loopback with a password.

Commits are durable unless the server is ephemeral: then they survive any end of PostgreSQL, but not of the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import NotRequired, TypedDict

import psycopg
from psycopg import sql

from agentrun.embedded.errors import EmbeddedError
from agentrun.embedded.programs import open_to_others, postgres_account, postgres_programs, shared_dir
from agentrun.embedded.server import Server, stored_secret

USER = DATABASE = "agentrun"

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
    "random_page_cost": "1.1",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "io_method": "sync",
}
_EPHEMERAL_SETTINGS = {"fsync": "off", "full_page_writes": "off"}


class _Identity(TypedDict):
    cwd: str
    env: dict[str, str]
    user: NotRequired[int]
    group: NotRequired[int]
    extra_groups: NotRequired[list[int]]


class StopMode(Enum):
    """How PostgreSQL's own `pg_ctl stop` calls them."""

    FAST = signal.SIGINT  # transactions are rolled back, connections closed
    IMMEDIATE = signal.SIGQUIT  # as a crash: recovery at the next start


class EmbeddedPostgres(Server):
    """`url` names a superuser's connection to the database `agentrun`, the same after every restart."""

    name = "PostgreSQL"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        ephemeral: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings`: further settings of PostgreSQL, by their names in postgresql.conf.

        As root, the data lie under /var/lib/agentrun when PostgreSQL's account could not reach `directory`.
        EmbeddedMissing: the package is not installed.
        """
        self._programs = postgres_programs()
        self._account = postgres_account()
        super().__init__(self._reachable(directory.absolute()), port=port, ephemeral=ephemeral)
        self._settings = _SETTINGS | (_EPHEMERAL_SETTINGS if ephemeral else {}) | dict(settings or {})

    @property
    def url(self) -> str:
        return self._url(DATABASE)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def stop(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop; what was committed is there after the next `start`, in either mode."""
        self.resume()
        self._signal(mode.value)
        self._wait_for_end()

    def restart(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop and start again on the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        backends = self._backends()
        super().kill()
        _signal_all(backends, signal.SIGKILL)

    def pause(self) -> None:
        _signal_all(self._backends(), signal.SIGSTOP)
        super().pause()

    def resume(self) -> None:
        super().resume()
        _signal_all(self._backends(), signal.SIGCONT)

    def _prepare(self) -> None:
        if self._account:
            self._account.give(self.directory)
        self.directory.chmod(0o700)
        if not (self.data / "PG_VERSION").exists():
            self._init()
        self._clear_stale_pid_file()

    def _init(self) -> None:
        """`initdb`, in a directory that becomes `data` only when it is complete."""
        building = self.directory / "data.new"
        shutil.rmtree(building, ignore_errors=True)
        password = self.directory / "initial-password"
        password.write_text(stored_secret(self.directory / "password"))
        if self._account:
            self._account.give(password)
        # The password is 24 random bytes: hashing it thousands of times would only make connecting slow.
        done = subprocess.run(
            [self._programs / "initdb", "--pgdata", building, "--username", USER, "--pwfile", password]
            + ["--auth=scram-sha-256", "--set=scram_iterations=1", "--encoding=UTF8", "--locale=C"]
            + ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            + (["--no-sync"] if self.ephemeral else []),
            capture_output=True,
            text=True,
            check=False,
            **self._identity(),
        )
        password.unlink()
        if done.returncode != 0:
            raise EmbeddedError(f"initdb in `{building}` failed: {done.stderr.strip() or done.stdout.strip()}")
        building.rename(self.data)

    def _clear_stale_pid_file(self) -> None:
        """After a power cut its process id may be another program's, and PostgreSQL would refuse to start."""
        import psutil

        pid_file = self.data / "postmaster.pid"
        if not pid_file.exists():
            return
        try:
            process = psutil.Process(int(pid_file.read_text().split("\n", 1)[0]))
        except psutil.NoSuchProcess:
            return  # PostgreSQL sees that too, and looks for orphans of that process
        if str(self.data) in process.cmdline():  # ours, but its guard was killed with its starter
            process.send_signal(signal.SIGINT)
            process.wait(30)
        else:
            pid_file.unlink()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, "-p", str(port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._identity(),
            )

    def _is_ready(self, port: int) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _first_start(self) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _url(self, database: str) -> str:
        password = stored_secret(self.directory / "password")
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def _identity(self) -> _Identity:
        """What makes a program run as PostgreSQL's account, deaf to settings meant for PostgreSQL's clients."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        identity = _Identity(cwd="/", env=environment | {"LC_ALL": "C"})
        if self._account is not None:
            identity.update(user=self._account.uid, group=self._account.gid, extra_groups=[])
        return identity

    def _reachable(self, directory: Path) -> Path:
        # A folder that is still to be made will be closed to others: what it is for keeps secrets there.
        if self._account is None or (directory.parent.exists() and open_to_others(directory.parent)):
            return directory
        return shared_dir() / f"postgres-{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"

    def _backends(self) -> list[int]:
        import psutil

        return [child.pid for child in psutil.Process(self.pid).children()] if self.pid else []


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    # Backends end with their connections at any moment: also after they were listed.
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
