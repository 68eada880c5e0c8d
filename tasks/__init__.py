"""The Celery application that workers, beat and Flower run: `celery -A tasks worker|beat|flower`."""

from agentrun.broker import make_app, register
from agentrun.settings import Settings
from beat_schedule import beat_schedule

settings = Settings()
app = register(make_app(settings, name="tasks"), settings)
app.conf.beat_schedule = beat_schedule(settings)
