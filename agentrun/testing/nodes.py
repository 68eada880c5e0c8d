"""Real `celery` processes as pytest-celery nodes: the nodes' interface, over local processes instead of containers.

Each process leads a session of its own, so a kill takes its children along. Nothing outlives the test.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from celery import Celery
from pytest_celery import CeleryTestContainer, CeleryTestWorker

from agentrun.testing.guard import Guard, Started
from agentrun.testing.polling import until

START_SECONDS = 60.0
STOP_SECONDS = 20.0


class LocalProcess(CeleryTestContainer):
    """A process with the interface of a container.

    Signals go to its first process, as a container's do; SIGKILL, SIGSTOP and SIGCONT to all of it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        name: str,
        workdir: Path,
        env: Mapping[str, str],
        guard: Guard,
        ready: str,
    ) -> None:
        # No super().__init__(): there is no container behind this.
        self.argv, self._name, self._workdir, self._env = list(argv), name, workdir, dict(env)
        self._guard, self._ready = guard, ready
        self._id = uuid.uuid4().hex
        self._log = workdir / f"{name}.log"
        self._seen = 0
        self.process: Started
        self.start()

    def start(self) -> None:
        """Start, again where it ran before; the log goes on."""
        self._seen = len(self.logs())
        self.process = self._guard.start(self.argv, cwd=self._workdir, env=self._env, log=self._log)

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return self._name

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> str:
        return "running" if self.process.poll() is None else "exited"

    @property
    def attrs(self) -> dict[str, Any]:
        return {"State": {"ExitCode": self.process.poll(), "Pid": self.pid}, "Config": {"Hostname": "localhost"}}

    def reload(self) -> None:
        self.process.poll()

    def logs(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal, SIGKILL where none is named; after that nothing of it is left on return."""
        number = _number(signal or "SIGKILL")
        if number in _TO_ALL:
            for process in self.family():
                _send(process.pid, number)
        else:
            _send(self.pid, number)
        if number == _KILL:
            self._clear_away()

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM, and the exit code; SIGKILL where it takes longer than `timeout`."""
        _send(self.pid, _number("SIGTERM"))
        return self.wait(timeout)

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """The exit code, once it has ended. AssertionError, with the end of its log, where it does not."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {timeout:g} s:\n{self.end_of_log()}") from None
        self._clear_away()
        return code

    def restart(self, timeout: float = STOP_SECONDS) -> None:
        if self.status == "running":
            self.stop(timeout)
        self.start()
        self.wait_ready()

    def remove(self, *_: object, **__: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.kill()

    def teardown(self) -> None:
        """Kill whatever is left of it."""
        self.kill()

    def family(self) -> list[psutil.Process]:
        """All processes of its session that live."""
        alive: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except (ProcessLookupError, PermissionError, psutil.Error):
                continue
        return alive

    def ready(self) -> bool:
        """Whether it has said so since its last start. AssertionError where it has ended instead."""
        if self.status == "exited":
            raise AssertionError(f"{self.name} ended with {self.process.poll()} at its start:\n{self.end_of_log()}")
        return self._ready in self.logs()[self._seen :]

    def wait_ready(self, timeout: float = START_SECONDS) -> LocalProcess:
        until(self.ready, timeout, tell=self.end_of_log)
        return self

    def end_of_log(self, lines: int = 40) -> str:
        return "\n".join(self.logs().splitlines()[-lines:])

    def _clear_away(self) -> None:
        for process in self.family():
            _send(process.pid, _KILL)
        self.process.wait(STOP_SECONDS)
        until(lambda: not self.family(), 10)
        self._guard.forget(self.pid)


class Node(CeleryTestWorker):
    """A `celery worker` or `celery beat` as a pytest-celery node, with a few verbs more."""

    container: LocalProcess  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, container: LocalProcess, app: Celery) -> None:
        super().__init__(container, app)

    @property
    def pid(self) -> int:
        return self.container.pid

    @property
    def alive(self) -> bool:
        return self.container.status == "running"

    def hostname(self) -> str:
        """The node's name in Celery: `name@host`."""
        argv = self.container.argv
        return argv[argv.index("-n") + 1].replace("%h", socket.gethostname())

    def kill(self, signal: str | int = "SIGKILL", reload_container: bool = True) -> None:
        """SIGKILL takes the whole process group at once; other signals go to the first process."""
        self.container.kill(signal)

    def terminate(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM: a drain. Returns the exit code."""
        return self.container.stop(timeout)

    def wait_exit(self, timeout: float = STOP_SECONDS) -> int:
        """The exit code, once it has ended."""
        return self.container.wait(timeout)

    def pause(self) -> None:
        """SIGSTOP to all of it: as a machine that hangs."""
        self.container.kill("SIGSTOP")

    def resume(self) -> None:
        """SIGCONT: the end of a `pause`."""
        self.container.kill("SIGCONT")

    def restart(self, reload_container: bool = True, force: bool = False) -> None:
        """Stop it (`force`: SIGKILL) where it runs, and start it again."""
        if force:
            self.container.kill()
        self.container.restart()

    def wait_for_log(self, log: str, message: str = "", timeout: float = 15.0) -> None:
        """Until `log` stands in the log."""
        until(lambda: log in self.logs(), timeout, tell=lambda: f"{message} {self.container.end_of_log()}")

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """As psutil shows them, the first process and its children."""
        found = [process.as_dict(columns) for process in self.container.family()]  # pyright: ignore[reportUnknownMemberType]
        return [each for each in found if all(each.get(key) == value for key, value in (filters or {}).items())]


def celery_command(*arguments: str) -> list[str]:
    """`celery` of this very interpreter."""
    return [sys.executable, "-m", "celery", *arguments]


_KILL = signal.SIGKILL
_TO_ALL = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)


def _number(name: str | int) -> signal.Signals:
    return signal.Signals[name] if isinstance(name, str) else signal.Signals(name)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
