"""What may look on while segments and steps execute: traces, for example. It changes nothing and hears no payload."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agentrun.runtime.lease import Lease
    from agentrun.runtime.settling import Report
    from agentrun.runtime.stepspec import StepSpec


class Seen(Protocol):
    """A segment that is looked at, from its claim to its report."""

    def step(self, spec: StepSpec, attempt: int) -> AbstractContextManager[object]:
        """Around one attempt of a step; never around a replay."""
        ...

    def ended(self, report: Report) -> None:
        """How the segment ended."""
        ...


class Observer(Protocol):
    """One for each engine; asked on the engine's loop."""

    def segment(self, claimed: Mapping[str, Any], lease: Lease) -> AbstractContextManager[Seen | None]:
        """Around a segment whose run was just claimed. None: nobody wants to see its steps."""
        ...

    def remote_step(self, taken: Mapping[str, Any], lease: Lease) -> AbstractContextManager[object]:
        """Around the function of a remote step that was taken here."""
        ...
