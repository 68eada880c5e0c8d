"""What the demo runs on: servers, a fresh shop, and real worker processes that can be killed.

It owns processes and their environment. It knows nothing of mails or runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sqlalchemy.exc import DBAPIError

from agentrun import Settings
from agentrun.embedded import Embedded
from agentrun.store.schema import migrate
from agentrun.store.troubles import explained
from examples.support_desk.shop import URL_VARIABLE, connect, create_shop

ROOT = Path(__file__).parents[2]
SHORT_TIMES = {"lease_seconds": 4.0, "heartbeat_seconds": 1.0, "sweep_seconds": 1.0}
MARK = "made by the agentrun demo"


class ShopInUse(RuntimeError):
    """The database has a schema `shop` that is not the demo's."""


@dataclass(frozen=True)
class Stage:
    """The settings that the demo's processes share, and where their logs go."""

    settings: Settings
    environ: dict[str, str]
    logs: Path
    embedded: bool

    @contextlib.contextmanager
    def process(self, name: str, *command: str) -> Generator[Process]:
        """`celery -A tasks …` as a process group of its own; stopped at the end, however that comes."""
        path = self.logs / f"{name}.log"
        with path.open("ab") as log:
            process = Process(self._started(log, *command), path)
        try:
            yield process
        finally:
            process.stop()

    def _started(self, log: IO[bytes], *command: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "celery", "-A", "tasks", *command]
        return subprocess.Popen(
            argv, cwd=ROOT, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


@dataclass(frozen=True)
class Process:
    """A process group."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """SIGKILL to all of it: as if the machine had lost its power."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)

    def stop(self) -> None:
        """An orderly end, and a hard one where that takes too long."""
        if self.alive:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(15)
        self.kill()


@contextlib.contextmanager
def stage() -> Generator[Stage]:
    """Servers (embedded ones, unless URLs are set), schema and shop. Raises ShopInUse, ConfigurationError."""
    given = Settings()
    with contextlib.ExitStack() as stack:
        database_url, broker_url = given.database_url, given.broker_url
        if database_url is None or broker_url is None:
            servers = stack.enter_context(Embedded.temporary())
            database_url, broker_url = database_url or servers.database_url, broker_url or servers.broker_url
        namespace = f"demo-{uuid.uuid4().hex[:8]}"
        settings = given.model_copy(
            update={"database_url": database_url, "broker_url": broker_url, "namespace": namespace, **SHORT_TIMES}
        )
        try:
            migrate(database_url)
        except DBAPIError as error:
            raise explained(error) or error from None
        open_shop(database_url)
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrun-demo-")))
        yield Stage(settings, _environ(settings), logs, given.database_url is None)


def open_shop(url: str) -> None:
    """A fresh shop in place of an earlier demo's. Raises ShopInUse where a schema `shop` is somebody else's."""
    with connect(url) as connection:
        row = connection.execute(
            "SELECT obj_description(oid, 'pg_namespace') AS said FROM pg_namespace WHERE nspname = 'shop'"
        ).fetchone()
        if row is not None and row["said"] != MARK:
            raise ShopInUse(
                "the database has a schema `shop` that is not the demo's; give the demo a database of its own"
            )
        with connection.transaction():
            if row is not None:
                connection.execute("DROP SCHEMA shop CASCADE")
            create_shop(connection)
            connection.execute(f"COMMENT ON SCHEMA shop IS '{MARK}'")


def _environ(settings: Settings) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name.startswith("AGENTRUN_DEMO_")}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRUN_")}
    wanted = {
        "AGENTRUN_DATABASE_URL": settings.require_database(),
        "AGENTRUN_BROKER_URL": settings.require_broker(),
        "AGENTRUN_NAMESPACE": settings.namespace,
        "AGENTRUN_IMPORTS": "examples.support_desk.desk",
        URL_VARIABLE: settings.require_database(),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    times = {f"AGENTRUN_{name.upper()}": str(value) for name, value in SHORT_TIMES.items()}
    return ours | inherited | wanted | times
