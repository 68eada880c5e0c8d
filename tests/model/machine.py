"""The moves of segments (living and dead), of reapers, and of people, in any order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from agentrun.core.policy import Backoff, Crash, GiveUp, decide
from agentrun.core.words import Effect, Reason, Status, StepStatus
from agentrun.runtime.settling import facts_of
from agentrun.store import claims, journal, steering, transitions
from agentrun.store.sweeping import EXPIRED
from tests.model.ground import Ground

KEYS = ("a", "b")
WRITES = (Effect.NON_IDEMPOTENT_WRITE, Effect.NON_IDEMPOTENT_WRITE, Effect.IDEMPOTENT_WRITE)
which = st.integers(0, 1_000_000)
keys = st.sampled_from(KEYS)


class Moves(Ground):
    """One rule per statement."""

    # ---- segments, the living and the dead

    @rule(n=which)
    def claim(self, n: int) -> None:
        run_id, run = self._run(n)
        if self._moved(run_id, claims.CLAIM_RUN, run.status is Status.QUEUED and run.due):
            run.claim()
            self.holders.append((run_id, run.epoch))

    @rule(n=which, key=keys, effect=st.sampled_from(WRITES), reconcilable=st.booleans())
    def fence(self, n: int, key: str, effect: Effect, reconcilable: bool) -> None:
        run_id, run, epoch = self._holder(n)
        step = run.steps.get(key)
        held = run.mine(epoch) and not run.cancel_asked
        starts = held and (step is None or step.may_start(effect))
        before = self.db.everything(run_id)
        said = {"effect": str(effect), "reconcilable": reconcilable}
        rows = self.db.do_step(journal.FENCE, run_id, epoch, key, **said)
        assert [row["key"] for row in rows] == ([key] if starts else [None] if held else [])
        if starts:
            run.start(key, effect, reconcilable=reconcilable)
        else:
            assert self.db.everything(run_id) == before

    @rule(n=which, key=keys, status=st.sampled_from([StepStatus.COMPLETED, StepStatus.FAILED]))
    def finish(self, n: int, key: str, status: StepStatus) -> None:
        run_id, run, epoch = self._holder(n)
        lands = run.mine(epoch) and self._status(run, key) is StepStatus.STARTED
        if self._step(run_id, journal.FINISH, epoch, key, lands, status=str(status)):
            run.finish(key, status)

    @rule(n=which, key=keys)
    def reconcile_says_not_applied(self, n: int, key: str) -> None:
        run_id, run, epoch = self._holder(n)
        lands = run.mine(epoch) and self._status(run, key) is StepStatus.STARTED
        if self._step(run_id, journal.NOT_APPLIED, epoch, key, lands):
            run.steps[key].status = StepStatus.NOT_APPLIED

    @rule(n=which, key=keys, status=st.sampled_from([StepStatus.COMPLETED, StepStatus.FAILED]), usage=st.booleans())
    def record(self, n: int, key: str, status: StepStatus, usage: bool) -> None:
        run_id, run, epoch = self._holder(n)
        lands = run.mine(epoch) and self._status(run, key) in (None, StepStatus.REDO)
        statement = journal.RECORD_WITH_USAGE if usage else journal.RECORD
        if self._step(run_id, statement, epoch, key, lands, status=str(status), input_tokens=7):
            run.record(key, status)
            run.lease_over = run.lease_over and not usage

    @rule(ns=st.lists(which, min_size=1, max_size=4))
    def heartbeat(self, ns: list[int]) -> None:
        held = {run_id: epoch for run_id, _, epoch in map(self._holder, ns)}
        before = {run_id: self.db.everything(run_id) for run_id in held}
        rows = self.db.do(claims.RENEW_ALL, None, run_ids=list(held), epochs=list(held.values()))
        assert {row["run_id"] for row in rows} == set(held)
        for row in rows:
            run = self.runs[row["run_id"]]
            assert row["held"] == row["renewed"] == run.mine(held[row["run_id"]])
            if row["held"]:
                run.lease_over = False
            else:
                assert self.db.everything(row["run_id"]) == before[row["run_id"]]

    @rule(n=which, to=st.sampled_from([Status.COMPLETED, Status.FAILED, Status.CANCELLED]))
    def settle(self, n: int, to: Status) -> None:
        run_id, run, epoch = self._holder(n)
        reason = Reason.NOT_RETRYABLE if to is Status.FAILED else Reason(to)
        lands = run.mine(epoch) and not (to is Status.COMPLETED and (run.cancel_asked or run.write_in_flight))
        if self._moved(run_id, transitions.SETTLE[to], lands, epoch=epoch, reason=str(reason)):
            run.settle(to, reason)

    @rule(n=which, redo=st.lists(keys, max_size=2, unique=True), delayed=st.booleans())
    def requeue(self, n: int, redo: list[str], delayed: bool) -> None:
        run_id, run, epoch = self._holder(n)
        lands = run.mine(epoch) and not run.cancel_asked and not run.write_in_flight
        delay = 3600.0 if delayed else 0.0
        if self._queued(run_id, transitions.REQUEUE, lands, epoch=epoch, redo=redo and [redo], delay=delay):
            run.requeue("requeued", delayed=delayed, redo=redo)

    @rule(n=which)
    def hand_back(self, n: int) -> None:
        run_id, run, epoch = self._holder(n)
        lands = run.mine(epoch) and not run.cancel_asked and not run.write_in_flight
        if self._queued(run_id, transitions.HAND_BACK, lands, epoch=epoch):
            run.requeue("handed_back")

    # ---- time, and the reapers

    @rule(n=which)
    def lease_runs_out(self, n: int) -> None:
        run_id, run = self._run(n)
        if run.status is Status.RUNNING:
            self.db.long_ago(run_id, "lease_expires_at")
            run.lease_over = True

    @rule(n=which)
    def delay_passes(self, n: int) -> None:
        run_id, run = self._run(n)
        if run.status is Status.QUEUED:
            self.db.long_ago(run_id, "due_at")
            run.due = True

    @rule(n=which)
    def deadline_passes(self, n: int) -> None:
        run_id, run = self._run(n)
        self.db.long_ago(run_id, "deadline_at")
        run.deadline_passed = True

    @rule()
    def reaper_looks(self) -> None:
        found = self.db.do(EXPIRED, None)
        over = {run_id for run_id, run in self.runs.items() if run.status is Status.RUNNING and run.lease_over}
        assert {row["id"] for row in found} == over
        for row in found:
            assert facts_of(row, 2) == self.runs[row["id"]].facts
        self.candidates = (self.candidates + found)[-4:]

    @precondition(lambda self: self.candidates)
    @rule(n=which)
    def reaper_acts(self, n: int) -> None:
        """On what it saw, which may be long ago."""
        row = self.candidates[n % len(self.candidates)]
        run_id, run = row["id"], self.runs[row["id"]]
        decision = decide(facts_of(row, 2), Crash(), Backoff(), luck=0)
        stale = run.mine(row["epoch"]) and run.lease_over
        if isinstance(decision, GiveUp):
            given = {"epoch": row["epoch"], "reason": str(decision.reason)}
            if self._moved(run_id, transitions.REAP_SETTLE[decision.status], stale, **given):
                run.settle(decision.status, decision.reason, reaped=True)
        else:
            lands = stale and not run.cancel_asked and not run.write_in_flight
            if self._moved(run_id, transitions.REAP_REQUEUE, lands, epoch=row["epoch"]):
                run.requeue("reaped")

    @rule(n=which)
    def deadline_ends_it(self, n: int) -> None:
        run_id, run = self._run(n)
        if self._moved(run_id, transitions.EXPIRE, run.status is Status.QUEUED and run.deadline_passed):
            run.settle(Status.FAILED, Reason.DEADLINE_EXCEEDED)

    # ---- people

    @rule(n=which)
    def cancel(self, n: int) -> None:
        run_id, run = self._run(n)
        if self._moved(run_id, steering.CANCEL, run.status is Status.QUEUED):
            run.settle(Status.CANCELLED, Reason.CANCELLED)
            run.cancel_asked = True

    @rule(n=which)
    def ask_cancel(self, n: int) -> None:
        run_id, run = self._run(n)
        if self._moved(run_id, steering.ASK_CANCEL, run.status is Status.RUNNING and not run.cancel_asked):
            run.cancel_asked = True
            run.told.append("cancel_requested")

    @rule(n=which, redo=st.lists(keys, max_size=2, unique=True))
    def redrive(self, n: int, redo: list[str]) -> None:
        run_id, run = self._run(n)
        lands = run.status is Status.FAILED and run.keeps_request and not run.write_in_flight
        if self._moved(run_id, steering.REDRIVE, lands, redo=redo and [redo]):
            run.requeue("redriven", redo=redo)

    @rule(n=which, key=keys, to=st.sampled_from([StepStatus.COMPLETED, StepStatus.NOT_APPLIED]))
    def resolve(self, n: int, key: str, to: StepStatus) -> None:
        run_id, run = self._run(n)
        over = run.status in (Status.FAILED, Status.CANCELLED)
        lands = over and self._status(run, key) is StepStatus.STARTED
        if self._moved(run_id, steering.RESOLVE[to], lands, key=key, result="1"):
            run.steps[key].status = to
            run.told.append("resolved")

    @rule(n=which)
    def dispatch_failed(self, n: int) -> None:
        run_id, run = self._run(n)
        if self._moved(run_id, transitions.DISPATCH_FAILED, run.status is Status.QUEUED and run.epoch == 0):
            run.settle(Status.FAILED, Reason.PROVIDER_FAILED)
