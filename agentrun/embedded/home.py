"""The state folder of `agentrun up`: one owner at a time, and a note for others that says where its servers are.

The lock ends with its holders, so it is never stale: they are our process, and the guards, which outlive it only until
the servers have stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from agentrun.embedded.errors import AlreadyRunning, EmbeddedError

_HANDOVER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """Servers that are up in a state folder, and the process they belong to."""

    pid: int
    database_url: str
    broker_url: str
    namespace: str = "default"


def default_state_dir() -> Path:
    """AGENTRUN_STATE_DIR, else where this system keeps a user's state (`~/.local/state/agentrun` on Linux)."""
    configured = os.environ.get("AGENTRUN_STATE_DIR")
    return Path(configured).expanduser() if configured else platformdirs.user_state_path("agentrun", appauthor=False)


def find_running(state_dir: Path | None = None) -> Running | None:
    """The servers that are up in this folder (the default one), whoever started them; None if there are none."""
    home = Home(state_dir or default_state_dir())
    try:
        if not home.take():
            return home.note()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise EmbeddedError(f"the state folder `{home.directory}` is another user's: {error}") from error
    home.leave()
    return None


class Home:
    """A state folder, ours from `enter` to `leave`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._note = self.directory / "running.json"
        self._lock: int | None = None

    @property
    def lock(self) -> int:
        """The file descriptor that holds the lock."""
        if self._lock is None:
            raise EmbeddedError(f"the state folder `{self.directory}` is not ours")
        return self._lock

    def enter(self) -> None:
        """Make the folder ours. AlreadyRunning: it is a live process's. EmbeddedError: it cannot be written to."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.directory / "lock").touch(mode=0o600)
            self._take_over()
        except OSError as error:
            raise EmbeddedError(
                f"the state folder `{self.directory}` cannot be used: {error}. Set AGENTRUN_STATE_DIR to another one"
            ) from error

    def take(self) -> bool:
        """Take the lock, unless somebody holds it. FileNotFoundError: there was never one."""
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def leave(self) -> None:
        """Give the folder up; nothing happens if it is not ours."""
        if self._lock is not None:
            self._note.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def announce(self, database_url: str, broker_url: str, namespace: str = "default") -> None:
        """Tell other processes where the servers are, and in which namespace whoever started them works."""
        draft = self._note.with_suffix(".new")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(Running(os.getpid(), database_url, broker_url, namespace)), file)
        draft.rename(self._note)

    def note(self) -> Running | None:
        """What was announced, if its process is alive."""
        try:
            running = Running(**json.loads(self._note.read_text()))
            os.kill(running.pid, 0)
        except (FileNotFoundError, ValueError, TypeError, ProcessLookupError):
            return None
        return running

    def _take_over(self) -> None:
        """A predecessor that was killed leaves the folder as soon as its guards have stopped the servers."""
        deadline = time.monotonic() + _HANDOVER_SECONDS
        while not self.take():
            if running := self.note():
                raise AlreadyRunning(self.directory, running)
            if time.monotonic() > deadline:
                raise EmbeddedError(f"`{self.directory / 'lock'}` is held by a process that has not said who it is")
            time.sleep(0.02)
