"""One transaction for every resolution: count it on the run, close the wait, put a parked run back to the queue.

It never decides who may answer or with what: that is `answers` and `unanswered`. Wakes follow the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrun.core.codec import encode, within
from agentrun.core.wake import Wake
from agentrun.core.words import WaitStatus
from agentrun.runtime.commands import Commands
from agentrun.store import waits
from agentrun.store.connect import type_of_row
from agentrun.store.troubles import explaining

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What resolves a wait: JSON text, whose it is, and what the event stream says of it.

    `digest` is that of what the decision was made on, `roles` are those of whoever decides; None leaves it unchecked.
    """

    text: str
    by: str
    said: Mapping[str, Any]
    comment: str | None = None
    digest: str | None = None
    roles: Iterable[str] | None = None
    status: WaitStatus = field(default=WaitStatus.RESOLVED)

    def params(self) -> dict[str, Any]:
        """For the statements of a resolution."""
        return {
            "resolution": self.text,
            "by": self.by,
            "data": json.dumps(self.said),
            "comment": self.comment,
            "asks_digest": self.digest,
            "roles": sorted(self.roles) if self.roles is not None else None,
        }


class Ended(Exception):
    """The run has ended, or is none of this namespace: nothing there waits any more."""


class Refused(Exception):
    """The wait is not open, or asks something else, or somebody else."""


class Resolving:
    """Resolves waits of one namespace."""

    def __init__(self, commands: Commands) -> None:
        self._commands, self._database = commands, commands.database
        self._namespace = {"namespace": commands.settings.namespace}

    def _close(self, row: Row, answer: Answer, *, wake: bool = True) -> None:
        """Record the answer, or nothing at all. Raises Ended where the run has, Refused where the wait takes it not."""
        params = self._namespace | {"run_id": row["run_id"], "wait_id": row["id"]} | answer.params()
        with explaining(), self._database.transaction() as connection:
            if not connection.execute(waits.COUNT.sql, params).fetchall():
                raise Ended
            if not connection.execute(waits.CLOSE[answer.status].sql, params).fetchall():
                raise Refused
            moved = connection.execute(waits.UNPARK.sql, params).fetchall()
        if wake:
            self._wake(moved)

    def _wake(self, moved: list[type_of_row]) -> None:
        self._commands.publisher.wake(*(Wake.of(row, cause="resolved") for row in moved))

    def _text(self, value: Any, what: str = "the answer") -> str:
        limit = self._commands.settings.max_result_bytes
        return within(encode(value, what=what), limit, what=what, setting="AGENTRUN_MAX_RESULT_BYTES")
