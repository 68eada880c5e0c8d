"""A Celery application that somebody has: a result backend, late acks, redelivery of what a lost worker held."""

from __future__ import annotations

import os

from celery import Celery
from kombu import Queue

from agentrun.broker import register

BROKER = os.environ["AGENTRUN_BROKER_URL"]

app = Celery("shop", broker=BROKER, backend=BROKER)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=4,
    task_queues=[Queue("celery"), Queue("agentrun"), Queue("agentrun.system")],
    broker_transport_options={
        "visibility_timeout": 2,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
)


@app.task
def add(x: int, y: int) -> int:
    """The application's own work."""
    return x + y


register(app)
