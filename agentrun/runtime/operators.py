"""What operators may ask: cancel, redrive, resolve, budgets. Each is a guarded move; a refusal says what would help."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from agentrun.core.actors import Actor, Scope, may_operate, named, require
from agentrun.core.codec import encode, within
from agentrun.core.errors import InvalidRequest, NotAllowed
from agentrun.core.failures import failed_steps_in, unfit_step_in
from agentrun.core.records import Run
from agentrun.core.wake import Wake
from agentrun.core.words import Effect, Reason, Status, StepStatus
from agentrun.runtime.checks import checked_name
from agentrun.runtime.commands import Commands
from agentrun.runtime.external import External
from agentrun.runtime.filters import checked_filter, checked_limit, checked_reason
from agentrun.runtime.healing import of_failed
from agentrun.runtime.settling import woken_parents
from agentrun.runtime.spending import checked_cost, checked_tokens
from agentrun.store import steering
from agentrun.store.budgets import BUDGET_SET, BUDGETS_LISTED
from agentrun.store.connect import type_of_row
from agentrun.store.mover import LOCK_RUN
from agentrun.store.orphans import OPEN_CHILDREN
from agentrun.store.reads import RUNS_FAILED
from agentrun.store.sql import Statement
from agentrun.store.sweeping import IN_FLIGHT
from agentrun.store.troubles import explaining

Both = tuple[Statement, Statement]
_CANCELS: Both = (steering.CANCEL, steering.ASK_CANCEL)
_CANCELS_OF_ORPHAN: Both = (steering.CANCEL_ORPHAN, steering.ASK_CANCEL_ORPHAN)


class Operators:
    """The operators' verbs on one namespace."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self.settings, self.database, self.publisher = commands.settings, commands.database, commands.publisher
        self._namespace = {"namespace": commands.settings.namespace}
        self.status = commands.unchecked

    def cancel(self, run_id: UUID, *, by: Actor | str) -> Run:
        """End a queued or waiting run now, or ask a running one to. Cancelling twice is no error.

        Raises NotFound, NamespaceMismatch, and NotAllowed where the run has ended otherwise, or was redriven meanwhile.
        """
        name = self._may(by, Scope.CANCEL, run_id)
        params = self._namespace | {"run_id": run_id, "by": name, "data": json.dumps({"reason": str(Reason.CANCELLED)})}
        for decide in (self._decided,) * 3 + (self._decided_under_lock,):
            ended, asked = decide(params)
            self._tell_end(ended, by=name)
            if ended is not None or asked is not None:
                return self._commands.shown(run_id, to=by)
            run = self.status(run_id)
            if run.status is Status.CANCELLED or run.cancel_requested_at is not None:
                return self._commands.shown(run_id, to=by)
            if run.status.final:
                raise NotAllowed(f"run `{run_id}` is {run.status} and cannot be cancelled")
        raise NotAllowed(f"run `{run_id}` was redriven while it was being cancelled; cancel it again")

    def _decided(self, params: Mapping[str, Any], both: Both = _CANCELS) -> tuple[type_of_row | None, ...]:
        """The run that was ended, or that was asked to end. None of both: it moved in between, or there was nothing to
        decide."""
        cancel, ask_cancel = both
        ended = self.database.row(cancel, params)
        return ended, None if ended is not None else self.database.row(ask_cancel, params)

    def _decided_under_lock(self, params: Mapping[str, Any]) -> tuple[type_of_row | None, ...]:
        """The same of a run that is claimed and put back in quick succession: no move comes between the two."""
        _, *decided = self.database.together(*((each, params) for each in (LOCK_RUN, *_CANCELS)))
        return tuple(rows[0] if rows else None for rows in decided)

    def _tell_end(self, ended: type_of_row | None, *, by: str) -> None:
        if ended is not None:
            self.publisher.settled(ended["id"])
            self.publisher.wake(*woken_parents([ended]))
            self._cancel_children(ended["id"], by=by)

    def _may(self, by: Actor | str, scope: Scope, run_id: UUID) -> str:
        """The name for the record. An actor's scope is checked; a plain name is taken as it is."""
        actor = self._commands.actor if self._commands.actor is not None else by
        return (
            named(actor)
            if isinstance(actor, str)
            else require(actor, scope, self._commands.unchecked(run_id, asking=actor))
        )

    def may_resume(self, run_id: UUID) -> None:
        """Raises NotFound or Forbidden where an actor may not go on with the run in its own process."""
        self._may("nobody", Scope.OPERATE, run_id)

    def _operates(self) -> None:
        if self._commands.actor is not None:
            may_operate(self._commands.actor)

    def _cancel_children(self, run_id: UUID, *, by: str) -> None:
        # One commit each, and not the parent's: what a crash leaves here the sweep does.
        for child in self.database.rows(OPEN_CHILDREN, self._namespace | {"parent_id": run_id, "limit": 1000}):
            self.end_orphan(child["id"], by=by)

    def end_orphan(self, run_id: UUID, *, by: str) -> bool:
        """Cancel a child whose parent has come to nothing, or ask it to end.

        False: it had ended or was asked to before, or it is no orphan any more, since somebody redrove one of them.
        """
        said = {"run_id": run_id, "by": by, "data": json.dumps({"reason": str(Reason.CANCELLED)})}
        ended, asked = self._decided(self._namespace | said, _CANCELS_OF_ORPHAN)
        self._tell_end(ended, by=by)
        return ended is not None or asked is not None

    def redrive(self, run_id: UUID, *, by: Actor | str) -> Run:
        """Put a failed run back to the queue: its journal is kept, its budget starts afresh.

        Raises NotAllowed where it is not failed, keeps no request, or has a write in flight that must be resolved.
        """
        name = self._may(by, Scope.OPERATE, run_id)
        run = self.status(run_id)
        params = self._namespace | {"run_id": run_id, "by": name, "data": "{}", "redo": failed_steps_in(run.error)}
        row = self.database.row(steering.REDRIVE, params)
        if row is None:
            raise NotAllowed(self._why_no_redrive(self.status(run_id)))
        self.publisher.wake(Wake.of(row, cause="redrive"))
        return self._commands.shown(run_id, to=by)

    def _why_no_redrive(self, run: Run) -> str:
        if run.status is not Status.FAILED:
            return f"run `{run.id}` is {run.status}; only a failed run can be redriven"
        never_repeated = Effect.NON_IDEMPOTENT_WRITE
        if any(row["effect"] == never_repeated and not row["reconcilable"] for row in self.in_flight(run.id)):
            return (
                f"run `{run.id}` has a write in flight ({never_repeated}); find out whether it happened, and say so: "
                f"`{of_failed(run.id, write_in_flight=True)}`"
            )
        return f"run `{run.id}` keeps no request to start again from; run it anew"

    def redrivable(self, *, kind: str | None = None, reason: str | None = None, limit: int = 1000) -> list[UUID]:
        """The failed runs that `redrive` would take, oldest first: a dry run before many are put back."""
        self._operates()
        chosen = {"kind": checked_filter("kind", kind), "reason": checked_reason(reason)}
        params = self._namespace | chosen | {"limit": checked_limit(limit)}
        return [row["id"] for row in self.database.rows(RUNS_FAILED, params)]

    def in_flight(self, run_id: UUID) -> list[type_of_row]:
        """The writes of a run that started and have not said how they ended."""
        self.status(run_id)
        return self.database.rows(IN_FLIGHT, {"run_id": run_id})

    def resolve(self, run_id: UUID, *, applied: bool, result: Any, key: str | None, by: Actor | str) -> Run:
        """Say how an interrupted write ended: it was applied, with this result, or it was not.

        When no other write of the run is in flight, a failed run goes back to the queue and on from its journal.
        A step that was resolved as applied may be resolved so again, with another result, while its run is failed or
        cancelled: by its `key`, or without where the run failed at that result. Raises NotFound, NotAllowed where no
        such write is in flight (also: somebody resolved it first), InvalidRequest where several are and `key` names
        none of them.
        """
        name = self._may(by, Scope.OPERATE, run_id)
        what = "the result"
        text = within(
            encode(result, what=what), self.settings.max_result_bytes, what=what, setting="AGENTRUN_MAX_RESULT_BYTES"
        )
        run = self.status(run_id)
        if not run.status.final and External(self._commands).resolve(run, applied=applied, text=text, key=key, by=name):
            return self._commands.shown(run_id, to=by)
        key = key or self._only_one(run, applied=applied)
        target = StepStatus.COMPLETED if applied else StepStatus.NOT_APPLIED
        said = json.dumps({"key": key, "applied": applied})
        params = self._namespace | {"run_id": run_id, "key": key, "by": name, "result": text, "data": said}
        with explaining(), self.database.transaction() as connection:
            if not connection.execute(steering.RESOLVE[target].sql, params).fetchall():
                raise NotAllowed(self._why_no_resolve(self.status(run_id), key))
            moved = connection.execute(steering.REDRIVE.sql, params | {"redo": None, "data": said}).fetchall()
        for row in moved:
            self.publisher.wake(Wake.of(row, cause="resolve"))
        return self._commands.shown(run_id, to=by)

    def _only_one(self, run: Run, *, applied: bool) -> str:
        keys = [row["key"] for row in self.in_flight(run.id)]
        unfit = unfit_step_in(run.error)
        if not keys and applied and run.status is Status.FAILED and unfit is not None:
            # Whose result that is, the statement asks.
            return unfit
        if not keys:
            raise NotAllowed(self._why_no_resolve(self.status(run.id), None))
        if len(keys) > 1:
            raise InvalidRequest(f"run `{run.id}` has {len(keys)} writes in flight; name one: {', '.join(keys)}")
        return keys[0]

    def _why_no_resolve(self, run: Run, key: str | None) -> str:
        if run.status not in (Status.FAILED, Status.CANCELLED):
            return f"run `{run.id}` is {run.status}; a write can be resolved once its run has failed or was cancelled"
        return (
            f"run `{run.id}` has no write in flight{f' under key {key}' if key else ''}; nothing is to be resolved. "
            "What was resolved as applied may be resolved so again, by its key, with another result"
        )

    def set_budget(
        self, owner: str, *, period: str, max_tokens: int | None = None, max_cost: Decimal | None = None
    ) -> None:
        """An owner's ceiling per `day` or `month` (UTC), in tokens and US dollars; None lifts it.

        Raises InvalidRequest for what cannot be a ceiling: a NaN among them would stop nobody, ever.
        """
        self._operates()
        if period not in ("day", "month"):
            raise InvalidRequest(f"a budget's period is day or month, not {period!r}")
        ceilings = {
            "max_tokens": checked_tokens("max_tokens", max_tokens),
            "max_cost": checked_cost("max_cost", max_cost),
        }
        params = {"owner": checked_name("owner", owner), "period": period, **ceilings}
        self.database.rows(BUDGET_SET, self._namespace | params)

    def budgets(self, owner: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Budgets with what is spent of them."""
        self._operates()
        return self.database.rows(BUDGETS_LISTED, self._namespace | {"owner": checked_filter("owner", owner)})
