"""Child processes that are kept alive: their lines on stderr with a prefix, restarts with backoff, an orderly end.

A small shell process, the guard, waits for the end of ours and then ends the children: a SIGKILL leaves none behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import IO

from agentrun.core.errors import ConfigurationError

LOOK_SECONDS = 1.0
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
STEADY_SECONDS = 60.0
"""A child that lived this long begins its backoff afresh."""

USAGE_ERROR, MOST_USAGE_ERRORS = 2, 3
"""How Celery ends that was called wrongly, and how often in a row until nobody hopes for another end."""

# Reads the children's process ids, a line per change; the end of input means that we are gone.
_GUARD = """
trap '' INT TERM HUP
while read -r line; do pids=$line; done
for pid in $pids; do kill -TERM $pid; done
n=0
for pid in $pids; do
    while kill -0 $pid && ! grep -qs ') Z' /proc/$pid/stat && [ $n -lt 200 ]; do sleep 0.05; n=$((n + 1)); done
    kill -s KILL -- -$pid
done
"""


@dataclass(slots=True, eq=False)
class Child:
    """One command that is to run all the time."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    starts_at: float = 0.0
    failures: int = field(default=0)

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None


Ended = tuple[Child, int]


class Children:
    """The children of this process. One thread uses it; threads of its own only read lines and wait for ends."""

    def __init__(self, children: Iterable[Child], *, say: Callable[[str], None], lock: int) -> None:
        """`say` tells people what happens; `lock` is the state folder's, held until the last child is gone."""
        self._children, self._say = list(children), say
        self._news: SimpleQueue[Ended | signal.Signals] = SimpleQueue()
        self._printing = threading.Lock()
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "agentrun-guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for us
            pass_fds=(lock,),
        )

    def signalled(self, number: int, *_: object) -> None:
        """A signal handler: the signal is news like any other."""
        self._news.put(signal.Signals(number))

    def start(self) -> None:
        """Start all."""
        for child in self._children:
            self._start(child)

    def keep(self, look: Callable[[], None]) -> None:
        """Until a signal comes: restart what ends, and call `look` about once a second.

        Raises ConfigurationError where a child ends with a usage error each time.
        """
        while True:
            with contextlib.suppress(Empty):
                match self._news.get(timeout=LOOK_SECONDS):
                    case signal.Signals():
                        return
                    case child, code:
                        self._plan_restart(child, code)
            look()
            for child in self._children:
                if child.process is None and time.monotonic() >= child.starts_at:
                    self._start(child)

    def stop(self, budget: float) -> None:
        """SIGTERM to all, and wait for their ends; SIGKILL after `budget` seconds, or at the next signal."""
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + budget
        while any(child.process for child in self._children):
            try:
                news = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                news = signal.SIGALRM
            if isinstance(news, signal.Signals):
                left = ", ".join(child.name for child in self._children if child.process)
                self._say(f"killing what has not ended: {left}; runs it held go on when their leases have run out")
                self._signal_all(signal.SIGKILL)
                deadline = time.monotonic() + budget
            else:
                self._forget(news[0])

    def close(self) -> None:
        """Let the guard go; call it when the children are gone."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()

    def _start(self, child: Child) -> None:
        child.process = process = subprocess.Popen(
            child.argv,
            env=child.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        child.started_at = time.monotonic()
        self._tell_guard()
        threading.Thread(target=self._copy, args=(child.name, process.stdout), daemon=True).start()
        threading.Thread(target=lambda: self._news.put((child, process.wait())), daemon=True).start()

    def _plan_restart(self, child: Child, code: int) -> None:
        lived = time.monotonic() - child.started_at
        child.failures = 1 if lived >= STEADY_SECONDS else child.failures + 1
        pause = min(SHORTEST_PAUSE * 2 ** (child.failures - 1), LONGEST_PAUSE)
        child.starts_at = time.monotonic() + pause
        self._forget(child)
        if code == USAGE_ERROR and child.failures >= MOST_USAGE_ERRORS:
            raise ConfigurationError(
                f"{child.name} ended at once {child.failures} times, with code {code}: it cannot be started so; the "
                f"lines that begin with `{child.name} |` say what is wrong, in an option or in a setting of Celery's"
            )
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        self._say(f"{child.name} ended {how}; it starts again in {pause:g} s")

    def _forget(self, child: Child) -> None:
        child.process = None
        self._tell_guard()

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number) if number is signal.SIGKILL else os.kill(child.pid, number)

    def _tell_guard(self) -> None:
        if self._guard.stdin is not None:
            pids = " ".join(str(child.pid) for child in self._children if child.pid is not None)
            self._guard.stdin.write(f"{pids}\n".encode())
            self._guard.stdin.flush()

    def _copy(self, name: str, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                # A terminal that went away must not block the child.
                with self._printing, contextlib.suppress(OSError, ValueError):
                    print(f"{name:>7} | {text}", file=sys.stderr, flush=True)
