"""What runs ask of people, and what came for them: reads only, of what an actor may see."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from agentrun.core.actors import Scope
from agentrun.core.codec import decode
from agentrun.runtime.commands import Commands
from agentrun.runtime.filters import checked_asked, checked_filter, checked_limit
from agentrun.store import asked, waits
from agentrun.store.connect import type_of_row


class Asked:
    """The reads on waits and signals of one namespace."""

    def __init__(self, commands: Commands) -> None:
        self._commands, self._database = commands, commands.database
        self._namespace = {"namespace": commands.settings.namespace}

    def inbox(self, *, role: str | None = None, kind: str | None = None, limit: int = 100) -> list[type_of_row]:
        """What waits for people, oldest first: approvals, inputs and signals, with what they ask.

        An actor without READ finds what its own runs ask.
        """
        chosen = {"role": checked_filter("role", role), "kind": checked_asked(kind), "limit": checked_limit(limit)}
        params = self._namespace | chosen | {"owner": self._only_of()}
        return [_with_asks(row) for row in self._database.rows(asked.INBOX, params)]

    def open_waits(self, run_id: UUID) -> list[type_of_row]:
        """The open waits of one run, oldest first. Raises NotFound where an actor may not see the run."""
        self._commands.status(run_id)
        wanted = {"run_id": run_id, "kind": None, "name": None, "key": None}
        return [_with_asks(row) for row in self._database.rows(waits.WAITING_FOR, wanted)]

    def signals(self, run_id: UUID | None = None, *, limit: int = 100) -> list[type_of_row]:
        """Signals that nobody has waited for yet, oldest first: those of one run, or of all in the namespace.

        Raises NotFound where an actor may not see the run; an actor without READ finds those of its own runs.
        """
        params = self._namespace | {"run_id": run_id, "owner": self._only_of(), "limit": checked_limit(limit)}
        if run_id is not None:
            self._commands.status(run_id)
        return [row | {"payload": decode(row["payload"])} for row in self._database.rows(asked.SIGNALS_KEPT, params)]

    def _only_of(self) -> str | None:
        actor = self._commands.actor
        return actor.id if actor is not None and Scope.READ not in actor.scopes else None


def _with_asks(row: type_of_row) -> dict[str, Any]:
    return row | {"asks": decode(row["asks"])}
