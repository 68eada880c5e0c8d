"""Faults that are made for real, `doctor`, and the command that it names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agentrun.settings import Settings
from agentrun.testing import environment, until
from agentrun.testing.nodes import Node, celery_command
from tests.cli.conftest import Cli, cli
from tests.doctor.conftest import doctor
from tests.failure_modes.outside import TABLE
from tests.processes.conftest import Look

__all__ = ["cli", "doctor"]

BODIES = "tests.failure_modes.bodies"
SYSTEM = "agentrun,agentrun.system"


@pytest.fixture
def look(database_url: str) -> Look:
    """The test's own eyes, with the table `effects`."""
    eyes = Look(database_url)
    eyes(TABLE)
    return eyes


@pytest.fixture
def say(look: Look) -> Callable[[str], None]:
    """What bodies wait for: `go on`, `cured`."""

    def said(what: str) -> None:
        look("INSERT INTO effects (what) VALUES (%s)", (what,))

    return said


@pytest.fixture
def happened(look: Look) -> Callable[[UUID, str], None]:
    """Waits until a run has done something outside."""

    def wait(run_id: UUID, what: str, times: int = 1) -> None:
        count = "SELECT count(*) FROM effects WHERE run_id = %s AND what = %s"
        until(lambda: look.one(count, (run_id, what)) >= times, 20)

    return wait


@pytest.fixture
def start(worker: Callable[..., Node], look: Look) -> Callable[..., Node]:
    """A real worker with the bodies of this folder: `start("gpu")` consumes that queue."""

    def started(*queues: str, **options: Any) -> Node:
        return worker(queues=",".join(queues) or SYSTEM, **{"imports": [BODIES]} | options)

    return started


@pytest.fixture
def heal(cli: Cli, start: Callable[..., Node], settings: Settings) -> Callable[[dict[str, Any]], None]:
    """Does what a finding says heals it: a command of ours in this process, a worker as a process, others as such."""

    def done(finding: dict[str, Any]) -> None:
        command = shlex.split(re.sub(r"^(\w+=\S+ )+", "", finding["heal"]))
        if command[0] == "kill" or "control" in command:
            argv = command if command[0] == "kill" else celery_command(*command[1:])
            subprocess.run(argv, env={**os.environ, **environment.variables(settings)}, check=True, timeout=30)
        elif command[0] == "celery":
            start(*command[command.index("-Q") + 1].split(","))
        else:
            assert command[0] == "agentrun"
            said = cli(*command[1:])
            assert said.code == 0, said.err

    return done


def cancel(node: Node, queue: str) -> None:
    """Have a worker consume a queue no longer, as an operator does by a slip of the hand."""
    (answer,) = node.app.control.cancel_consumer(queue, destination=[node.hostname()], reply=True, timeout=10, limit=1)
    assert "ok" in answer[node.hostname()]
