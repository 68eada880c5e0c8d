"""What a run must look like after each statement, in plain Python: the specification that the SQL is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrun.core.policy import Facts
from agentrun.core.words import Effect, Reason, Status, StepStatus

COUNTERS = ("requeue_count", "crash_count", "error_count", "handback_count", "redrive_count")


@dataclass
class ShadowStep:
    """One step, and how often it was started since somebody last knew that nothing had happened."""

    status: StepStatus
    effect: Effect
    reconcilable: bool = False
    starts: int = 0

    def may_start(self, effect: Effect) -> bool:
        """Whether a write that is now declared as `effect` may start under this key."""
        if self.status in (StepStatus.NOT_APPLIED, StepStatus.REDO):
            return True
        return self.status is StepStatus.STARTED and self.effect is effect is Effect.IDEMPOTENT_WRITE

    @property
    def in_flight(self) -> bool:
        """Started, not ended, not to be repeated, and nobody can be asked."""
        unrepeatable = self.effect is Effect.NON_IDEMPOTENT_WRITE and not self.reconcilable
        return self.status is StepStatus.STARTED and unrepeatable


@dataclass
class ShadowRun:
    """One run. `told` are the types of its events; every accepted statement appends to it."""

    keeps_request: bool
    status: Status
    epoch: int = 0
    reason: str | None = None
    due: bool = True
    lease_over: bool = False
    cancel_asked: bool = False
    deadline_passed: bool = False
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    steps: dict[str, ShadowStep] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def mine(self, epoch: int) -> bool:
        return self.status is Status.RUNNING and self.epoch == epoch

    @property
    def write_in_flight(self) -> bool:
        return any(step.in_flight for step in self.steps.values())

    @property
    def facts(self) -> Facts:
        return Facts(
            has_request=self.keeps_request,
            requeue_count=self.counts["requeue_count"],
            max_requeues=2,
            write_in_flight=self.write_in_flight,
            deadline_passed=self.deadline_passed,
            cancel_requested=self.cancel_asked,
        )

    @property
    def pending_effect(self) -> str | None:
        started = [str(step.effect) for step in self.steps.values() if step.status is StepStatus.STARTED]
        return max(started, default=None)

    # ---- what the statements do, once they are accepted

    def claim(self) -> None:
        self.status, self.epoch, self.lease_over = Status.RUNNING, self.epoch + 1, False
        self.told.append("claimed")

    def requeue(self, verb: str, *, delayed: bool = False, redo: Sequence[str] = ()) -> None:
        self.status, self.due, self.reason = Status.QUEUED, not delayed, None
        match verb:
            case "requeued":
                self._count("requeue_count", "error_count")
            case "handed_back":
                self._count("handback_count")
            case "reaped":
                self._count("requeue_count", "crash_count")
                self.told.append("lease_lost")
            case "redriven":
                self._count("redrive_count")
                self.counts["requeue_count"] = 0
                self.cancel_asked = False
        self.told.append(verb)
        for step in (self.steps[key] for key in redo if key in self.steps):
            if step.status is StepStatus.FAILED:
                # A failed write said that nothing happened, so it may be started again.
                step.status, step.starts = StepStatus.REDO, 0

    def settle(self, status: Status, reason: Reason, *, reaped: bool = False) -> None:
        self.status, self.reason = status, str(reason)
        if reaped:
            self._count("crash_count")
            self.told += ["lease_lost", "reaped"]
        self.told.append("settled")

    def record(self, key: str, status: StepStatus) -> None:
        self.steps[key] = ShadowStep(status, Effect.READ_ONLY)

    def start(self, key: str, effect: Effect, *, reconcilable: bool) -> None:
        before = self.steps.get(key)
        starts = before.starts if before is not None and before.status is StepStatus.STARTED else 0
        self.steps[key] = ShadowStep(StepStatus.STARTED, effect, reconcilable, starts + 1)
        self.lease_over = False

    def finish(self, key: str, status: StepStatus) -> None:
        self.steps[key].status = status

    def _count(self, *names: str) -> None:
        for name in names:
            self.counts[name] += 1

    # ---- what of it is compared

    def expected(self) -> dict[str, Any]:
        return {
            "status": str(self.status),
            "epoch": self.epoch,
            "reason": self.reason,
            "pending_effect": self.pending_effect,
            "cancel_asked": self.cancel_asked,
            "leased": self.status is Status.RUNNING,
            "finished": self.status.final,
            **self.counts,
        }
