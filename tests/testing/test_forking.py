"""Workers out of the zygote are the workers that `python -m celery` would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentrun.testing import until
from agentrun.testing.forking import FRESH, Forked, Zygote

pytestmark = pytest.mark.processes

TELLS = """
import json, os, sys, threading, uuid_utils
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["WHO"], os.getsid(0) == os.getpid(), sys.path[0]]))
print(threading.active_count(), uuid_utils.uuid7(), __name__, flush=True)
if len(sys.argv) > 2: sys.exit(int(sys.argv[2]))
sys.stdin.read() or threading.Event().wait()
"""


@pytest.fixture
def zygote(process_guard: Zygote) -> Zygote:
    return process_guard


@pytest.fixture
def another_zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def tells(tmp_path: Path) -> Path:
    (tmp_path / "tells.py").write_text(TELLS)
    return tmp_path


def _argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tells", *arguments]


def _env(**more: str) -> dict[str, str]:
    return {**os.environ, "WHO": "us", **more}


def test_a_forked_process_is_what_the_interpreter_would_have_been(zygote: Zygote, tells: Path) -> None:
    said = []
    for start in (zygote.start, super(Zygote, zygote).start):
        log = tells / "log"
        process = start(_argv("a", "3"), cwd=tells, env=_env(), log=log)
        assert process.wait(30) == 3
        said.append(log.read_text().splitlines())
        log.unlink()
    forked, ordinary = said
    assert forked[0] == ordinary[0]
    assert forked[1].split()[::2] == ordinary[1].split()[::2]


def test_no_two_forked_processes_draw_the_same_numbers(zygote: Zygote, tells: Path) -> None:
    for name in "ab":
        assert zygote.start(_argv("x", "0"), cwd=tells, env=_env(), log=tells / name).wait(30) == 0
    tails = {(tells / name).read_text().split()[-2][-12:] for name in "ab"}
    assert len(tails) == 2


def test_a_killed_child_is_seen_and_a_zygote_that_ends_takes_no_child_along(
    another_zygote: Zygote, tells: Path
) -> None:
    zygote = another_zygote
    first, second = (zygote.start(_argv(name), cwd=tells, env=_env(), log=tells / name) for name in "ab")
    assert isinstance(first, Forked)
    assert first.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.01)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait(10) == -signal.SIGKILL
    until(lambda: (tells / "b").exists() and (tells / "b").read_text())
    child = psutil.Process(second.pid)
    zygote.close()
    assert child.is_running()
    until(lambda: not child.is_running(), 10)


@pytest.mark.parametrize("why", ["hash seed", "fresh", "another program"])
def test_what_an_interpreter_reads_at_its_start_makes_it_start_afresh(
    zygote: Zygote, tells: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    env, argv = _env(), _argv("x", "0")
    match why:
        case "hash seed":
            env["PYTHONHASHSEED"] = "7"
        case "fresh":
            monkeypatch.setenv(FRESH, "1")
        case _:
            argv = [sys.executable, str(tells / "tells.py"), "x", "0"]
    process = zygote.start(argv, cwd=tells, env=env, log=tells / "log")
    assert isinstance(process, subprocess.Popen)
    assert process.wait(30) == 0
