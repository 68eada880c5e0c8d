"""Control flow that ends a segment. Raised by the context, caught only in the segment.

These derive from BaseException so that a body's `except Exception` cannot swallow them.
"""

from __future__ import annotations

from agentrun.core.words import Reason


class StopSegment(BaseException):
    """The segment ends here; the run goes on elsewhere or is already settled. Not an error."""


class Parked(StopSegment):
    """Only waits are left: the run gives up its lease."""


class Cancelled(StopSegment):
    """Somebody asked for the run's end; no step starts any more."""


class LimitReached(StopSegment):
    """The run is past its deadline, or has spent what it may: it ends here with that reason."""

    def __init__(
        self, reason: Reason = Reason.DEADLINE_EXCEEDED, detail: str = "the run's deadline has passed"
    ) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class LeaseLost(StopSegment):
    """The run belongs to another owner, or may by now: stop at once, settle nothing."""


class HandedBack(StopSegment):
    """This process drains: the run goes back to the queue, and nothing is counted."""


class ContinueAsNew(StopSegment):
    """The body asks for a fresh run with a new request in place of this one."""

    def __init__(self, request: object) -> None:
        super().__init__("continue as new")
        self.request = request
