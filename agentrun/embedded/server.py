"""One server process: started on a loopback port, watched, stopped. What PostgreSQL and Valkey have in common.

A small shell process, the guard, waits for the end of ours and then stops the server: a SIGKILL leaves nothing behind.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Self

from agentrun.embedded.errors import EmbeddedError

# Below the range from which systems take the ports of outgoing connections: a stopped server finds its port free again.
_PORTS = range(15_000, 32_000)
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0

# Reads the server's process id, a line per change; the end of input means that we are gone. $1: what to remove, or "".
_GUARD = """
trap '' INT TERM HUP
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -INT $pid; kill -CONT $pid; n=0
    while kill -0 $pid && ! grep -qs ') Z' /proc/$pid/stat && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
    kill -KILL $pid
fi
if [ -n "$1" ]; then rm -rf "$1"; fi
"""


class Server(ABC):
    """A server with its data in a directory of its own, on one port for as long as this object lives."""

    name: str

    def __init__(self, directory: Path, *, port: int | None = None, ephemeral: bool = False) -> None:
        """`port`: insist on it, else the last one, or a free one. `ephemeral`: the directory goes when we do."""
        self.directory = directory.absolute()
        self.ephemeral = ephemeral
        self._port: int | None = port
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.guard_holds: tuple[int, ...] = ()

    # What a kind of server has to say.

    @abstractmethod
    def _prepare(self) -> None:
        """Make the directory ready; called before every start."""

    @abstractmethod
    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        """Start the process, in a session of its own."""

    @abstractmethod
    def _is_ready(self, port: int) -> bool:
        """Whether it serves."""

    def _first_start(self) -> None:  # noqa: B027 (optional)
        """Called when it serves for the first time in our process."""

    # What they have in common.

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedError(f"the embedded {self.name} has not been started")
        return self._port

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name.lower()}.log"

    def start(self) -> Self:
        """Start, and return when it serves; nothing happens if it does already. On the same port as before.

        EmbeddedError: the port is taken, or the server did not come up; it can be tried again, or closed.
        """
        if self.pid is not None:
            return self
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tell_guard(None)  # it has to be there before there is something to clear away
        self._prepare()
        if self._port is not None:
            self._start_on(self._port)
            return self
        self._start_anywhere()
        self._first_start()
        return self

    def close(self) -> None:
        """Stop for good; an ephemeral server's directory goes with it."""
        self.stop()
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait()
        self._guard = None
        if self.ephemeral:
            shutil.rmtree(self.directory, ignore_errors=True)

    @abstractmethod
    def stop(self) -> None:
        """Stop in an orderly way; `start` goes on from there."""

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._signal(signal.SIGKILL)
        self._wait_for_end()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as on a network that swallows packets."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The end of a `pause`."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()

    # How.

    def _start_anywhere(self) -> None:
        """On the port of the last time, so that addresses which people noted down stay right; else on a free one."""
        note = self.directory / "port"
        candidates = [int(note.read_text())] if note.exists() else []
        for port in (*candidates, *(free_port() for _ in range(10))):
            try:
                self._start_on(port)
            except PortTaken:
                continue  # somebody was faster between our look and the server's bind
            note.write_text(str(port))
            return
        raise EmbeddedError(f"no free port found for the embedded {self.name}; see {self.log}")

    def _start_on(self, port: int) -> None:
        if not is_free(port):
            raise PortTaken(
                f"port {port} on 127.0.0.1 is in use, so the embedded {self.name} cannot start on it; "
                "stop what listens there, or choose another port"
            )
        self._process = self._launch(port)
        self._tell_guard(self._process.pid)
        try:
            self._wait_until(lambda: self._is_ready(port), _START_SECONDS, "start")
        except EmbeddedError:
            self.kill()
            if not is_free(port):
                raise PortTaken(f"port {port} on 127.0.0.1 was taken from the embedded {self.name}") from None
            raise
        self._port = port

    def _wait_until(self, condition: Callable[[], bool], seconds: float, verb: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                why = "its process ended" if ended else f"nothing after {seconds:.0f} s"
                raise EmbeddedError(f"the embedded {self.name} did not {verb}: {why}. {self._end_of_log()}")
            time.sleep(0.01)

    def _wait_for_end(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._tell_guard(None)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _tell_guard(self, pid: int | None) -> None:
        if self._guard is None or self._guard.poll() is not None:
            remove = str(self.directory) if self.ephemeral else ""
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "agentrun-guard", remove],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is for us, not for the servers
                pass_fds=self.guard_holds,
            )
        if self._guard.stdin is None:
            raise EmbeddedError(f"the embedded {self.name} has no guard")
        self._guard.stdin.write(f"{pid or ''}\n".encode())
        self._guard.stdin.flush()

    def _end_of_log(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"The end of {self.log}:\n" + "\n".join(text.splitlines()[-15:])


class PortTaken(EmbeddedError):
    """Something else listens there."""


def free_port() -> int:
    """A loopback port on which nothing listens just now."""
    for port in random.sample(_PORTS, 200):
        if is_free(port):
            return port
    raise EmbeddedError(f"no free port between {_PORTS.start} and {_PORTS.stop} on 127.0.0.1")


def stored_secret(path: Path) -> str:
    """The password kept in `path`, made on first use; readable by its owner only."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(24))
    return path.read_text()


def is_free(port: int) -> bool:
    """Whether nothing listens on this loopback port just now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
