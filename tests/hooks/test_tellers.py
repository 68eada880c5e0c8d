"""The hooks that are shipped tell what they are given, take it as data, and are bounded in time."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrun import ConfigurationError, log_line, shell_command
from agentrun.testing import until

FACTS: dict[str, Any] = {
    "id": "stalled:1:1",
    "occasion": "stalled",
    "run_id": "0195",
    "question": "sure? $(touch pwned); `touch pwned`\nsecond line",
    "owner": None,
    "age_seconds": 12.5,
    "step": {"key": "#1", "name": "render"},
}


def test_a_command_gets_facts_on_stdin_and_as_variables(tmp_path: Path) -> None:
    shell_command(f'cd {tmp_path}; cat > in; env > env; test -n "$AGENTRUN_HOOK_QUESTION"')(FACTS)
    assert json.loads((tmp_path / "in").read_text()) == FACTS
    said = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert said["AGENTRUN_HOOK_RUN_ID"] == "0195"
    assert said["AGENTRUN_HOOK_AGE_SECONDS"] == "12.5"
    assert said["AGENTRUN_HOOK_STEP_NAME"] == "render"
    assert said["AGENTRUN_HOOK_QUESTION"] == "sure? $(touch pwned); `touch pwned` second line"
    assert "AGENTRUN_HOOK_OWNER" not in said
    assert not list(tmp_path.glob("pwned"))


def test_a_list_is_run_without_a_shell(tmp_path: Path) -> None:
    shell_command(["touch", f"{tmp_path}/$(echo a)"])(FACTS)
    assert (tmp_path / "$(echo a)").exists()


def test_a_command_that_fails_or_reads_nothing_is_told_apart() -> None:
    shell_command("exec true")({**FACTS, "question": "x" * 3_000_000})
    with pytest.raises(subprocess.CalledProcessError):
        shell_command("exit 3")(FACTS)
    with pytest.raises(ConfigurationError):
        shell_command("")


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        shell_command(f"sleep 60 & echo $! > {tmp_path}/pid; wait", timeout=0.5)(FACTS)
    assert time.monotonic() - began < 30
    pid = int((tmp_path / "pid").read_text())
    until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE,
        tolerate=psutil.NoSuchProcess,
    )


def test_a_command_may_be_agentruns_own(tmp_path: Path) -> None:
    """The variables are no settings, and are not refused as unknown ones."""
    shell_command(f"exec {sys.executable} -c 'from agentrun.settings import Settings; Settings()'", timeout=60)(FACTS)


def test_a_line_in_the_log_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="agentrun.alarms"):
        log_line()(FACTS)
    (record,) = caplog.records
    assert record.getMessage().startswith("run 0195 is stalled: age_seconds=12.5 ")
    assert "\n" not in record.getMessage()
