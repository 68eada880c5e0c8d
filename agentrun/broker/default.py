"""The Celery application for who has none of their own: `celery -A agentrun.broker.default worker|beat|flower`.

Importing it reads the settings. It is what `agentrun up` runs, and the same as `tasks` in a checkout.
"""

from __future__ import annotations

from agentrun.broker.app import make_app
from agentrun.broker.schedule import beat_schedule
from agentrun.broker.worker import register
from agentrun.settings import Settings

settings = Settings()
app = register(make_app(settings), settings)
app.conf.beat_schedule = beat_schedule(settings)
