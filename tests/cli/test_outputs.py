"""What stands at the other end of a command's output may be broken: one line, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from agentrun import Client, Status
from agentrun.settings import Settings
from agentrun.testing import environment


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("list > /dev/full", "No space left on device"),
        ("list --json > /dev/full", "No space left on device"),
        ("metrics > /dev/full", "No space left on device"),
        ("--version > /dev/full", "No space left on device"),
        ("--help > /dev/full", "No space left on device"),
        ("list >&-", "stdout is closed"),
        ("list --json >&-", "stdout is closed"),
        ("list --json <&- >&-", "stdout is closed"),
        ("metrics >&-", "stdout is closed"),
        ("--version >&-", "stdout is closed"),
        ("--help >&-", "stdout is closed"),
        ("list --help >&-", "stdout is closed"),
    ],
)
def test_an_output_that_takes_nothing_is_told_in_one_line(
    settings: Settings, client: Client, tmp_path: Path, rest: str, says: str
) -> None:
    client.enqueue("greet", "x")
    said = _shell(settings, tmp_path, f"$AGENTRUN {rest}")
    assert (said.returncode, len(said.stderr.splitlines()), says in said.stderr) == (1, 1, True), said


def test_a_closed_output_does_not_matter_to_what_prints_nothing(settings: Settings, tmp_path: Path) -> None:
    said = _shell(settings, tmp_path, "$AGENTRUN list >&-")
    assert (said.returncode, said.stderr) == (0, "no runs\n")


def test_a_closed_output_leaves_a_refusal_its_code(settings: Settings, client: Client, tmp_path: Path) -> None:
    said = _shell(settings, tmp_path, f"$AGENTRUN show {UUID(int=7)} >&-")
    assert (said.returncode, len(said.stderr.splitlines())) == (9, 1), said


def test_what_prints_after_its_work_has_done_it(settings: Settings, client: Client, tmp_path: Path) -> None:
    run_id = client.enqueue("greet", "x")
    said = _shell(settings, tmp_path, f"$AGENTRUN cancel {run_id} >&-")
    assert (said.returncode, client.status(run_id).status) == (1, Status.CANCELLED), said


def test_a_pipe_that_is_closed_is_silent(settings: Settings, client: Client, tmp_path: Path) -> None:
    client.enqueue("greet", "x")
    assert _shell(settings, tmp_path, "$AGENTRUN list | true").stderr == ""


def _shell(settings: Settings, cwd: Path, line: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment.variables(settings), "AGENTRUN": f"{sys.executable} -m agentrun.cli"}
    return subprocess.run(
        ["bash", "-c", line], env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
