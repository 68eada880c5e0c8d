"""Flower's configuration for `celery -A tasks flower` in this folder; what it says is in agentrun.broker.flower."""

from agentrun.broker.flowerconfig import address, basic_auth, format_task, tasks_columns

__all__ = ["address", "basic_auth", "format_task", "tasks_columns"]
