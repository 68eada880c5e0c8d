"""After the storm: every run comes to an end, an operator settles what is left, and every effect is there once."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from agentrun import Client, NotAllowed, Reason, Run, Status
from agentrun.testing import until
from tests.chaos.bodies import WRITES
from tests.chaos.eyes import Eyes
from tests.chaos.storm import Say

LARGEST_PAGE = 1000


@dataclass
class Aftermath:
    """The checks, and the operator."""

    client: Client
    eyes: Eyes
    runs: int
    say: Say
    patience: float
    done: Counter[str] = field(default_factory=Counter)

    def settle_all(self) -> None:
        """AssertionError where one of the promises does not hold."""
        rounds = 0
        while True:
            failed = self._all_ended()
            if not failed:
                break
            rounds += 1
            assert rounds <= 10, f"after 10 rounds of an operator, {len(failed)} runs still fail: {failed[0]}"
            for run in failed:
                self._look_after(run)
            self.say(f"    an operator settled {len(failed)} runs: {_counted(self.done)}")
        self.done["rounds of the operator"] = rounds

    def check(self) -> None:
        """Nothing is left over, twice, or out of order."""
        results = self.eyes("SELECT DISTINCT result::text AS result FROM agentrun.runs")
        facts: dict[str, tuple[object, object]] = {
            "runs": (self.eyes.statuses(), Counter({"completed": self.runs})),
            "effects not there exactly once": (self.eyes.not_exactly_once(WRITES), []),
            "effects": (self.eyes.effects(), WRITES * self.runs),
            "half states": (self.eyes.half_states(), []),
            "out of order": (self.eyes.out_of_order(), []),
            "results": (results, [{"result": str(sum(range(WRITES)))}]),
        }
        broken = [f"{what}: {found}, not {wanted}" for what, (found, wanted) in facts.items() if found != wanted]
        assert not broken, "\n".join(broken)

    def _all_ended(self) -> list[Run]:
        """Every run is completed, or dead-lettered naming what was in flight. Returns the dead letters."""

        def ended() -> bool:
            statuses = self.eyes.statuses()
            return statuses["completed"] + statuses["failed"] == self.runs

        until(ended, self.patience, tell=self.eyes.statuses)
        failed = self.client.list(status=Status.FAILED, limit=LARGEST_PAGE)
        for run in failed:
            self._explains_itself(run)
        return failed

    def _explains_itself(self, run: Run) -> None:
        assert run.error is not None, run
        if run.reason is Reason.RETRIES_EXHAUSTED:
            self.done["dead letters: budget spent"] += 1
            return
        given_up = self.eyes.given_up(run.id)
        named = {write["key"] for write in (self.client.status(run.id).error or {})["in_flight"]}
        assert run.reason is Reason.NOT_RETRYABLE, run
        assert given_up <= named, run
        assert named, f"run {run.id} was dead-lettered and names no write: {run.error}"
        self.done["dead letters: write in flight"] += 1

    def _look_after(self, run: Run) -> None:
        """Look outside whether each write happened, and say so; put back what has none in flight."""
        writes = self.client.operators.in_flight(run.id)
        for row in writes:
            applied = self.eyes.happened(run.id, self._number(run.id, row["key"]))
            number = self._number(run.id, row["key"])
            self.client.resolve(run.id, applied=applied, result=number if applied else None, key=row["key"])
            self.done["resolved: applied" if applied else "resolved: not applied"] += 1
        if not writes:
            with contextlib.suppress(NotAllowed):
                self.client.redrive(run.id)
                self.done["redriven"] += 1

    @staticmethod
    def _number(run_id: UUID, key: str) -> int:
        """Writes are asked for one after the other, so the n-th has position #n."""
        return int(key.removeprefix("#").split(".")[0]) - 1


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items())
