"""The command line inside this process (`cli`), and as a process of its own (`shell`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from agentrun import Client
from agentrun.cli import app
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.settings import Settings
from agentrun.testing import environment, until

BODIES = "tests.cli.bodies"


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one line of JSON on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def run_id(self) -> UUID:
        return UUID(self.out.splitlines()[0])


Cli = Callable[..., Said]


@pytest.fixture
def cli(settings: Settings, kinds: Registry, tmp_path: Path) -> Cli:
    """`cli("list", "--json")`; `env` adds to or replaces the settings' variables, None removes one."""
    base = {
        **environment.variables(settings),
        "AGENTRUN_IMPORTS": BODIES,
        "AGENTRUN_STATE_DIR": str(tmp_path / "nothing is up here"),
    }

    def call(*arguments: str, env: Mapping[str, str | None] | None = None, stdin: str | None = None) -> Said:
        sys.modules.pop(BODIES, None)  # what one test registered was forgotten with it
        result = CliRunner().invoke(app, list(arguments), env={**base, **(env or {})}, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def known(kinds: Registry) -> Registry:
    """The bodies of this folder, registered in this process."""
    sys.modules.pop(BODIES, None)
    kinds.load((BODIES,))
    return kinds


@pytest.fixture
def serving(engine: Engine, client: Client, known: Registry) -> Iterator[None]:
    """Something that executes what is queued, while a command of this process waits."""
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.05):
            for run in client.list(status="queued"):
                engine.run(run.id)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.fixture
def ended(engine: Engine, client: Client, known: Registry) -> Callable[..., UUID]:
    """Enqueues a run and executes it to its end."""

    def run(kind: str, request: Any = None, **wishes: Any) -> UUID:
        run_id = client.enqueue(kind, request, **wishes)
        engine.run(run_id)
        until(lambda: client.status(run_id).status.final)
        return run_id

    return run


def shell(*arguments: str, env: Mapping[str, str], cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """The command line as another process."""
    command = [sys.executable, "-m", "agentrun.cli", *arguments]
    return subprocess.run(
        command, env={**os.environ, **env}, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )
