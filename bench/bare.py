"""Bare Celery, as it comes: no result backend, everything else at its defaults. `celery -A bench.bare worker`."""

from __future__ import annotations

import os
import time

from celery import Celery, Task

from bench.ticks import tick

NOOP, NAP, CHAIN = "bench.bare.noop", "bench.bare.nap", "bench.bare.chain"
QUEUE = "bench.bare"


def make_app(broker_url: str | None) -> Celery:
    """The application of the worker and of the producer that it is measured with."""
    app = Celery("bench.bare", broker=broker_url, set_as_current=False)
    app.conf.update(task_ignore_result=True, task_default_queue=QUEUE, broker_connection_retry_on_startup=True)
    return app


app = make_app(os.environ.get("AGENTRUN_BENCH_BROKER_URL"))


@app.task(name=NOOP)
def noop(number: int) -> int:
    """Notes when it ran: there is no row to tell."""
    tick()
    return number


@app.task(name=CHAIN, bind=True)
def chain(self: Task[[int], None], count: int) -> None:
    """So many tasks, each of which sends the next to its own queue, and notes when it ran."""
    if count > 1:
        self.apply_async((count - 1,), queue=self.request.delivery_info["routing_key"])
    tick()


@app.task(name=NAP)
def nap(seconds: float) -> None:
    """Keeps a slot of the pool."""
    time.sleep(seconds)
    tick()
