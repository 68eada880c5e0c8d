"""Real Celery processes: agentrun's workers and beat, bare Celery's workers. Killed when they are done with."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from celery import Celery

ROOT = Path(__file__).resolve().parent.parent
POOL = 100
"""Threads of a worker's pool where nothing else is said, on both sides."""

_READY_SECONDS = 60.0


class BenchError(Exception):
    """A measurement could not be made; the message says why."""


class Node:
    """One process, in a session of its own."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        *,
        program: Sequence[str] = (sys.executable, "-m", "celery"),
    ) -> None:
        self.name, self.log = name, directory / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*program, *arguments],
                env=clean_environment() | dict(environment),
                cwd=directory,  # not the checkout: a `.env` there is its owner's business
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """BenchError where the process has ended, with the end of its log."""
        if self._process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise BenchError(f"{self.name} ended with code {self._process.returncode}:\n{tail}")

    def memory(self) -> float:
        """Megabytes resident now."""
        return psutil.Process(self.pid).memory_info().rss / 1e6

    def kill(self) -> None:
        """SIGKILL, as a crash would, and wait for the end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def problems(self) -> list[str]:
        """What its log complains of, without times and ids. That no beat runs is as it should be in most places."""
        said = (_COMPLAINT.search(line) for line in self.log.read_text(errors="replace").splitlines())
        complaints = [_ID.sub("…", match[1]) for match in said if match]
        return [text for text in complaints if not text.startswith("no sweep for a while")]


_COMPLAINT = re.compile(r"(?:WARNING|ERROR|CRITICAL)/\w+\] (.*)")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def worker_arguments(app: str, name: str, queues: Sequence[str], pool: int) -> list[str]:
    """As people start one, and heard of only when something is wrong."""
    options = ["-P", "threads", "-c", str(pool), "-Q", ",".join(queues), "-n", name, "-l", "WARNING"]
    return ["-A", app, "worker", *options]


def wait_ready(control: Celery, nodes: Sequence[Node], names: Sequence[str]) -> None:
    """Return when every worker answers. BenchError where one ends, or does not answer for a minute."""
    missing, deadline = set(names), time.monotonic() + _READY_SECONDS
    while missing:
        for node in nodes:
            node.check()
        if time.monotonic() > deadline:
            raise BenchError(f"no answer from {', '.join(sorted(missing))} within {_READY_SECONDS:.0f} s")
        replies = control.control.ping(destination=sorted(missing), timeout=0.5, limit=len(missing)) or []
        missing -= {name for reply in replies for name in reply}


def clean_environment() -> dict[str, str]:
    """Nobody's own settings take part in a measurement."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRUN_")}
    return inherited | {"PYTHONPATH": str(ROOT)}
