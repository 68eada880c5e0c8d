"""How runs come into being: one, many, inside a caller's transaction, or here and now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from agentrun.clients.base import Face
from agentrun.runtime.checks import checked_requests
from agentrun.runtime.commands import Wishes
from agentrun.runtime.interactive import Interactive
from agentrun.store.borrowed import enqueue_in


class Producing(Face):
    """Part of what Client is: enqueueing, and running here."""

    _strict: bool

    def enqueue(
        self,
        kind: str,
        request: Any = None,
        *,
        idempotency_key: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        delay: float | timedelta | None = None,
        deadline: float | timedelta | None = None,
        tags: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        owner: str | None = None,
        limits: Mapping[str, Any] | None = None,
        planned_cost: Decimal | None = None,
        connection: Any = None,
    ) -> UUID:
        """Store a run and wake a worker; returns its id.

        `delay` and `deadline` are seconds (or timedeltas) from now; `priority` is 0 (most urgent) to 9. The same
        `idempotency_key` (within namespace and kind) returns the run that has it. `connection` is the caller's own
        SQLAlchemy connection or session, or psycopg connection, inside its transaction: the run exists if and only if
        that commits, and is woken then.

        Raises InvalidRequest (and its kinds: UnknownKind, TooLarge, IdempotencyConflict) before anything is stored,
        EnqueueFailed with strict dispatch.
        """
        wishes = Wishes(queue, priority, delay, deadline, tags, attributes, owner, limits, planned_cost)
        commands = self.commands
        params = commands.prepare(kind, request, wishes, idempotency_key)
        if connection is None:
            return commands.enqueue(params, strict=self._strict)
        taken = enqueue_in(connection, params, self.relay.announcing(commands.wake_of(params)))
        return params["run_id"] if taken is None else commands.same_as_before(params, taken)

    def enqueue_many(
        self,
        kind: str,
        requests: Sequence[Any],
        *,
        idempotency_keys: Sequence[str] | None = None,
        queue: str | None = None,
        priority: int = 0,
        delay: float | timedelta | None = None,
        deadline: float | timedelta | None = None,
        tags: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        owner: str | None = None,
    ) -> list[UUID]:
        """Store many runs of one kind in one statement and wake them; ids in the order of `requests`.

        Raises as `enqueue`, before anything is stored; InvalidRequest too where `requests` is no list of them.
        """
        wishes = Wishes(queue, priority, delay, deadline, tags, attributes, owner)
        return self.commands.enqueue_many(kind, checked_requests(requests), wishes, idempotency_keys)

    def run(
        self,
        kind: str | Callable[..., Any],
        request: Any = None,
        *,
        idempotency_key: str | None = None,
        deadline: float | timedelta | None = None,
        tags: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        owner: str | None = None,
        limits: Mapping[str, Any] | None = None,
        planned_cost: Decimal | None = None,
    ) -> Any:
        """Execute a run here and now, in an interactive segment with a lease of its own, and return its typed result.

        `kind` is registered in this process, or is the body itself. If this process dies, a worker goes on with a
        registered kind's run; the run of a plain function is dead-lettered, because nobody else could load it.

        Raises UnknownKind, InvalidRequest, and RunFailed where the run ends, or goes on elsewhere, without a result.
        """
        wishes = Wishes(None, 0, None, deadline, tags, attributes, owner, limits, planned_cost)
        return Interactive(self._engine(), self.commands).run(kind, request, wishes, idempotency_key)
