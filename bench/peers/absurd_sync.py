"""Absurd with bodies in threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from absurd_sdk import Absurd

from bench.peers import protocol
from bench.ticks import tick

QUEUE = "bench"


class Peer:
    def prepare(self) -> None:
        install()

    def work(self, room: int) -> None:
        app = Absurd(protocol.database_url(), queue_name=QUEUE)

        @app.register_task(protocol.NOOP)
        def noop(count: int, context: Any) -> int:
            tick()
            return count

        @app.register_task(protocol.RUN)
        def run(count: int, context: Any) -> int:
            for number in range(count):
                context.step(f"step {number}", lambda number=number: number)
            tick()
            return count

        @app.register_task(protocol.STEPS)
        def steps(count: int, context: Any) -> int:
            for number in range(count):
                context.step(f"step {number}", tick)
            return count

        app.start_worker(concurrency=room, poll_interval=protocol.poll_seconds())

    def connect(self) -> None:
        self.app = Absurd(protocol.database_url(), queue_name=QUEUE)

    def enqueue(self, kind: str, count: int) -> None:
        self.app.spawn(kind, count, queue=QUEUE)

    def enqueue_many(self, kind: str, count: int, runs: int) -> None:
        raise NotImplementedError


def install() -> None:
    """As its command does it."""
    command = str(Path(sys.executable).with_name("absurdctl"))
    subprocess.run([command, "init", "--database", protocol.database_url()], check=True, capture_output=True)
    app = Absurd(protocol.database_url(), queue_name=QUEUE)
    app.create_queue(QUEUE)
    app.close()


if __name__ == "__main__":
    protocol.main(Peer())
