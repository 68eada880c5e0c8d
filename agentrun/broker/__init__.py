"""The only importer of Celery in agentrun: the application, the tasks, sending wakes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrun.broker.hints import Hints
from agentrun.broker.names import STEP, SWEEP, WAKE
from agentrun.broker.publisher import CeleryPublisher

if TYPE_CHECKING:
    from agentrun.broker.app import configure, make_app
    from agentrun.broker.worker import register

__all__ = ["STEP", "SWEEP", "WAKE", "CeleryPublisher", "Hints", "configure", "make_app", "register"]

_WITH_CELERY = {
    "configure": "agentrun.broker.app",
    "make_app": "agentrun.broker.app",
    "register": "agentrun.broker.worker",
}


def __getattr__(name: str) -> Any:
    """What needs Celery is imported when it is asked for: a producer that only reads does without."""
    if name not in _WITH_CELERY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WITH_CELERY[name]), name)
