"""The only importer of Celery in agentrun: the application, the tasks, sending wakes."""

from agentrun.broker.app import STEP, SWEEP, WAKE, configure, make_app
from agentrun.broker.hints import Hints
from agentrun.broker.publisher import CeleryPublisher
from agentrun.broker.worker import register

__all__ = ["STEP", "SWEEP", "WAKE", "CeleryPublisher", "Hints", "configure", "make_app", "register"]
