"""Sending signals, from outside: one, or many in a few transactions, each with an answer of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentrun.core.actors import Actor, Scope, require
from agentrun.core.errors import AgentrunError, Forbidden, InvalidRequest, NamespaceMismatch, NotAllowed, NotFound
from agentrun.core.records import Run
from agentrun.runtime.checks import checked_name, checked_seconds
from agentrun.runtime.unanswered import Unanswered
from agentrun.store import signals, waits
from agentrun.store.connect import type_of_row
from agentrun.store.reads import RUN_BY_ID, as_run

_PAYLOAD = "the signal's payload"

MOST_TOGETHER = 32
"""Signals in one transaction: their runs are locked for as long as that takes, some milliseconds."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that was checked, and who sends it."""

    run_id: UUID
    by: Actor | str
    params: Mapping[str, Any]


class Sending(Unanswered):
    """Part of what Answers is: the verbs that send signals."""

    def signal(self, run_id: UUID, name: str, payload: Any, *, by: Actor | str, expires: Any = None) -> Run:
        """Send a signal. It answers the oldest wait for its name, or is kept in order until one comes.

        It is kept for `expires` seconds (or a timedelta), else for as long as the settings say. Raises NotFound,
        Forbidden, InvalidRequest, NotAllowed where the run has ended.
        """
        (answer,) = self.send([self.checked_signal(run_id, name, payload, by=by, expires=expires)])
        if isinstance(answer, AgentrunError):
            raise answer
        return answer

    def signal_many(
        self,
        run_ids: Sequence[UUID],
        name: str,
        payload: Any,
        *,
        payloads: Sequence[Any] | None,
        by: Actor | str,
        expires: Any = None,
    ) -> list[Run | AgentrunError]:
        """Send a signal to each of many runs, a few transactions for all. In order, also where a run comes twice.

        Returns for each its run, or what `signal` raises of the run itself: NotFound, NamespaceMismatch, Forbidden,
        NotAllowed. Raises InvalidRequest and TooLarge before anything is sent; where the database fails, what that
        raises, with a note of how far it got.
        """
        actor = self._commands.actor or by
        shared = self._shared(name, actor, expires)
        texts = self._texts(payload, payloads, len(run_ids))
        asked = [
            Signal(run_id, actor, {**shared, "run_id": run_id, "payload": text})
            for run_id, text in zip(run_ids, texts, strict=True)
        ]
        answers: list[Run | AgentrunError] = []
        for start in range(0, len(asked), MOST_TOGETHER):
            part = asked[start : start + MOST_TOGETHER]
            try:
                answers += self._sent(part)
            except Exception as error:
                error.add_note(_how_far(start, len(part), len(asked)))
                raise
        return answers

    def checked_signal(self, run_id: UUID, name: str, payload: Any, *, by: Actor | str, expires: Any = None) -> Signal:
        """What `send` takes; nothing is stored yet. Raises as `signal`, but for the run that has ended."""
        actor = self._commands.actor or by
        # The rights of a plain name are not checked, and then nothing has to be read first.
        if isinstance(actor, Actor):
            self._may(run_id, by, Scope.INPUT)
        given = {"run_id": run_id, "payload": self._text(payload, _PAYLOAD)}
        return Signal(run_id, actor, self._shared(name, actor, expires) | given)

    def _shared(self, name: str, actor: Actor | str, expires: Any) -> dict[str, Any]:
        """The parameters that all signals of one call have in common."""
        said = {"kind": "signal", "name": checked_name("a signal's name", name)}
        kept = checked_seconds("expires", expires)
        if kept is None:
            kept = self._commands.settings.signal_expires_seconds or None
        sender = actor.id if isinstance(actor, Actor) else checked_name("by", actor)
        return self._namespace | {"name": name, "by": sender, "data": json.dumps(said), "expires_in": kept}

    def _texts(self, payload: Any, payloads: Sequence[Any] | None, count: int) -> list[str]:
        if payloads is None:
            return [self._text(payload, _PAYLOAD)] * count
        if payload is not None:
            raise InvalidRequest("give `payload`, the same for every run, or `payloads`, one for each; not both")
        if isinstance(payloads, str | bytes) or not isinstance(payloads, Sequence) or len(payloads) != count:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(f"`payloads` must be a list of {count}, one for each run, in their order")
        return [self._text(each, _PAYLOAD) for each in payloads]

    def _sent(self, asked: Sequence[Signal]) -> list[Run | AgentrunError]:
        """As `send`, of signals whose sender's rights were not checked yet: of each also Forbidden."""
        refused = self._refused(asked)
        allowed = [signal for signal in asked if signal.run_id not in refused]
        sent = iter(self.send(allowed) if allowed else ())
        return [refused[each.run_id] if each.run_id in refused else next(sent) for each in asked]

    def _refused(self, asked: Sequence[Signal]) -> dict[UUID, AgentrunError]:
        """The runs to which their sender may send none, and why. Of a plain name nothing is read."""
        senders = {signal.run_id: signal.by for signal in asked if isinstance(signal.by, Actor)}
        there, refused = self._read([*senders]), dict[UUID, AgentrunError]()
        for run_id, sender in senders.items():
            try:
                require(sender, Scope.INPUT, self._commands.known(run_id, there.get(run_id), asking=sender))
            except (NotFound, Forbidden) as error:
                refused[run_id] = error
        return refused

    def send(self, asked: Sequence[Signal]) -> list[Run | AgentrunError]:
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

    def _why(self, signal: Signal, row: type_of_row | None) -> AgentrunError:
        try:
            run = self._commands.known(signal.run_id, row, asking=signal.by)
        except (NotFound, NamespaceMismatch) as error:
            return error
        return NotAllowed(f"run `{run.id}` is {run.status}; nobody there will wait for a signal any more")

    def _may(self, run_id: UUID, by: Actor | str, scope: Scope) -> tuple[Run, Actor | str, str]:
        """The run, who acts, and the name for the record."""
        actor = self._commands.actor or by
        run = self._commands.unchecked(run_id, asking=actor)
        return run, actor, require(actor, scope, run)


def _how_far(start: int, under_way: int, count: int) -> str:
    return (
        f"of {count} signals, in the order given, the first {start} were sent or refused; of the next {under_way} "
        f"nobody knows whether they were sent; {count - start - under_way} were not"
    )
