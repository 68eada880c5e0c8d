"""Answers to waits, from outside: decisions, data, signals, webhooks. Who may give them, and whether they fit.

A resolution and the requeueing of its run are one transaction, whatever the run does at that moment. An answer that
cannot be recorded releases nothing; of two at once, one wins and the other hears of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentrun.core.actors import Actor, Scope, asked_of, may_read, require
from agentrun.core.codec import decode
from agentrun.core.errors import (
    AlreadyDecided,
    Forbidden,
    InvalidAnswer,
    InvalidRequest,
    NamespaceMismatch,
    NotAllowed,
    NotFound,
)
from agentrun.core.records import Run
from agentrun.core.words import WaitKind, WaitStatus
from agentrun.runtime.checks import checked_name, checked_seconds
from agentrun.runtime.resolving import Answer, Ended, Refused, Row
from agentrun.runtime.schemas import fits
from agentrun.runtime.unanswered import Unanswered
from agentrun.runtime.verbs import token_digest
from agentrun.store import signals, waits
from agentrun.store.connect import type_of_row
from agentrun.store.reads import RUN_BY_ID, as_run


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that was checked, and who sends it."""

    run_id: UUID
    by: Actor | str
    params: Mapping[str, Any]


class Answers(Unanswered):
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
        run, actor, name = self._may(run_id, by, Scope.APPROVE, here=here)
        row = self._one(run, actor, WaitKind.APPROVAL, key)
        asks = decode(row["asks"])
        if approved and asks.get("four_eyes") and run.owner == name:
            raise Forbidden(f"`{name}` started run `{run_id}` and cannot approve it: somebody else has to")
        if edits is not None and not (approved and asks.get("editable")):
            raise InvalidAnswer("this approval does not permit edits; approve it as it is, or reject it with a comment")
        if edits is not None and asks.get("schema") is not None:
            fits(edits, asks["schema"])
        text = self._text({"approved": approved, "by": name, "comment": comment, "edited": edits})
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
        run, actor, name = self._may(run_id, by, Scope.INPUT, here=here)
        row = self._one(run, actor, WaitKind.INPUT, key)
        fits(data, decode(row["asks"])["schema"])
        said = {"key": row["step_key"], "kind": "input"}
        answer = Answer(text=self._text(data), by=name, said=said, digest=digest, roles=_roles_of(actor))
        return self._resolved(run, row, answer, actor, here=here)

    def signal(self, run_id: UUID, name: str, payload: Any, *, by: Actor | str, expires: Any = None) -> Run:
        """Send a signal. It answers the oldest wait for its name, or is kept in order until one comes.

        It is kept for `expires` seconds (or a timedelta), else for as long as the settings say. Raises NotFound,
        Forbidden, InvalidRequest, NotAllowed where the run has ended.
        """
        (answer,) = self.send([self.checked_signal(run_id, name, payload, by=by, expires=expires)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def checked_signal(self, run_id: UUID, name: str, payload: Any, *, by: Actor | str, expires: Any = None) -> Signal:
        """What `send` takes; nothing is stored yet. Raises as `signal`, but for the run that has ended."""
        actor = self._commands.actor or by
        # A plain name is not checked, and then nothing has to be read first.
        sender = actor if isinstance(actor, str) else self._may(run_id, by, Scope.INPUT)[2]
        said = {"kind": "signal", "name": checked_name("a signal's name", name)}
        answer = Answer(text=self._text(payload, "the signal's payload"), by=sender, said=said)
        kept = checked_seconds("expires", expires)
        if kept is None:
            kept = self._commands.settings.signal_expires_seconds or None
        given = {"run_id": run_id, "name": name, "payload": answer.text, "expires_in": kept}
        return Signal(run_id, actor, answer.params() | self._namespace | given)

    def send(self, asked: Sequence[Signal]) -> list[Run | Exception]:
        """Send signals, all in one transaction. Of each its run, or NotFound, NamespaceMismatch, NotAllowed."""
        lock = waits.LOCK, {"run_ids": sorted({signal.run_id for signal in asked})}
        _, *sent = self._database.together(lock, *((signals.SEND, signal.params) for signal in asked))
        self._wake([row for rows in sent for row in rows if row["woken"]])
        refused = [signal.run_id for signal, rows in zip(asked, sent, strict=True) if not rows]
        there = self._read(refused)
        return [
            self._commands.shown_as(as_run(rows[0]), signal.by) if rows else self._why(signal, there.get(signal.run_id))
            for signal, rows in zip(asked, sent, strict=True)
        ]

    def _read(self, run_ids: Sequence[UUID]) -> dict[UUID, type_of_row]:
        if not run_ids:
            return {}
        read = self._database.together(*((RUN_BY_ID, {"run_id": run_id}) for run_id in run_ids))
        return {row["id"]: row for rows in read for row in rows}

    def _why(self, signal: Signal, row: type_of_row | None) -> Exception:
        try:
            run = self._commands.known(signal.run_id, row, asking=signal.by)
        except (NotFound, NamespaceMismatch) as error:
            return error
        return NotAllowed(f"run `{run.id}` is {run.status}; nobody there will wait for a signal any more")

    def webhook(self, token: str, payload: Any) -> Run:
        """Resolve the one wait that the token belongs to. Raises NotFound for an unknown token, AlreadyDecided.

        Whoever holds the token may answer; it does not learn what the run was asked.
        """
        row = self._database.row(waits.BY_TOKEN, {"token_digest": token_digest(token)})
        if row is None or row["namespace"] != self._namespace["namespace"]:
            raise NotFound("no wait belongs to this token")
        run = self._commands.unchecked(row["run_id"])
        if row["status"] != WaitStatus.OPEN:
            raise AlreadyDecided(f"the wait of this token is {row['status']}; a token answers once")
        said = {"key": row["step_key"], "kind": "webhook"}
        answer = Answer(text=self._text(payload, "the webhook's payload"), by="webhook", said=said)
        return self._resolved(run, row, answer, Actor("webhook"), here=False)

    # ---- who, and on what

    def _may(self, run_id: UUID, by: Actor | str, scope: Scope, *, here: bool = False) -> tuple[Run, Actor | str, str]:
        """The run, who acts, and the name for the record."""
        actor = self._commands.actor or by
        run = self._commands.unchecked(run_id, asking=actor)
        name = require(actor, scope, run)
        if here:
            self._may_go_on(run, actor, name)
        return run, actor, name

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
