"""Oban, the open edition, on uvloop. It has no steps: ten of them are a chain of ten jobs. Python 3.12 and up."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from oban import Job, Oban, worker
from oban.schema import install

from bench.peers import protocol
from bench.ticks import tick

_QUEUE = "bench"


@worker(queue=_QUEUE)
class Noop:
    async def process(self, job: Job) -> None:
        tick()


@worker(queue=_QUEUE)
class Run:
    async def process(self, job: Job) -> None:
        left = job.args["count"] - 1
        if left > 0:
            await Run.enqueue({"count": left})
        tick()


_KINDS: dict[str, Any] = {protocol.NOOP: Noop, protocol.RUN: Run}


class Peer:
    async def prepare(self) -> None:
        pool = await Oban.create_pool(protocol.database_url())
        await install(pool)
        await pool.close()

    def work(self, room: int) -> None:
        uvloop.run(_work(room))

    async def connect(self) -> None:
        self.oban = Oban(pool=await Oban.create_pool(protocol.database_url(), min_size=1, max_size=2))
        await self.oban.start()

    async def enqueue(self, kind: str, count: int) -> None:
        await _KINDS[kind].enqueue({"count": count})

    async def enqueue_many(self, kind: str, count: int, runs: int) -> None:
        await self.oban.enqueue_many([_KINDS[kind].new({"count": count}) for _ in range(runs)])


async def _work(room: int) -> None:
    pool = await Oban.create_pool(protocol.database_url(), min_size=4, max_size=room + 4)
    async with Oban(pool=pool, queues={_QUEUE: room}):
        await asyncio.Event().wait()


if __name__ == "__main__":
    protocol.main(Peer())
