"""Nothing outlives the test session, even where that is killed: a small shell process, the guard, sees its end."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

# Reads "+ group" and "- group", a line each; the end of input means that the test session is gone.
_GUARD = """
trap '' INT TERM HUP
while read -r sign group; do
    if [ "$sign" = + ]; then groups="$groups $group"; else
        rest=; for each in $groups; do [ "$each" = "$group" ] || rest="$rest $each"; done; groups=$rest
    fi
done
for each in $groups; do kill -s KILL -- "-$each"; done
"""


class Started(Protocol):
    """What is asked of a process that was started: `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Guard:
    """Kills the process groups it was told of when our process ends, however that comes."""

    def __init__(self) -> None:
        shell = shutil.which("sh") or "/bin/sh"
        self._process = subprocess.Popen(
            [shell, "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> Started:
        """A process that leads a session of its own, is watched, and appends what it prints to the log."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.watch(process.pid)
        return process

    def watch(self, group: int) -> None:
        self._say(f"+ {group}")

    def forget(self, group: int) -> None:
        self._say(f"- {group}")

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(10)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
