"""PgQueuer over asyncpg and uvloop. It has no steps: ten of them are a chain of ten jobs."""

from __future__ import annotations

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers import protocol
from bench.ticks import tick


class Peer:
    async def prepare(self) -> None:
        connection = await asyncpg.connect(protocol.database_url())
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    def work(self, room: int) -> None:
        uvloop.run(_work(room))

    async def connect(self) -> None:
        self.queries = Queries(AsyncpgDriver(await asyncpg.connect(protocol.database_url())))

    async def enqueue(self, kind: str, count: int) -> None:
        await self.queries.enqueue(kind, b"%d" % count)

    async def enqueue_many(self, kind: str, count: int, runs: int) -> None:
        await self.queries.enqueue([kind] * runs, [b"%d" % count] * runs, [0] * runs)


async def _work(room: int) -> None:
    pool = await asyncpg.create_pool(protocol.database_url(), min_size=4, max_size=room + 4)
    app = PgQueuer(AsyncpgPoolDriver(pool))

    @app.entrypoint(protocol.NOOP)
    async def noop(job: Job) -> None:
        tick()

    @app.entrypoint(protocol.RUN)
    async def run(job: Job) -> None:
        left = int(job.payload or b"1") - 1
        if left > 0:
            await app.qm.queries.enqueue(protocol.RUN, b"%d" % left)
        tick()

    await app.run(batch_size=room)


if __name__ == "__main__":
    protocol.main(Peer())
