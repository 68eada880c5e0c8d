"""What a peer's script can be asked for, on its command line and its standard input. It knows no peer.

`prepare` makes tables, `work N` is a worker with room for N at once, `produce` reads one request a line as JSON and
answers each with seconds. Bodies note instants in the file that the benchmark names, as agentrun's and Celery's do.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

DATABASE = "AGENTRUN_BENCH_PEER_DATABASE_URL"
POLL = "AGENTRUN_BENCH_PEER_POLL_SECONDS"

NOOP, RUN, STEPS = "noop", "run", "steps"
"""Kinds. They note instants: the first one at once, the second as its last act (a chain: in each of its jobs), the
third in each of its steps."""


class Peer(Protocol):
    """A library as the benchmark sees it. All but `work` may be coroutines; a producer stays in one event loop."""

    def prepare(self) -> Any: ...

    def work(self, room: int) -> None: ...

    def connect(self) -> Any: ...

    def enqueue(self, kind: str, count: int) -> Any:
        """One run. `count` says how many steps a body has, or how many jobs a chain."""
        ...

    def enqueue_many(self, kind: str, count: int, runs: int) -> Any:
        """All in one call. NotImplementedError where the library has none for it."""
        ...


def database_url() -> str:
    return os.environ[DATABASE]


def poll_seconds() -> float:
    """How often the library looks for work, where that is its way to find any."""
    return float(os.environ[POLL])


def main(peer: Peer) -> None:
    match sys.argv[1:]:
        case ["prepare"]:
            with asyncio.Runner() as runner:
                _finished(runner, peer.prepare())
        case ["work", room]:
            peer.work(int(room))
        case _:
            _produce(peer)


def _produce(peer: Peer) -> None:
    with asyncio.Runner() as runner:
        _finished(runner, peer.connect())
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            began = time.monotonic()
            if asked.get("at_once"):
                _finished(runner, peer.enqueue_many(asked["kind"], asked["count"], asked["runs"]))
            else:
                _repeat(runner, peer.enqueue, asked["kind"], asked["count"], asked["runs"])
            print(json.dumps({"began": began, "seconds": time.monotonic() - began}), flush=True)


def _repeat(runner: asyncio.Runner, call: Callable[..., Any], kind: str, count: int, runs: int) -> None:
    if inspect.iscoroutinefunction(call):
        runner.run(_repeat_async(call, kind, count, runs))
        return
    for _ in range(runs):
        call(kind, count)


async def _repeat_async(call: Callable[..., Awaitable[Any]], kind: str, count: int, runs: int) -> None:
    for _ in range(runs):
        await call(kind, count)


def _finished(runner: asyncio.Runner, result: Any) -> None:
    if inspect.iscoroutine(result):
        runner.run(result)
