"""What beat sends, and when: the schedule of `celery -A tasks beat`. Add entries of your own to what it returns."""

from agentrun.broker.schedule import beat_schedule

__all__ = ["beat_schedule"]
