"""What ends waits when nobody answers: time, a child whose end was missed or that never starts, signals that expire.

The sweep asks for all of it, and a process that keeps time for its own parked runs. Every write checks again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrun.core.codec import decode
from agentrun.core.words import Reason, WaitKind, WaitStatus
from agentrun.runtime.children import not_started
from agentrun.runtime.resolving import Answer, Ended, Refused, Resolving, Row
from agentrun.runtime.settling import woken_parents
from agentrun.runtime.waits import expiry
from agentrun.store import signals, starting, waits


class Unanswered(Resolving):
    """The verbs of time on waits of one namespace."""

    def due(self, row: Row, by: str) -> bool:
        """A wait's time has come: a timer is done, the rest ends as its policy says. False: answered meanwhile."""
        policy = decode(row["on_expiry"]) or {"policy": "fail"}
        if row["kind"] != WaitKind.TIMER and policy["policy"] == "escalate" and policy["role"]:
            then = json.dumps(expiry("deny" if row["kind"] == WaitKind.APPROVAL else "fail"))
            params = {"wait_id": row["id"], "role": policy["role"], "due_in": policy["seconds"], "on_expiry": then}
            return bool(self._database.rows(waits.ESCALATE, params))
        status = WaitStatus.RESOLVED if row["kind"] == WaitKind.TIMER else WaitStatus.EXPIRED
        said = {"key": row["step_key"], "kind": row["kind"], "expired": status is WaitStatus.EXPIRED}
        return self._ended(row, Answer(text=_expired(row, policy), by=by, said=said, status=status))

    def lost_child(self, row: Row, by: str) -> bool:
        """A child has ended and its parent's wait is still open: resolve it. False: somebody did."""
        said = {"key": row["step_key"], "kind": "child"}
        return self._ended(row, Answer(text=json.dumps({"child": str(row["child_id"])}), by=by, said=said))

    def end_unstarted(self, by: str, *, limit: int) -> int:
        """Settle children as failed that were not started in time; their parents hear of it. Returns how many.

        In time is what the parent said (`start_within`), or, for a kind that no live process knows, the setting: looked
        at several times, because workers may just be starting.
        """
        scope = self._namespace | {"limit": limit}
        self._database.rows(starting.STARTED, scope)
        return sum(self._end_unstarted(row, by) for row in self._database.rows(starting.LATE, scope))

    def _end_unstarted(self, row: Row, by: str) -> bool:
        policy = decode(row["on_expiry"])
        if policy["policy"] == "unknown" and not (row["anybody"] and policy["left"] <= 0):
            # Where nobody is alive at all nothing is known of anybody: that look does not count.
            left = policy["left"] - bool(row["anybody"])
            params = {
                "wait_id": row["id"],
                "due_in": policy["seconds"],
                "on_expiry": json.dumps(policy | {"left": left}),
            }
            self._database.rows(starting.LOOK_AGAIN, params)
            return False
        error = {"class": "unknown", **not_started(row["kind"], known=row["known"]), "step": None}
        said = json.dumps({"reason": str(Reason.NOT_RETRYABLE)})
        params = {"run_id": row["child_id"], "by": by, "error": json.dumps(error), "data": said}
        moved = self._database.rows(starting.NOT_STARTED, self._namespace | params)
        for child in moved:
            self._commands.publisher.settled(child["id"])
        self._commands.publisher.wake(*woken_parents(moved))
        return bool(moved)

    def forget_signals(self, *, limit: int) -> int:
        """Delete kept signals that have expired: nobody can take them any more. Returns how many."""
        return len(self._database.rows(signals.FORGET, self._namespace | {"limit": limit}))

    def _ended(self, row: Row, answer: Answer) -> bool:
        try:
            self._close(row, answer)
        except (Ended, Refused):
            return False
        return True


def _expired(row: Row, policy: Mapping[str, Any]) -> str:
    if row["kind"] == WaitKind.TIMER:
        return "null"
    match policy["policy"]:
        case "default":
            return json.dumps(policy["default"])
        case "deny" | "escalate" if row["kind"] == WaitKind.APPROVAL:
            return json.dumps({"approved": False, "by": None, "comment": "nobody decided in time", "edited": None})
        case _:
            return json.dumps({"expired": "fail"})
