"""Absurd with bodies in one event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from absurd_sdk import AsyncAbsurd

from bench.peers import protocol
from bench.peers.absurd_sync import QUEUE, install
from bench.ticks import tick


class Peer:
    def prepare(self) -> None:
        install()

    def work(self, room: int) -> None:
        asyncio.run(_work(room))

    async def connect(self) -> None:
        self.app = AsyncAbsurd(protocol.database_url(), queue_name=QUEUE)

    async def enqueue(self, kind: str, count: int) -> None:
        await self.app.spawn(kind, count, queue=QUEUE)

    def enqueue_many(self, kind: str, count: int, runs: int) -> None:
        raise NotImplementedError


async def _work(room: int) -> None:
    app = AsyncAbsurd(protocol.database_url(), queue_name=QUEUE)

    @app.register_task(protocol.NOOP)
    async def noop(count: int, context: Any) -> int:
        tick()
        return count

    @app.register_task(protocol.RUN)
    async def run(count: int, context: Any) -> int:
        for number in range(count):
            await context.step(f"step {number}", _one)
        tick()
        return count

    @app.register_task(protocol.STEPS)
    async def steps(count: int, context: Any) -> int:
        for number in range(count):
            await context.step(f"step {number}", _noted)
        return count

    await app.start_worker(concurrency=room, poll_interval=protocol.poll_seconds())


async def _one() -> int:
    return 1


async def _noted() -> int:
    tick()
    return 1


if __name__ == "__main__":
    protocol.main(Peer())
