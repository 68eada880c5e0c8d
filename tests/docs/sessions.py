"""Console blocks: the commands of a session, what it is said to print, and shells that execute them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

GAP = "…"


@dataclass(slots=True)
class Command:
    """One command of a console block, and the lines that are printed below it."""

    text: str
    expected: list[str] = field(default_factory=list[str])


def commands_of(text: str) -> list[Command]:
    """`$ ` begins a command; what follows until the next is its output. A comment after two blanks is dropped."""
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(re.sub(r"\s{2,}# .*$", "", line[2:])))
        elif line.strip():
            assert found, f"a console block begins with a command, not with {line!r}"
            found[-1].expected.append(line)
    return found


def missing(expected: Iterable[str], printed: str) -> str | None:
    """The first expected line that was not printed, in this order. `…` stands for anything, blanks for each other."""
    lines = iter([_squeezed(line) for line in printed.splitlines()])
    for line in expected:
        pattern = ".*".join(re.escape(_squeezed(part.strip())) for part in line.split(GAP))
        if line.strip() != GAP and not any(re.search(rf"^\s*{pattern}\s*$", each) for each in lines):
            return line
    return None


def _squeezed(line: str) -> str:
    return re.sub(r"\s+", " ", line)


class Shell:
    """A bash in a folder: one terminal. It and all it started end with `close`."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self.printed = ""
        self._idle = True
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, command: str) -> None:
        """Type a command, and do not wait for it."""
        self._idle = False
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def run(self, command: str, seconds: float) -> str:
        """Type a command and wait for its end; returns what it printed. AssertionError where it fails or takes long."""
        end = uuid.uuid4().hex
        self.type(f"{command}\nprintf '\\n%s %s\\n' {end} $?")
        printed = ""
        for line in self._until(seconds, command):
            if line.startswith(end):
                self._idle = True
                assert line.split()[1] == "0", f"`{command}` ended with {line.split()[1]}:\n{printed}"
                return printed
            printed += line
        raise AssertionError(f"the shell ended in `{command}`:\n{printed}")

    def wait_for(self, expected: list[str], seconds: float) -> None:
        """Until the terminal has shown these lines."""
        ends = time.monotonic() + seconds
        while missing(expected, self.printed) is not None:
            assert time.monotonic() < ends, f"never printed: {missing(expected, self.printed)}\n{self.printed}"
            try:
                self.printed += self._lines.get(timeout=0.2)
            except Empty:
                continue

    def close(self) -> None:
        """Ctrl-C, as a person would; then whatever it takes."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, number)
                self._process.wait(0.2 if self._idle else 20)
            if self._process.poll() is not None:
                break
        self._reader.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _until(self, seconds: float, command: str) -> Iterable[str]:
        ends = time.monotonic() + seconds
        while True:
            try:
                yield self._lines.get(timeout=max(0.01, ends - time.monotonic()))
            except Empty:
                raise AssertionError(f"`{command}` takes longer than {seconds:g} s") from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
