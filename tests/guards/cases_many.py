"""Cases of the statements for many rows: each row is answered by itself, and no run is waited for in vain.

Every case of the statement for one row is played for these as well; see `mutants.ALONE`.
"""

from __future__ import annotations

from uuid import UUID

from agentrun.core.words import Status
from agentrun.store import journal
from tests.guards.scene import Scene, case


def keys(s: Scene, run_id: UUID) -> list[str]:
    return [step["key"] for step in s.rows.stored(run_id)["steps"]]


@case("record_many")
def each_step_is_recorded_in_its_own_run_and_refused_by_itself(s: Scene) -> None:
    first, second = s.make(s.rows.running), s.make(s.rows.running)
    for run_id, key in ((first, "same"), (second, "b0")):
        assert s.rows.do(journal.RECORD, run_id, **s.rows.step(key))
    told = [(first, "same"), (first, "a1"), (second, "b0"), (second, "same"), (second, "b1")]
    answer = s.do_many([{"run_id": run_id, "key": key} for run_id, key in told])
    assert {(row["run_id"], row["key"]) for row in answer} == {told[1], told[3], told[4]}, "what had ended is refused"
    assert (keys(s, first), keys(s, second)) == (["a1", "same"], ["b0", "b1", "same"])


@case("claim_many", "settle_completed_many")
def each_run_is_moved_under_its_own_number(s: Scene) -> None:
    ready, other = (s.rows.queued, s.rows.running) if s.statement.name == "claim" else (s.rows.running, s.rows.queued)
    runs = [ready(), other(), ready()]
    answer = {row["nth"]: row["id"] for row in s.do_many([{"run_id": run_id} for run_id in runs])}
    assert answer == {0: runs[0], 2: runs[2]}


@case("claim_many", "settle_completed_many", "record_many")
def nobody_is_waited_for_whose_run_is_not_moved(s: Scene) -> None:
    """A row that somebody has locked would hold up the whole batch."""
    ready = s.rows.queued if s.statement.name == "claim" else s.rows.running
    over, unnamed = s.rows.final(Status.FAILED), ready()
    s.run = ready()
    with s.database.transaction() as connection:
        connection.execute("SELECT 1 FROM agentrun.runs WHERE id = any(%s) FOR UPDATE", [[over, unnamed]])
        (answer,) = s.do_many([{"run_id": over}, {"run_id": s.run}])
    assert s.run in (answer.get("id"), answer.get("run_id"))
