"""What a batch says of many steps with one statement: each guarded by itself, stored as alone, its run woken once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agentrun.runtime.engine import Engine
from agentrun.runtime.settling import Report
from agentrun.runtime.taking import run_step
from tests.remote.conftest import Doing, Here

pytestmark = pytest.mark.usefixtures("bodies")


def at_once(engine: Engine, *steps: tuple[UUID, str | None]) -> list[str]:
    """Execute these messages side by side, so that their writes are batches; the outcomes."""

    async def all_of_them() -> list[Report]:
        return list(await asyncio.gather(*(run_step(engine, run_id, key or "") for run_id, key in steps)))

    return [str(report.outcome) for report in engine.submit(all_of_them()).result(20)]


def test_a_fan_is_offered_taken_and_completed_in_a_few_batches(here: Here, doing: Doing) -> None:
    run_id = here.parked("fan", list(range(40)))
    offers = here.offers()
    batches = here.engine.writer.batches
    assert at_once(here.engine, *((run_id, offer.step_key) for offer in offers)) == ["completed"] * 40
    assert here.engine.writer.batches - batches <= 6
    assert here.publisher.causes(run_id) == ["enqueue", "step"], "its run is woken once"
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == [2 * n for n in range(40)]
    assert sorted(doing.done) == list(range(40))
    told = Counter(here.events(run_id))
    assert [told[name] for name in ("step_started", "step_completed", "resolved")] == [40, 40, 40]
    keys = {event.data["key"] for event in here.client.events(run_id) if event.type == "resolved"}
    assert len(keys) == 40


def test_what_is_stored_together_is_what_is_stored_alone(here: Here) -> None:
    alone, together = here.parked("fan", [1, 2, 3]), here.parked("fan", [1, 2, 3])
    sent = here.offers()
    offers = {run_id: [o.step_key for o in sent if o.run_id == run_id] for run_id in (alone, together)}
    for key in offers[alone]:
        assert here.take(alone, key) == "completed"
    at_once(here.engine, *((together, key) for key in offers[together]))
    assert _story(here, alone) == _story(here, together)


def _story(here: Here, run_id: UUID) -> Any:
    stored = here.rows.stored(run_id)
    times = ("run_id", "id", "seq", "started_seq", "idempotency_key", "resolutions")
    return {
        table: [
            {name: value for name, value in row.items() if name not in times and not name.endswith(("_at", "at"))}
            for row in sorted(rows, key=lambda row: str(row.get("key") or row.get("data")))
            if row.get("type") != "claimed"
        ]
        for table, rows in stored.items()
    }


def test_of_many_messages_for_one_step_one_takes_it(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "charge", "input": 1})
    key = here.step(run_id).key
    outcomes = Counter(at_once(here.engine, *[(run_id, key)] * 10))
    assert outcomes["completed"] == 1
    assert set(outcomes) <= {"completed", "busy", "ended"}
    assert doing.done == [1]


def test_each_step_is_refused_for_itself(here: Here) -> None:
    good = [here.parked("asks", {"step": "double", "input": n}) for n in range(3)]
    cancelled, taken, early = (here.parked("asks", {"step": "double", "input": 9}) for _ in range(3))
    here.client.cancel(cancelled)
    here.sql("UPDATE agentrun.steps SET due_at = now() + interval '1 h' WHERE run_id = %s", early)
    here.taken_by_the_dead(taken)
    steps = [(run_id, here.step(run_id).key) for run_id in (good[0], cancelled, good[1], taken, early, good[2])]
    assert at_once(here.engine, *steps) == ["completed", "ended", "completed", "busy", "early", "completed"]
    assert [here.step(run_id).result for run_id in good] == [0, 2, 4]
    for run_id in good:
        assert here.publisher.causes(run_id).count("step") == 1


def test_a_late_result_in_a_batch_does_not_overwrite_the_first(
    here: Here, doing: Doing, make_engine: Callable[..., Engine]
) -> None:
    runs = [here.parked("asks", {"step": "held", "input": n}) for n in range(2)]
    slow = [here.taking(run_id) for run_id in runs]
    assert doing.began.wait(10)
    here.sql("UPDATE agentrun.steps SET result = '100', status = 'completed', finished_at = now(), "
             "seq = nextval('agentrun.event_seq') WHERE run_id = %s", runs[0])  # fmt: skip
    doing.go_on.set()
    assert [taking.result(10).outcome for taking in slow] == ["lease_lost", "completed"]
    assert [here.step(run_id).result for run_id in runs] == [100, 3]
