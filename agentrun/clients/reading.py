"""What a client reads: runs, their stories and journals, their ends; what waits for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from agentrun.broker.waiting import wait_for_end
from agentrun.clients.base import Face, RunId, as_uuid
from agentrun.core.errors import RunFailed
from agentrun.core.records import Event, Run, Step
from agentrun.core.words import Status
from agentrun.runtime.filters import checked_wait


class Reading(Face):
    """Part of what Client is: the reads."""

    def status(self, run_id: RunId) -> Run:
        """The run as its row says. Raises NotFound, NamespaceMismatch."""
        return self.commands.status(as_uuid(run_id))

    def events(self, run_id: RunId, *, after: int = -1, limit: int = 1000) -> list[Event]:
        """The run's story in order; page with `after=events[-1].seq`. Raises NotFound, NamespaceMismatch."""
        return self.commands.events(as_uuid(run_id), after=after, limit=limit)

    def steps(self, run_id: RunId) -> Sequence[Step]:
        """The run's journal. Raises NotFound, NamespaceMismatch."""
        return self.commands.steps(as_uuid(run_id))

    def wait(self, run_id: RunId, *, timeout: float | timedelta | None = None) -> Run:
        """Wait until the run is final and return it; TimeoutError after `timeout` (the run goes on).

        A hint through Redis ends the wait; the row is asked to be sure, and every few seconds in case no hint came.
        """
        return wait_for_end(self.hints, self.status, as_uuid(run_id), checked_wait(timeout))

    def result(self, run_id: RunId, *, timeout: float | timedelta | None = None) -> Any:
        """Wait, then the run's result as a JSON value. Raises RunFailed where it ended without one."""
        return result_of(self.wait(run_id, timeout=timeout))

    def inbox(
        self, *, role: str | None = None, kind: str | None = None, limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """What waits for people, oldest first: approvals, inputs and signals, with what they ask."""
        return self.asked.inbox(role=role, kind=kind, limit=limit)

    def waits(self, run_id: RunId) -> Sequence[Mapping[str, Any]]:
        """The open waits of a run, oldest first, with what they ask and its digest."""
        return self.asked.open_waits(as_uuid(run_id))

    def signals(self, run_id: RunId | None = None, *, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Signals that nobody has waited for yet, oldest first: of one run, or of all. Expired ones are not there."""
        return self.asked.signals(as_uuid(run_id) if run_id is not None else None, limit=limit)

    def list(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        kind: str | None = None,
        reason: str | None = None,
        tag: str | None = None,
        owner: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        parent: RunId | None = None,
        limit: int = 50,
        before: RunId | None = None,
    ) -> list[Run]:
        """Runs, newest first; page with `before=runs[-1].id`. `attributes` must be contained in the run's."""
        filters = {"status": status, "kind": kind, "reason": reason, "tag": tag, "owner": owner}
        filters |= {"attributes": attributes, "parent_id": as_uuid(parent) if parent is not None else None}
        return self.commands.list(filters, limit=limit, before=as_uuid(before) if before is not None else None)


def result_of(run: Run) -> Any:
    """The result of a completed run. Raises RunFailed for any other."""
    if run.status is not Status.COMPLETED:
        detail = run.error.get("message") if run.error else None
        raise RunFailed(str(run.id), run.status, run.reason, detail)
    return run.result
