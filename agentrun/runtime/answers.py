"""Answers to waits, from outside: decisions, data, signals, webhooks, and time itself.

A resolution and the requeueing of its run are one transaction, whatever the run does at that moment. An answer that
cannot be recorded releases nothing; of two at once, one wins and the other hears of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agentrun.core.actors import Actor, Scope, require
from agentrun.core.codec import decode, encode, within
from agentrun.core.errors import AlreadyDecided, Forbidden, InvalidAnswer, InvalidRequest, NotAllowed, NotFound
from agentrun.core.records import Run
from agentrun.core.wake import Wake
from agentrun.core.words import WaitKind, WaitStatus
from agentrun.runtime.commands import Commands
from agentrun.runtime.schemas import fits
from agentrun.runtime.verbs import token_digest
from agentrun.runtime.waits import expiry
from agentrun.store import waits
from agentrun.store.connect import type_of_row

Row = Mapping[str, Any]


class Answers:
    """The verbs that resolve waits, on one namespace."""

    def __init__(self, commands: Commands) -> None:
        self._commands, self._database = commands, commands.database
        self._namespace = {"namespace": commands.settings.namespace}

    def inbox(self, *, role: str | None = None, kind: str | None = None, limit: int = 100) -> list[type_of_row]:
        """What waits for people, oldest first: approvals, inputs and signals, with what they ask.

        An actor without READ finds what its own runs ask.
        """
        actor = self._commands.actor
        owner = actor.id if actor is not None and Scope.READ not in actor.scopes else None
        params = self._namespace | {"role": role, "kind": kind, "owner": owner, "limit": limit}
        rows = self._database.rows(waits.INBOX, params)
        return [row | {"asks": decode(row["asks"])} for row in rows]

    def open_waits(self, run_id: UUID) -> list[type_of_row]:
        """The open waits of one run, oldest first. Raises NotFound where an actor may not see the run."""
        self._commands.status(run_id)
        rows = self._database.rows(waits.WAITING_FOR, {"run_id": run_id, "kind": None, "name": None, "key": None})
        return [row | {"asks": decode(row["asks"])} for row in rows]

    def decide(
        self,
        run_id: UUID,
        *,
        approved: bool,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        comment: str | None = None,
        edits: Any = None,
        wake: bool = True,
    ) -> Run:
        """Approve or reject what a run asks. Single-use; bound to `digest` where one is given.

        Raises NotFound, Forbidden (scope, four eyes), NotAllowed (nothing waits for a decision), InvalidRequest
        (several do and `key` names none), AlreadyDecided, InvalidAnswer (edits that are not permitted).
        """
        run = self._commands.unchecked(run_id)
        actor = require(self._commands.actor or by, Scope.APPROVE, run)
        row = self._one(run, WaitKind.APPROVAL, key)
        asks = decode(row["asks"])
        if approved and asks.get("four_eyes") and run.owner == actor:
            raise Forbidden(f"`{actor}` started run `{run_id}` and cannot approve it: somebody else has to")
        if edits is not None and not (approved and asks.get("editable")):
            raise InvalidAnswer("this approval does not permit edits; approve it as it is, or reject it with a comment")
        if edits is not None and asks.get("schema") is not None:
            fits(edits, asks["schema"])
        answer = {"approved": approved, "by": actor, "comment": comment, "edited": edits}
        said = {"key": row["step_key"], "kind": "approval", "approved": approved, "edited": edits is not None}
        return self._resolved(run, row, answer, by=actor, comment=comment, digest=digest, said=said, wake=wake)

    def submit(
        self,
        run_id: UUID,
        data: Any,
        *,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        wake: bool = True,
    ) -> Run:
        """Give the data that a run waits for. It is validated in full before anything is claimed.

        Raises as `decide`, and InvalidAnswer naming what does not fit; the wait stays open then.
        """
        run = self._commands.unchecked(run_id)
        actor = require(self._commands.actor or by, Scope.INPUT, run)
        row = self._one(run, WaitKind.INPUT, key)
        fits(data, decode(row["asks"])["schema"])
        said = {"key": row["step_key"], "kind": "input"}
        return self._resolved(run, row, data, by=actor, comment=None, digest=digest, said=said, wake=wake)

    def signal(self, run_id: UUID, name: str, payload: Any, *, by: Actor | str, expires: float | None = None) -> Run:
        """Send a signal. It answers the oldest wait for its name, or is kept in order until one comes.

        Raises NotFound, NotAllowed where the run has ended.
        """
        run = self._commands.unchecked(run_id)
        actor = require(self._commands.actor or by, Scope.INPUT, run)
        text = self._text(payload)
        said = json.dumps({"kind": "signal", "name": name})
        params = self._namespace | {"run_id": run_id, "by": actor, "resolution": text, "payload": text, "name": name}
        params |= {"comment": None, "asks_digest": None, "expires_in": expires, "data": said}
        with self._database.transaction() as connection:
            if not connection.execute(waits.COUNT.sql, params).fetchall():
                raise NotAllowed(f"run `{run_id}` is {run.status}; nobody there will wait for a signal any more")
            waiting = {"run_id": run_id, "kind": "signal", "name": name, "key": None}
            rows = connection.execute(waits.WAITING_FOR.sql, waiting).fetchall()
            open_rows = [row for row in rows if row["token_digest"] is None]
            if open_rows:
                closing = params | {"wait_id": open_rows[0]["id"]}
                connection.execute(waits.CLOSE[WaitStatus.RESOLVED].sql, closing)
                moved = connection.execute(waits.UNPARK.sql, params).fetchall()
            else:
                connection.execute(waits.BUFFER.sql, params)
                moved = []
        self._wake(moved)
        return self._commands.unchecked(run_id)

    def webhook(self, token: str, payload: Any) -> Run:
        """Resolve the one wait that the token belongs to. Raises NotFound for an unknown token, AlreadyDecided."""
        row = self._database.row(waits.BY_TOKEN, {"token_digest": token_digest(token)})
        if row is None or row["namespace"] != self._namespace["namespace"]:
            raise NotFound("no wait belongs to this token")
        run = self._commands.unchecked(row["run_id"])
        if row["status"] != WaitStatus.OPEN:
            raise AlreadyDecided(f"the wait of this token is {row['status']}; a token answers once")
        said = {"key": row["step_key"], "kind": "webhook"}
        return self._resolved(run, row, payload, by="webhook", comment=None, digest=None, said=said, wake=True)

    def due(self, row: Row, by: str) -> bool:
        """A wait's time has come: a timer is done, the rest ends as its policy says. False: answered meanwhile."""
        policy = decode(row["on_expiry"]) or {"policy": "fail"}
        if row["kind"] != WaitKind.TIMER and policy["policy"] == "escalate" and policy["role"]:
            then = json.dumps(expiry("deny" if row["kind"] == WaitKind.APPROVAL else "fail"))
            params = {"wait_id": row["id"], "role": policy["role"], "due_in": policy["seconds"], "on_expiry": then}
            return bool(self._database.rows(waits.ESCALATE, params))
        status = WaitStatus.RESOLVED if row["kind"] == WaitKind.TIMER else WaitStatus.EXPIRED
        said = {"key": row["step_key"], "kind": row["kind"], "expired": status is WaitStatus.EXPIRED}
        return self._closed(row, self._expired(row, policy), status, by=by, said=said)

    def lost_child(self, row: Row, by: str) -> bool:
        """A child has ended and its parent's wait is still open: resolve it. False: somebody did."""
        said = {"key": row["step_key"], "kind": "child"}
        return self._closed(row, json.dumps({"child": str(row["child_id"])}), WaitStatus.RESOLVED, by=by, said=said)

    # ---- one transaction

    def _resolved(
        self,
        run: Run,
        row: Row,
        answer: Any,
        *,
        by: str,
        comment: str | None,
        digest: str | None,
        said: Mapping[str, Any],
        wake: bool,
    ) -> Run:
        params = self._params(row, self._text(answer), by=by, said=said) | {"comment": comment, "asks_digest": digest}
        with self._database.transaction() as connection:
            if not connection.execute(waits.COUNT.sql, params).fetchall():
                raise NotAllowed(f"run `{run.id}` is {run.status}; nothing there waits any more")
            if not connection.execute(waits.CLOSE[WaitStatus.RESOLVED].sql, params).fetchall():
                raise AlreadyDecided(self._why_closed(run, row, digest))
            moved = connection.execute(waits.UNPARK.sql, params).fetchall()
        if wake:
            self._wake(moved)
        return self._commands.unchecked(run.id)

    def _closed(self, row: Row, text: str, status: WaitStatus, *, by: str, said: Mapping[str, Any]) -> bool:
        params = self._params(row, text, by=by, said=said) | {"comment": None, "asks_digest": None}
        with self._database.transaction() as connection:
            if not connection.execute(waits.COUNT.sql, params).fetchall():
                return False
            if not connection.execute(waits.CLOSE[status].sql, params).fetchall():
                return False
            moved = connection.execute(waits.UNPARK.sql, params).fetchall()
        self._wake(moved)
        return True

    def _params(self, row: Row, text: str, *, by: str, said: Mapping[str, Any]) -> dict[str, Any]:
        return self._namespace | {
            "run_id": row["run_id"],
            "wait_id": row["id"],
            "resolution": text,
            "by": by,
            "data": json.dumps(said),
        }

    def _wake(self, moved: list[type_of_row]) -> None:
        self._commands.publisher.wake(*(Wake.of(row, cause="resolved") for row in moved))

    def _one(self, run: Run, kind: WaitKind, key: str | None) -> type_of_row:
        wanted = {"run_id": run.id, "kind": str(kind), "name": None, "key": key}
        rows = self._database.rows(waits.WAITING_FOR, wanted)
        if not rows:
            closed = [row for row in self._database.rows(waits.OF_RUN, {"run_id": run.id}) if row["kind"] == kind]
            if any(key in (None, row["step_key"]) for row in closed):
                raise AlreadyDecided(f"run `{run.id}` has no open {kind} any more: it is decided")
            raise NotAllowed(f"run `{run.id}` is {run.status} and waits for no {kind}")
        if len(rows) > 1:
            keys = ", ".join(row["step_key"] for row in rows)
            raise InvalidRequest(
                f"run `{run.id}` waits for {len(rows)} answers of kind {kind}; name one by key: {keys}"
            )
        return rows[0]

    def _text(self, value: Any) -> str:
        limit = self._commands.settings.max_result_bytes
        return within(encode(value, what="the answer"), limit, what="the answer", setting="AGENTRUN_MAX_RESULT_BYTES")

    @staticmethod
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

    def _why_closed(self, run: Run, row: Row, digest: str | None) -> str:
        if digest is not None and digest != row["asks_digest"]:
            return f"what run `{run.id}` asks is not what this decision was made on (another digest); read it again"
        return f"somebody has answered this wait of run `{run.id}` already; nothing was recorded"
