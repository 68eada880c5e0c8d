"""Steps done elsewhere, from outside: listed, taken with a token, and ended by whoever holds it.

A token is for one take of one step. Only its digest is stored; what it names (a run and a step) is readable in it, its
secret is not.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agentrun.core.actors import Actor, Scope, may_operate, require
from agentrun.core.codec import decode, encode, within
from agentrun.core.errors import AlreadyDecided, InvalidRequest, NotAllowed, NotFound, StaleToken
from agentrun.core.failures import Failure
from agentrun.core.records import Redispatched, Run, TakenStep
from agentrun.core.wake import Wake
from agentrun.core.words import ENDED, Effect, FailureClass, StepKind, StepStatus
from agentrun.runtime.checks import checked_name, checked_seconds
from agentrun.runtime.commands import Commands
from agentrun.runtime.filters import LARGEST_PAGE, checked_filter, checked_limit, checked_token
from agentrun.runtime.luck import luck
from agentrun.runtime.redispatch import redispatch_run
from agentrun.runtime.taking import backoff_of
from agentrun.runtime.verbs import token_digest
from agentrun.store import ending, offering, offers, taking
from agentrun.store.connect import type_of_row
from agentrun.store.sql import Statement

Row = Mapping[str, Any]


class External:
    """The verbs on external steps, and re-dispatching by hand, on one namespace."""

    def __init__(self, commands: Commands) -> None:
        self._commands, self._database, self._settings = commands, commands.database, commands.settings
        self._namespace = {"namespace": commands.settings.namespace}

    def listed(
        self, *, name: str | None = None, run_id: UUID | None = None, taken: bool = False, limit: int = 100
    ) -> list[type_of_row]:
        """External steps on offer, oldest first, with their input; with `taken` those that somebody works on too.

        Raises Forbidden where the actor may not operate.
        """
        if self._commands.actor is not None:
            may_operate(self._commands.actor)
        chosen = {"name": checked_filter("name", name), "limit": checked_limit(limit, most=LARGEST_PAGE)}
        wanted = self._namespace | chosen | {"run_id": run_id}
        return [_as_listed(row) for row in self._database.rows(offers.EXTERNAL[taken], wanted)]

    def take(self, run_id: UUID, key: str | None, *, by: Actor | str) -> TakenStep:
        """Take a step that is on offer; `key` may be left out where the run offers one only. Exclusive.

        Raises NotFound (no such run or step), Forbidden, InvalidRequest (several are on offer), and NotAllowed where
        the step is taken, has ended, is not due yet, or its run is over.
        """
        run, name = self._may(run_id, by)
        key = key or self._only_offered(run)
        token = _token(run_id, key)
        params = {"run_id": run_id, "key": key, "by": name, "token_digest": token_digest(token)}
        # Sent twice over a broken connection, the second finds what the first has taken: the token is nobody else's.
        row = self._database.row(taking.TAKE_EXTERNAL, self._namespace | params)
        row = row or self._database.row(taking.TAKE_LANDED, params)
        if row is None:
            raise self._why_not_taken(run_id, key)
        return TakenStep(
            run_id=run_id,
            key=key,
            name=row["name"],
            input=decode(row["args"]),
            effect=row["effect"],
            attempt=row["attempt"],
            redispatch_count=row["redispatch_count"],
            idempotency_key=row["idempotency_key"],
            token=token,
            run_kind=row["run_kind"],
            run_owner=row["owner"],
        )

    def complete(self, token: str, result: Any) -> None:
        """Say what the step came to. The first result counts; of a run that is over it is kept and changes nothing.

        Raises NotFound, StaleToken, AlreadyDecided (the step has ended), InvalidRequest and TooLarge.
        """
        what, limit = "the step's result", self._settings.max_result_bytes
        text = within(encode(result, what=what), limit, what=what, setting="AGENTRUN_MAX_RESULT_BYTES")
        run_id, key, row = self._taken(token)
        if not self._said(ending.COMPLETE, run_id, key, row, token, result=text):
            raise self._refused(run_id, key)

    def fail(
        self,
        token: str,
        message: str,
        *,
        error_type: str = "ExternalStepFailed",
        retryable: bool = False,
        retry_after: float | None = None,
        not_applied: bool = False,
    ) -> str:
        """Say that the step failed; returns what became of it: `retried`, `failed`, or `interrupted`.

        `retryable` uses up one of the step's tries, after its backoff (or `retry_after` seconds). Of a non-idempotent
        write the caller says with `not_applied` that nothing happened outside; without, nobody knows, and the run stops
        as at any interrupted write. Raises as `complete`; InvalidRequest for a `retry_after` that is no time to come.
        """
        retry_after = checked_seconds("retry_after", retry_after)
        run_id, key, row = self._taken(token)
        said = within(str(message), 10_000, what="an error's message", setting="a shorter one")[:2_000]
        a_class = FailureClass.CONNECTION if retryable else FailureClass.UNKNOWN
        failure = Failure(a_class, checked_name("error_type", error_type), said, key, retry_after)
        policy: dict[str, Any] = decode(row["policy"]) or {}
        if row["effect"] == Effect.NON_IDEMPOTENT_WRITE and not not_applied:
            became, statement, delay = "interrupted", ending.INTERRUPT, None
        elif retryable and row["attempt"] < policy.get("attempts", 1):
            pause = backoff_of(policy).delay(row["attempt"] - 1, luck()) if retry_after is None else retry_after
            became, statement, delay = "retried", offering.RETRY, pause
        else:
            became, statement, delay = "failed", ending.FAIL, None
        if not self._said(statement, run_id, key, row, token, error=failure, delay=delay):
            raise self._refused(run_id, key)
        return became

    def heartbeat(self, token: str, progress: Any = None) -> bool:
        """Say that somebody works on the step, and how far (a JSON value). False: its run is over, so stop.

        Stored at most once per half window. Raises NotFound, StaleToken, AlreadyDecided, TooLarge.
        """
        text = encode(progress, what="progress") if progress is not None else None
        if text is not None:
            within(text, 10_000, what="progress", setting="a shorter one")
        run_id, key, row = self._taken(token)
        policy: dict[str, Any] = decode(row["policy"]) or {}
        windows = [span for span in (policy.get("window"), policy.get("timeout")) if span]
        if windows and float(row["silent_for"]) < min(windows) / 2:
            return not row["over"]
        rows = self._said(taking.BEAT, run_id, key, row, token, progress=text)
        if not rows:
            raise self._refused(run_id, key)
        return not rows[0]["over"]

    def redispatch(self, run_id: UUID, *, by: Actor | str) -> Redispatched:
        """Send every pending remote step of a run again, now. Safe on a healthy run.

        Raises NotFound, Forbidden, and NotAllowed where the run is final.
        """
        run, name = self._may(run_id, by)
        if run.status.final:
            raise NotAllowed(f"run `{run_id}` is {run.status}; its steps are not sent again (`agentrun redrive` first)")
        sent, left = redispatch_run(self._settings, self._database, self._commands.publisher, run_id, by=name)
        return Redispatched(run_id, sent, left)

    def resolve(self, run: Run, *, applied: bool, text: str, key: str | None, by: str) -> bool:
        """An operator says, in place of whoever took an external step, how it ended. False: there is no such step.

        Not applied puts it back on offer as a new try.
        """
        rows = [row for row in self._pending(run.id) if row["status"] == StepStatus.STARTED]
        rows = [row for row in rows if key in (None, row["key"])]
        if not rows:
            return False
        if len(rows) > 1:
            keys = ", ".join(row["key"] for row in rows)
            raise InvalidRequest(f"run `{run.id}` has {len(rows)} external steps in progress; name one: {keys}")
        row = {**rows[0], "by": by}
        if applied:
            said = {"kind": str(StepKind.REMOTE), "applied": True}
            moved = self._said(ending.RESOLVE_EXTERNAL, run.id, row["key"], row, None, result=text, said=said)
        else:
            moved = self._said(offering.RETRY, run.id, row["key"], row, None, delay=0.0)
        if not moved:
            raise self._refused(run.id, row["key"])
        return True

    # ---- whose, and what

    def _may(self, run_id: UUID, by: Actor | str) -> tuple[Run, str]:
        actor = self._commands.actor or by
        run = self._commands.unchecked(run_id, asking=actor)
        return run, require(actor, Scope.OPERATE, run)

    def _pending(self, run_id: UUID) -> list[type_of_row]:
        rows = self._database.rows(offers.PENDING, {"run_id": run_id})
        return [row for row in rows if row["kind"] == StepKind.EXTERNAL]

    def _only_offered(self, run: Run) -> str:
        keys = [row["key"] for row in self._pending(run.id) if row["status"] == StepStatus.OFFERED]
        if len(keys) == 1:
            return keys[0]
        if keys:
            raise InvalidRequest(f"run `{run.id}` offers {len(keys)} external steps; name one: {', '.join(keys)}")
        raise NotAllowed(f"run `{run.id}` is {run.status} and has no external step on offer")

    def _why_not_taken(self, run_id: UUID, key: str) -> Exception:
        row = self._database.row(offers.STATE, {"run_id": run_id, "key": key})
        if row is None or row["kind"] != StepKind.EXTERNAL:
            return NotFound(f"run `{run_id}` has no external step {key}; `agentrun step list` shows what is on offer")
        if row["over"]:
            return NotAllowed(f"run `{run_id}` is over, or about to be; step {key} is not to be done any more")
        if row["status"] == StepStatus.OFFERED:
            early = f" for another {float(row['early']):.1f} s" if row["early"] is not None else ""
            return NotAllowed(f"step {key} of run `{run_id}` is not due{early}: it waits for its next try")
        if row["status"] == StepStatus.STARTED:
            return NotAllowed(f"step {key} of run `{run_id}` is taken by `{row['by']}`")
        return AlreadyDecided(f"step {key} of run `{run_id}` has ended: {row['status']}")

    def _taken(self, token: str) -> tuple[UUID, str, Row]:
        """The step that the token is for, in this take of it."""
        run_id, key = _named(token)
        row = self._database.row(offers.STATE, {"run_id": run_id, "key": key})
        if row is None or row["namespace"] != self._settings.namespace or row["kind"] != StepKind.EXTERNAL:
            raise NotFound("no step belongs to this token")
        if row["status"] in ENDED:
            raise AlreadyDecided(f"step {key} of run `{run_id}` has ended ({row['status']}); the first outcome counts")
        if row["status"] != StepStatus.STARTED or row["token_digest"] != token_digest(token):
            raise _stale(run_id, key)
        return run_id, key, row

    def _refused(self, run_id: UUID, key: str) -> NotAllowed:
        """It was this token's a moment ago."""
        row = self._database.row(offers.STATE, {"run_id": run_id, "key": key})
        if row is not None and row["status"] in ENDED:
            return AlreadyDecided(f"step {key} of run `{run_id}` has ended ({row['status']}); the first outcome counts")
        return _stale(run_id, key)

    def _said(
        self,
        statement: Statement,
        run_id: UUID,
        key: str,
        row: Row,
        token: str | None,
        *,
        result: str | None = None,
        error: Failure | None = None,
        delay: float | None = None,
        progress: str | None = None,
        said: Mapping[str, Any] | None = None,
    ) -> list[type_of_row]:
        said = {"key": key, "name": row["name"], "attempt": row["attempt"], **(said or {})}
        if error is not None:
            said["failure"] = error.as_json()
        params = self._namespace | {
            "run_id": run_id,
            "key": key,
            "by": row["by"],
            "step_epoch": row["step_epoch"] if token is None else None,
            "token_digest": token_digest(token) if token is not None else None,
            "result": result,
            "error": json.dumps(error.as_json()) if error is not None else None,
            "delay": delay,
            "data": json.dumps(said),
            "mine": "yes",
            "progress": progress,
            "silent_for": None,
        }
        rows = self._database.rows(statement, params)
        woken = [Wake.of(each, cause="step") for each in rows if each.get("status") == "waiting"]
        self._commands.publisher.wake(*woken)
        return rows


def _stale(run_id: UUID, key: str) -> StaleToken:
    return StaleToken(
        f"this token is for a take of step {key} of run `{run_id}` that is over: the step was offered again, or given "
        "up, since; drop the work, or take the step anew"
    )


def _token(run_id: UUID, key: str) -> str:
    named = base64.urlsafe_b64encode(run_id.bytes + key.encode()).decode().rstrip("=")
    return f"{named}.{secrets.token_urlsafe(24)}"


def _named(token: str) -> tuple[UUID, str]:
    """What a token names. Raises NotFound for anything that is no token, InvalidRequest for what is no text."""
    try:
        named, _, secret = checked_token(token).partition(".")
        raw = base64.urlsafe_b64decode(named + "=" * (-len(named) % 4))
        run_id, key = UUID(bytes=raw[:16]), raw[16:].decode()
    except (ValueError, UnicodeError):
        raise NotFound("no step belongs to this token") from None
    if not key or not secret or "\0" in key:
        raise NotFound("no step belongs to this token")
    return run_id, key


def _as_listed(row: Row) -> dict[str, Any]:
    said = {name: value for name, value in row.items() if name not in ("args", "progress")}
    return said | {"input": decode(row["args"]), "progress": decode(row["progress"])}
