"""What operators do, and programs that do steps of runs elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from agentrun.clients.base import Face, RunId, as_uuid
from agentrun.core.actors import Actor
from agentrun.core.records import Purged, Redispatched, Run, TakenStep
from agentrun.core.words import Status
from agentrun.runtime.checks import checked_flag
from agentrun.runtime.purging import BATCH, purge


class Operating(Face):
    """Part of what Client is: runs that are to end, to start again or to go; budgets; steps done elsewhere."""

    def cancel(self, run_id: RunId, *, by: Actor | str = "client") -> Run:
        """End a queued or waiting run at once; ask a running one to end at its next step. Idempotent."""
        return self.operators.cancel(as_uuid(run_id), by=by)

    def redrive(self, run_id: RunId, *, by: Actor | str = "client") -> Run:
        """Put a failed run back to the queue with its journal and a fresh budget. Raises NotAllowed."""
        return self.operators.redrive(as_uuid(run_id), by=by)

    def redrivable(self, *, kind: str | None = None, reason: str | None = None, limit: int = 1000) -> list[UUID]:
        """The failed runs that `redrive` would take, oldest first: what a redrive of many would touch."""
        return self.operators.redrivable(kind=kind, reason=reason, limit=limit)

    def resolve(
        self, run_id: RunId, *, applied: bool, result: Any = None, key: str | None = None, by: Actor | str = "client"
    ) -> Run:
        """Say how an interrupted write ended; the run then goes on from its journal.

        `applied=True` records `result` as the write's result, `applied=False` lets it start afresh. `key` names the
        step where several writes are in flight. What was resolved as applied may be resolved so again, with another
        result, while the run is failed or cancelled; never what recorded its own end. Of a run that waits for an
        external step, it says so in place of whoever took that. Raises NotAllowed where none is in flight, or somebody
        was first, and InvalidRequest for an `applied` that is neither true nor false: a text would count as true.
        """
        applied = checked_flag("applied", applied)
        return self.operators.resolve(as_uuid(run_id), applied=applied, result=result, key=key, by=by)

    def redispatch(self, run_id: RunId, *, by: Actor | str = "client") -> Redispatched:
        """Send every pending remote step of a run again, now: how many were, and why each other one was left.

        Safe on a healthy run: a living worker keeps its step, a result that lands meanwhile stands, and a
        non-idempotent write that somebody took is never repeated. Raises NotFound, and NotAllowed for a final run.
        """
        return self.external.redispatch(as_uuid(run_id), by=by)

    def purge(
        self,
        *,
        older_than: float | timedelta,
        status: Status | str | Sequence[Status | str] | None = None,
        kind: str | None = None,
        dead: bool = False,
        dry_run: bool = False,
        batch: int = BATCH,
        told: Callable[[Purged], object] = lambda _: None,
    ) -> Purged:
        """Remove runs that ended longer ago than `older_than` (seconds or a timedelta), and all that is stored of them.

        `status` (final ones) and `kind` choose among them. Kept are dead letters and interrupted writes unless `dead`,
        runs whose children are open, and the children of runs that are open or have failed. Idempotency keys of runs
        that went are free again. In transactions of at most `batch` runs, with pauses; `told` hears after each what
        went so far. With `dry_run` they are only counted. Raises InvalidRequest, and Forbidden for an actor.
        """
        commands = self.commands
        return purge(
            commands.database, commands.settings, actor=commands.actor, older_than=older_than, status=status, kind=kind,
            dead=dead, dry_run=dry_run, batch=batch, told=told,
        )  # fmt: skip

    def set_budget(
        self,
        owner: str,
        *,
        period: Literal["day", "month"],
        max_tokens: int | None = None,
        max_cost: Decimal | None = None,
    ) -> None:
        """An owner's ceiling per day or month (UTC), in tokens and US dollars; None lifts it."""
        self.operators.set_budget(owner, period=period, max_tokens=max_tokens, max_cost=max_cost)

    def budgets(self, owner: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Budgets, with the tokens and cost spent of them."""
        return self.operators.budgets(owner)

    # ---- steps done elsewhere

    def external_steps(
        self, *, name: str | None = None, run_id: RunId | None = None, taken: bool = False, limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """External steps on offer, oldest first, with their input; with `taken` those in progress too."""
        wanted = as_uuid(run_id) if run_id is not None else None
        return self.external.listed(name=name, run_id=wanted, taken=taken, limit=limit)

    def take_step(self, run_id: RunId, key: str | None = None, *, by: Actor | str) -> TakenStep:
        """Take an external step that is on offer: its input, and a token to answer with. Exclusive.

        `key` may be left out where the run offers one only. An actor needs OPERATE. Raises NotFound, InvalidRequest,
        and NotAllowed where the step is taken, has ended, is not due yet, or its run is over.
        """
        return self.external.take(as_uuid(run_id), key, by=by)

    def complete_step(self, token: str, result: Any = None) -> None:
        """Say what a taken step came to; its run goes on. The first result counts.

        Raises NotFound for no token of ours, StaleToken where that take is over, AlreadyDecided where the step has
        ended, InvalidRequest and TooLarge for what cannot be stored.
        """
        self.external.complete(token, result)

    def fail_step(
        self,
        token: str,
        message: str,
        *,
        error_type: str = "ExternalStepFailed",
        retryable: bool = False,
        retry_after: float | None = None,
        not_applied: bool = False,
    ) -> str:
        """Say that a taken step failed; returns `retried`, `failed` or `interrupted`.

        `retryable` uses up one of its tries. Of a non-idempotent write say `not_applied=True` where nothing happened
        outside: without, nobody knows how it ended, and the run stops as at any interrupted write. Raises as
        `complete_step`.
        """
        return self.external.fail(
            token,
            message,
            error_type=error_type,
            retryable=checked_flag("retryable", retryable),
            retry_after=retry_after,
            not_applied=checked_flag("not_applied", not_applied),
        )

    def heartbeat_step(self, token: str, progress: Any = None) -> bool:
        """Say that somebody works on a taken step, and how far. False: its run is over, so stop. Raises as above."""
        return self.external.heartbeat(token, progress)
