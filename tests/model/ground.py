"""The ground of the model: births, what is looked at after every step, and how a statement is tried."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from psycopg.errors import CheckViolation

from agentrun.core.words import Effect, Status, StepStatus
from agentrun.store import births
from agentrun.store.sql import Statement
from tests.model.driver import Driver
from tests.model.shadow import ShadowRun, ShadowStep

MOST_RUNS = 2


class Ground(RuleBasedStateMachine):
    """Runs, everybody who ever held one, and reapers that decided a while ago."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.db = Driver(self.url)
        self.runs: dict[UUID, ShadowRun] = {}
        self.holders: list[tuple[UUID, int]] = []
        self.candidates: list[dict[str, Any]] = []

    def teardown(self) -> None:
        self.db.close()

    # ---- births

    @initialize()
    def first_run(self) -> None:
        self.enqueue()

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule()
    def enqueue(self) -> None:
        run_id = self.db.new_id()
        assert self.db.do(births.ENQUEUE, run_id)
        self.runs[run_id] = ShadowRun(keeps_request=True, status=Status.QUEUED)

    @precondition(lambda self: len(self.runs) < MOST_RUNS)
    @rule(registered=st.booleans())
    def born_running(self, registered: bool) -> None:
        run_id = self.db.new_id()
        assert self.db.do(births.BORN_RUNNING, run_id, request="null" if registered else None)
        self.runs[run_id] = ShadowRun(keeps_request=registered, status=Status.RUNNING, epoch=1, told=["claimed"])
        self.holders.append((run_id, 1))

    # ---- after every step

    @invariant()
    def everything_is_as_predicted(self) -> None:
        for run_id, run in self.runs.items():
            row = self.db.look(run_id)
            assert row == run.expected()
            assert row["leased"] == (row["status"] == "running")
            assert self.db.told(run_id) == run.told
            stored = {key: (str(s.status), str(s.effect), s.reconcilable) for key, s in run.steps.items()}
            assert self.db.steps(run_id) == stored
            assert all(started is None or started < ended for started, ended in self.db.numbers(run_id) if ended)

    @invariant()
    def no_unrepeatable_write_started_twice(self) -> None:
        for run in self.runs.values():
            assert all(s.starts <= 1 for s in run.steps.values() if s.effect is Effect.NON_IDEMPOTENT_WRITE)

    @invariant()
    def one_epoch_lives(self) -> None:
        for run_id, run in self.runs.items():
            epochs = [epoch for holder, epoch in self.holders if holder == run_id]
            assert epochs == list(range(1, run.epoch + 1))

    # ---- how

    def _run(self, n: int) -> tuple[UUID, ShadowRun]:
        run_id = list(self.runs)[n % len(self.runs)]
        return run_id, self.runs[run_id]

    def _holder(self, n: int) -> tuple[UUID, ShadowRun, int]:
        """Somebody who holds a run, or did, or (nobody ever) never will."""
        newest_first = self.holders[::-1] or [(next(iter(self.runs)), 99)]
        run_id, epoch = newest_first[n % len(newest_first)]
        return run_id, self.runs[run_id], epoch

    @staticmethod
    def _status(run: ShadowRun, key: str) -> StepStatus | None:
        step: ShadowStep | None = run.steps.get(key)
        return step.status if step is not None else None

    def _moved(self, run_id: UUID, statement: Statement, lands: bool, **given: Any) -> bool:
        before = self.db.everything(run_id)
        rows = self.db.do(statement, run_id, **given)
        assert bool(rows) == lands, statement.name
        assert lands or self.db.everything(run_id) == before, f"{statement.name} was refused and changed something"
        return lands

    def _queued(self, run_id: UUID, statement: Statement, lands: bool, **given: Any) -> bool:
        """Back to the queue; what keeps no request cannot be stored there."""
        if lands and not self.runs[run_id].keeps_request:
            with pytest.raises(CheckViolation):
                self.db.do(statement, run_id, **given)
            return False
        return self._moved(run_id, statement, lands, **given)

    def _step(self, run_id: UUID, statement: Statement, epoch: int, key: str, lands: bool, **given: Any) -> bool:
        before = self.db.everything(run_id)
        rows = self.db.do_step(statement, run_id, epoch, key, **given)
        assert bool(rows) == lands, statement.name
        assert lands or self.db.everything(run_id) == before, f"{statement.name} was refused and changed something"
        return lands
