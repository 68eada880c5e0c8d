"""Answers to what waits, also such that go on with their run in this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from agentrun.clients.base import Face, RunId, as_uuid
from agentrun.core.actors import Actor
from agentrun.core.errors import AgentrunError, InvalidRequest, NotAllowed
from agentrun.core.records import Run
from agentrun.core.wake import Wake
from agentrun.core.words import Outcome, Segment
from agentrun.runtime.interactive import awaited, refuse_draining
from agentrun.runtime.segment import run_segment
from agentrun.runtime.settling import Report


class Answering(Face):
    """Part of what Client is: decisions, data, signals."""

    def approve(
        self,
        run_id: RunId,
        *,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        comment: str | None = None,
        edits: Any = None,
        here: bool = False,
    ) -> Run:
        """Approve what a run asks; `key` names one of several. With `here`, the run goes on in this process.

        `digest` binds the decision to what was read: a changed question is refused. An actor needs APPROVE, with `here`
        READ too (it hears what the run comes to), and the role that is asked. Raises NotAllowed, AlreadyDecided,
        Forbidden, InvalidAnswer, NotFound.
        """
        run = self.answers.decide(
            as_uuid(run_id), approved=True, by=by, key=key, digest=digest, comment=comment, edits=edits, here=here
        )
        return self._go_on(run.id) if here else run

    def reject(
        self,
        run_id: RunId,
        *,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        comment: str | None = None,
        here: bool = False,
    ) -> Run:
        """Deny what a run asks: a result for its body or model, not the run's end. Raises as `approve`."""
        run = self.answers.decide(
            as_uuid(run_id), approved=False, by=by, key=key, digest=digest, comment=comment, here=here
        )
        return self._go_on(run.id) if here else run

    def submit_input(
        self,
        run_id: RunId,
        data: Any,
        *,
        by: Actor | str,
        key: str | None = None,
        digest: str | None = None,
        here: bool = False,
    ) -> Run:
        """Give the data that a run waits for, validated in full first. Raises InvalidAnswer, and as `approve`."""
        run = self.answers.submit(as_uuid(run_id), data, by=by, key=key, digest=digest, here=here)
        return self._go_on(run.id) if here else run

    def signal(
        self,
        run_id: RunId,
        name: str,
        payload: Any = None,
        *,
        by: Actor | str = "client",
        expires: float | timedelta | None = None,
    ) -> Run:
        """Send a signal. Where nobody waits for it yet it is kept, in order (see `signals`).

        It is kept for `expires` (seconds or a timedelta), by default as long as AGENTRUN_SIGNAL_EXPIRES_SECONDS says.
        """
        return self.answers.signal(as_uuid(run_id), name, payload, by=by, expires=expires)

    def signal_many(
        self,
        run_ids: Sequence[RunId],
        name: str,
        payload: Any = None,
        *,
        payloads: Sequence[Any] | None = None,
        by: Actor | str = "client",
        expires: float | timedelta | None = None,
    ) -> list[Run | AgentrunError]:
        """Send a signal to each of many runs, in order, in a few transactions: of one thread, many times faster.

        `payload` is the same for all, `payloads` has one for each. A run that is named twice gets two. Returns for each
        its run, or the error that `signal` would have raised of it (NotAllowed where it has ended, NotFound,
        Forbidden): one that is refused keeps no other from its own. Raises InvalidRequest and TooLarge before anything
        is sent; where the database fails, its error, with a note of how far this came.
        """
        answers = self.answers
        if isinstance(run_ids, str | bytes | UUID) or not isinstance(run_ids, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest("run_ids must be a list of run ids; to one run, send it with `signal`")
        ids = [as_uuid(run_id) for run_id in run_ids]
        return answers.signal_many(ids, name, payload, payloads=payloads, by=by, expires=expires)

    def webhook(self, token: str, payload: Any = None) -> Run:
        """Resolve the one wait that the token belongs to. Raises NotFound, AlreadyDecided."""
        return self.answers.webhook(token, payload)

    def resume(self, run_id: RunId) -> Run:
        """Go on with a queued run in this process, in a `resume` segment with lease, fence, heartbeat and retry.

        Returns the run as it is afterwards: final, or waiting again. Raises NotAllowed where it is not queued (it still
        waits, is executed elsewhere, or has ended), NotFound, and ConfigurationError where the database is away.
        """
        refuse_draining(self._engine())
        self.operators.may_resume(as_uuid(run_id))
        # A segment waits for a database that is away, as a worker's does; whoever asks here hears of it at once.
        self.asking.commands.shown(as_uuid(run_id))
        report = self._segment_here(as_uuid(run_id))
        run = self.asking.commands.shown(as_uuid(run_id))
        if not isinstance(report.outcome, Outcome):
            raise NotAllowed(f"run `{run.id}` cannot go on here: it is {run.status} ({report.outcome})")
        return run

    def _go_on(self, run_id: UUID) -> Run:
        """Go on with a run whose decision is recorded. Where somebody else was faster, it is returned as it is."""
        if self.held.drained.is_set():
            run = self.asking.commands.unchecked(run_id)
            self.held.publisher.wake(Wake(run.id, run.queue, run.kind, run.priority, cause="drain"))
        else:
            self._segment_here(run_id)
        return self.asking.commands.shown(run_id)

    def _segment_here(self, run_id: UUID) -> Report:
        engine = self.held.engine()
        return awaited(engine, run_id, engine.submit(run_segment(engine, run_id, Segment.RESUME)))
