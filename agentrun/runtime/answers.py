"""Answers to waits, from outside: decisions, data, signals, webhooks. Who may give them, and whether they fit.

A resolution and the requeueing of its run are one transaction, whatever the run does at that moment. An answer that
cannot be recorded releases nothing; of two at once, one wins and the other hears of it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from agentrun.core.actors import Actor, Scope, asked_of, may_read
from agentrun.core.codec import decode
from agentrun.core.errors import (
    AlreadyDecided,
    Forbidden,
    InvalidAnswer,
    InvalidRequest,
    NotAllowed,
    NotFound,
)
from agentrun.core.records import Run
from agentrun.core.words import WaitKind, WaitStatus
from agentrun.runtime.filters import checked_token
from agentrun.runtime.resolving import Answer, Ended, Refused, Row
from agentrun.runtime.schemas import fits
from agentrun.runtime.sending import Sending
from agentrun.runtime.verbs import token_digest
from agentrun.store import waits
from agentrun.store.connect import type_of_row


class Answers(Sending):
    """The verbs that resolve waits, on one namespace."""

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
        here: bool = False,
    ) -> Run:
        """Approve or reject what a run asks. Single-use; bound to `digest` where one is given.

        With `here` nobody is woken: the caller goes on with the run; it needs READ for what that comes to, and has to
        know the kind (UnknownKind). Raises NotFound, Forbidden (scope, role, four eyes), NotAllowed (nothing waits for
        a decision), InvalidRequest (several do and `key` names none), AlreadyDecided, InvalidAnswer (edits that are not
        permitted).
        """
        run, actor, name = self._may(run_id, by, Scope.APPROVE)
        if here:
            self._may_go_on(run, actor, name)
        row = self._one(run, actor, WaitKind.APPROVAL, key)
        asks = decode(row["asks"])
        if approved and asks.get("four_eyes") and run.owner == name:
            raise Forbidden(f"`{name}` started run `{run_id}` and cannot approve it: somebody else has to")
        if edits is not None and not (approved and asks.get("editable")):
            raise InvalidAnswer("this approval does not permit edits; approve it as it is, or reject it with a comment")
        text = self._text({"approved": approved, "by": name, "comment": comment, "edited": edits})
        if edits is not None and asks.get("schema") is not None:
            fits(edits, asks["schema"])
        said = {"key": row["step_key"], "kind": "approval", "approved": approved, "edited": edits is not None}
        answer = Answer(text=text, by=name, said=said, comment=comment, digest=digest, roles=_roles_of(actor))
        return self._resolved(run, row, answer, actor, here=here)

    def submit(
        self,
        run_id: UUID,
        data: Any,
        *,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        here: bool = False,
    ) -> Run:
        """Give the data that a run waits for. It is validated in full before anything is claimed.

        Raises as `decide`, and InvalidAnswer naming what does not fit; the wait stays open then.
        """
        run, actor, name = self._may(run_id, by, Scope.INPUT)
        if here:
            self._may_go_on(run, actor, name)
        row = self._one(run, actor, WaitKind.INPUT, key)
        text = self._text(data)
        fits(data, decode(row["asks"])["schema"])
        said = {"key": row["step_key"], "kind": "input"}
        answer = Answer(text=text, by=name, said=said, digest=digest, roles=_roles_of(actor))
        return self._resolved(run, row, answer, actor, here=here)

    def webhook(self, token: str, payload: Any) -> Run:
        """Resolve the one wait that the token belongs to. Raises NotFound for an unknown token, AlreadyDecided.

        Whoever holds the token may answer; it does not learn what the run was asked.
        """
        row = self._database.row(waits.BY_TOKEN, {"token_digest": token_digest(checked_token(token))})
        if row is None or row["namespace"] != self._namespace["namespace"]:
            raise NotFound("no wait belongs to this token")
        run = self._commands.unchecked(row["run_id"])
        if row["status"] != WaitStatus.OPEN:
            raise AlreadyDecided(f"the wait of this token is {row['status']}; a token answers once")
        said = {"key": row["step_key"], "kind": "webhook"}
        answer = Answer(text=self._text(payload, "the webhook's payload"), by="webhook", said=said)
        return self._resolved(run, row, answer, Actor("webhook"), here=False)

    # ---- who, and on what

    def _may_go_on(self, run: Run, actor: Actor | str, name: str) -> None:
        """Before anything is recorded: a decision that nobody goes on from would wait for the sweep."""
        if not may_read(actor, run):
            raise Forbidden(
                f"`{name}` may decide for run `{run.id}`, and not hear what it comes to: going on here needs the scope "
                f"{Scope.READ}"
            )
        self._commands.kinds.require(run.kind)

    def _one(self, run: Run, actor: Actor | str, kind: WaitKind, key: str | None) -> type_of_row:
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
        asked_of(actor, rows[0]["role"], run)
        return rows[0]

    def _resolved(self, run: Run, row: Row, answer: Answer, actor: Actor | str, *, here: bool) -> Run:
        try:
            self._close(row, answer, wake=not here)
        except Ended:
            raise NotAllowed(f"run `{run.id}` is {run.status}; nothing there waits any more") from None
        except Refused:
            raise AlreadyDecided(_why_refused(run, row, answer.digest)) from None
        return self._commands.shown(run.id, to=actor)


def _roles_of(actor: Actor | str) -> frozenset[str] | None:
    return actor.roles if isinstance(actor, Actor) else None


def _why_refused(run: Run, row: Row, digest: str | None) -> str:
    if digest is not None and digest != row["asks_digest"]:
        return f"what run `{run.id}` asks is not what this decision was made on (another digest); read it again"
    return f"this wait of run `{run.id}` was answered, or put to another role, meanwhile; nothing was recorded"
