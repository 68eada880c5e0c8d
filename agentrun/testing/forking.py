"""Processes out of the zygote: as `subprocess.Popen` makes them, without what their imports cost.

Linux only, and only where the environment says nothing that an interpreter reads at its start; elsewhere, and with
AGENTRUN_TEST_FRESH set, a process is started the ordinary way.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrun.testing.guard import Guard, Started

FRESH = "AGENTRUN_TEST_FRESH"
_AT_ITS_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "LC_", "LANG", "REMAP_SIGTERM")
_CARRIED_OVER = ("PYTHONPATH", "PYTHONUNBUFFERED")


class Forked:
    """A child of the zygote. Its exit code comes from there."""

    def __init__(self, zygote: Zygote, pid: int, argv: Sequence[str]) -> None:
        self._zygote, self.pid, self.args = zygote, pid, list(argv)

    @property
    def returncode(self) -> int | None:
        """As `poll`."""
        return self.poll()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        return self._zygote.code(self.pid, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._zygote.code(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code


class Zygote(Guard):
    """A guard that lets a process fork, which it starts on first need; `close` ends it and nothing that it forked."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._zygote: subprocess.Popen[bytes] | None = None
        self._line: socket.socket
        self._rest = b""
        self._codes: dict[int, int] = {}
        self._started: list[int] = []

    def start(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> Started:
        """As a guard's, forked where that comes to the same."""
        if not _may_be_forked(argv, env):
            return super().start(argv, cwd=cwd, env=env, log=log)
        wish = {"module": argv[2], "arguments": list(argv[3:]), "cwd": str(cwd), "env": dict(env), "log": str(log)}
        with self._lock:
            self._open()
            self._line.sendall(json.dumps(wish).encode() + b"\n")
            while not self._started:
                self._read(None)
            pid = self._started.pop()
        self.watch(pid)
        return Forked(self, pid, argv)

    def code(self, pid: int, timeout: float | None) -> int | None:
        """The exit code of a child; None where it has not ended within `timeout` seconds."""
        ends = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while pid not in self._codes:
                left = None if ends is None else max(ends - time.monotonic(), 0.0)
                if not self._read(left) and left is not None and time.monotonic() >= (ends or 0.0):
                    return None
            return self._codes[pid]

    def close(self) -> None:
        """End it, and watch no more."""
        if self._zygote is not None:
            self._line.close()
            self._zygote.wait(10)
        super().close()

    def _open(self) -> None:
        if self._zygote is not None:
            return
        self._line, theirs = socket.socketpair()
        with theirs:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "agentrun.testing.zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.watch(self._zygote.pid)

    def _read(self, timeout: float | None) -> bool:
        """Take in what the zygote says; whether it said something. AssertionError where it is gone."""
        self._line.settimeout(timeout)
        try:
            data = self._line.recv(65_536)
        except (TimeoutError, BlockingIOError):
            return False
        finally:
            self._line.settimeout(None)
        assert data, "the process that forks the tests' workers has ended"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            if "started" in said:
                self._started.append(said["started"])
            else:
                self._codes[said["ended"]] = said["code"]
        return True


def _may_be_forked(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """`python -m …` of this interpreter, with nothing else in its start."""
    return (
        sys.platform == "linux"
        and not os.environ.get(FRESH)
        and tuple(argv[:2]) == (sys.executable, "-m")
        and _at_its_start(env) == _at_its_start(os.environ)
    )


def _at_its_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_AT_ITS_START) and name not in _CARRIED_OVER}
