"""Procrastinate. It has no steps: ten of them are a chain of ten jobs."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.connector import BaseConnector

from bench.peers import protocol
from bench.ticks import tick

_QUEUE = "bench"


class Peer:
    def prepare(self) -> None:
        app = App(connector=SyncPsycopgConnector(conninfo=protocol.database_url()))
        with app.open():
            app.schema_manager.apply_schema()

    def work(self, room: int) -> None:
        asyncio.run(_work(room))

    def connect(self) -> None:
        self.app = _app(SyncPsycopgConnector(conninfo=protocol.database_url()))
        self.app.open()

    def enqueue(self, kind: str, count: int) -> None:
        self.app.tasks[kind].defer(count=count)

    def enqueue_many(self, kind: str, count: int, runs: int) -> None:
        self.app.tasks[kind].batch_defer(*({"count": count} for _ in range(runs)))


def _app(connector: BaseConnector) -> App:
    app = App(connector=connector)

    @app.task(name=protocol.NOOP, queue=_QUEUE)
    async def noop(count: int) -> None:
        tick()

    @app.task(name=protocol.RUN, queue=_QUEUE)
    async def run(count: int) -> None:
        if count > 1:
            await run.defer_async(count=count - 1)
        tick()

    return app


async def _work(room: int) -> None:
    connector = PsycopgConnector(conninfo=protocol.database_url(), min_size=4, max_size=room + 4)
    app = _app(connector)
    async with app.open_async():
        await app.run_worker_async(queues=[_QUEUE], concurrency=room)


if __name__ == "__main__":
    protocol.main(Peer())
