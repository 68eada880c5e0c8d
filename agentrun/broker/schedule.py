"""What beat sends, and when. Data only: the work is the runtime's, and any worker may do it as well."""

from __future__ import annotations

from typing import Any

from agentrun.broker.names import SWEEP
from agentrun.settings import Settings


def beat_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """The schedule. A message that nobody took within its interval expires: a stopped fleet wakes to no flood."""
    return {
        "agentrun-sweep": {
            "task": SWEEP,
            "schedule": settings.sweep_seconds,
            "options": {"queue": settings.system_queue, "expires": settings.sweep_seconds, "ignore_result": True},
        }
    }
