"""What stands at the other end of a command's output may be broken: one line, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrun import Client
from agentrun.settings import Settings
from agentrun.testing import environment


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("list > /dev/full", "No space left on device"),
        ("list --json > /dev/full", "No space left on device"),
        ("metrics > /dev/full", "No space left on device"),
        ("list >&-", "stdout is closed"),
    ],
)
def test_an_output_that_takes_nothing_is_told_in_one_line(
    settings: Settings, client: Client, tmp_path: Path, rest: str, says: str
) -> None:
    client.enqueue("greet", "x")
    said = _shell(settings, tmp_path, f"$AGENTRUN {rest}")
    assert (said.returncode, len(said.stderr.splitlines()), says in said.stderr) == (1, 1, True), said


def test_a_pipe_that_is_closed_is_silent(settings: Settings, client: Client, tmp_path: Path) -> None:
    client.enqueue("greet", "x")
    assert _shell(settings, tmp_path, "$AGENTRUN list | true").stderr == ""


def _shell(settings: Settings, cwd: Path, line: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment.variables(settings), "AGENTRUN": f"{sys.executable} -m agentrun.cli"}
    return subprocess.run(
        ["bash", "-c", line], env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
