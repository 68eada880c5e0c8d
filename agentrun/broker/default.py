"""The Celery application for who has none of their own: `celery -A agentrun.broker.default worker|beat|flower`.

Importing it reads the settings. It is what `agentrun up` runs, and the same as `tasks` in a checkout.
"""

from __future__ import annotations

import logging

from agentrun.broker.app import SWEEP, make_app
from agentrun.broker.schedule import beat_schedule
from agentrun.broker.worker import register
from agentrun.settings import Settings

settings = Settings()
app = register(make_app(settings), settings)
app.conf.beat_schedule = beat_schedule(settings)


def _no_sweeps(record: logging.LogRecord) -> bool:
    return SWEEP not in record.getMessage()


for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace"):
    # They come every few seconds; what one found is told by agentrun.upkeep.
    logging.getLogger(name).addFilter(_no_sweeps)
