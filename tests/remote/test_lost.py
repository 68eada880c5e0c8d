"""What becomes of steps that are lost, silent or unclaimed: offered again, tried again, given up, or interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import NOT_APPLIED, Applied, Client, Context, Effect, StepFailed, current_step, durable, remote_step
from agentrun.core.policy import Backoff
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry
from agentrun.runtime.options import Retries
from agentrun.store.offers import PENDING
from tests.remote.conftest import Doing, Here

pytestmark = pytest.mark.usefixtures("bodies")


def test_the_step_is_stored_before_its_message_is_sent(here: Here) -> None:
    """A crash between the two loses a message, and never a step."""
    here.publisher.away = True
    run_id = here.parked("asks", {"step": "double", "input": 1})
    assert here.step(run_id).status == "offered"
    here.publisher.away = False
    here.sql("UPDATE agentrun.steps SET due_at = now() - interval '1 minute' WHERE run_id = %s", run_id)
    here.sweep()
    assert [offer.cause for offer in here.offers()] == ["redispatch"]


def test_a_pending_step_is_waited_for_without_limit_and_costs_its_run_nothing(here: Here) -> None:
    """However often it is looked at: no attempt, no crash, no error, never dead-lettered."""
    run_id = here.parked("asks", {"step": "double", "input": 1, "queue": "gpu"})
    here.publisher.depths["gpu"] = 1
    for _ in range(5):
        here.sweep()
    run, step = here.client.status(run_id), here.step(run_id)
    assert (run.status, run.crash_count, run.requeue_count, run.epoch) == ("waiting", 0, 0, 1)
    assert (step.status, step.attempt, step.redispatch_count) == ("offered", 1, 0)
    assert len(here.offers()) == 1


def test_a_re_dispatch_costs_no_try_and_is_bounded(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1, "redispatch_max": 2})
    for _ in range(3):
        here.lost(run_id)
    step = here.step(run_id)
    assert (step.status, step.redispatch_count, step.attempt) == ("failed", 2, 1)
    assert len(here.offers()) == 3, "the first dispatch and two more"
    assert here.failure(run_id) == "remote_step_lost"


def test_the_bound_is_a_setting(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1})
    for _ in range(here.client.settings.redispatch_max):
        here.lost(run_id)
    assert here.step(run_id).status == "offered"
    here.lost(run_id)
    assert here.step(run_id).status == "failed"


@pytest.mark.parametrize("pause", [1e12, 1e300])
def test_a_pause_that_no_clock_can_hold_is_the_longest_that_may_be_and_ends_no_sweep(here: Here, pause: float) -> None:
    @durable("pauses")
    async def pauses(ctx: Context, step: str) -> Any:
        return await ctx.remote(step, 1, retries=Retries(2, Backoff(pause, pause)), timeout=60)

    silent, failed = here.parked("pauses", "double"), here.parked("pauses", "flaky")
    here.taken_by_the_dead(silent)
    here.sql("UPDATE agentrun.steps SET lease_expires_at = now() + interval '1 h' WHERE run_id = %s", silent)
    here.sql("UPDATE agentrun.steps SET due_at = now() - interval '1 s' WHERE run_id = %s", silent)
    assert here.sweep().steps_retried == 1
    assert here.take(failed) == "retried"
    for run_id in (silent, failed):
        assert (here.step(run_id).status, here.step(run_id).attempt) == ("offered", 2)
        (left,) = here.rows.database.rows(PENDING, {"run_id": run_id})
        assert not left["due"]
    here.due(silent)
    assert here.take(silent) == "completed"


def test_a_body_can_catch_that_its_step_is_lost(here: Here, kinds: Registry) -> None:
    @durable("careful")
    async def careful(ctx: Context) -> str:
        try:
            return await ctx.remote("double", 1, redispatch_max=0)
        except StepFailed as failed:
            return failed.error_type

    run_id = here.parked("careful")
    here.lost(run_id)
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == "remote_step_lost"


def test_a_re_dispatch_reads_differently_from_a_retry(here: Here) -> None:
    lost = here.parked("asks", {"step": "double", "input": 1})
    here.lost(lost)
    here.take(lost)
    tried = here.parked("asks", {"step": "flaky", "input": 2, "retries": 2, "backoff": 0.001})
    assert here.take(tried) == "retried"
    here.due(tried)
    assert here.take(tried) == "completed"
    marks = {run_id: [event for event in here.client.events(run_id) if event.type in MARKS] for run_id in (lost, tried)}
    assert [str(event.type) for event in marks[lost]] == ["redispatched", "step_started"]
    assert marks[lost][0].data["lost"] == "worker:dead:1"
    assert marks[lost][1].data["redispatched"] is True
    assert [str(event.type) for event in marks[tried]] == ["step_retried", "step_started"]
    assert marks[tried][0].data["failure"]["type"] == "ConnectionError"
    assert "redispatched" not in marks[tried][1].data
    assert marks[tried][1].data["attempt"] == 2


MARKS = ("redispatched", "step_retried", "step_started")


def test_a_whole_fan_that_is_lost_is_offered_again_in_one_pass(here: Here, doing: Doing) -> None:
    """More than a batch of the sweep, and what has finished is left alone."""
    run_id = here.parked("fan", list(range(130)))
    first, *others = here.offers()
    here.take(run_id, first.step_key)
    here.taken_by_the_dead(run_id)
    assert here.sweep().redispatched == 129
    again = here.offers()
    assert {offer.step_key for offer in again} == {offer.step_key for offer in others}
    assert {offer.cause for offer in again} == {"redispatch"}
    assert doing.done == [0]


def test_of_a_fan_only_the_lost_one_is_offered_again(here: Here, doing: Doing) -> None:
    run_id = here.parked("fan", [1, 2, 3])
    first, second, third = here.offers()
    here.take(run_id, first.step_key)
    here.take(run_id, third.step_key)
    here.lost(run_id)
    assert [offer.step_key for offer in here.offers()] == [second.step_key]
    here.take(run_id, second.step_key)
    assert here.engine.run(run_id).outcome == "completed"
    assert (here.client.status(run_id).result, doing.done) == ([2, 4, 6], [1, 3, 2])


def test_a_step_that_is_done_again_with_its_run_gets_its_tries_anew(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "flaky", "input": 3, "retries": 2, "backoff": 0.001})
    assert here.take(run_id) == "retried"
    here.due(run_id)
    assert here.take(run_id) == "failed"
    assert here.engine.run(run_id).outcome == "requeued"
    here.rows.make_due(run_id)
    assert here.engine.run(run_id).outcome == "waiting"
    assert here.take(run_id) == "retried"
    here.due(run_id)
    assert here.take(run_id) == "completed"
    assert doing.done == [1, 2, 3, 4], "each try has a number of its own"


def test_a_result_whose_wake_was_lost_is_found_by_the_sweep(here: Here) -> None:
    """The step's end and its run's requeueing are one commit: only the message can be missing."""
    run_id = here.parked("asks", {"step": "double", "input": 21})
    here.publisher.away = True
    assert here.take(run_id) == "completed"
    here.publisher.away = False
    assert here.client.status(run_id).status == "queued"
    here.rows.make_due(run_id)
    here.sweep()
    assert here.publisher.causes(run_id)[-1] == "sweep"
    assert here.engine.run(run_id).outcome == "completed"


# ---- silence


def test_silence_past_its_timeout_uses_up_a_try_and_then_fails_the_step(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1, "timeout": 30, "retries": 2, "backoff": 0.001})
    here.offers()
    for attempt in (1, 2):
        here.due(run_id)
        assert here.step(run_id).attempt == attempt
        here.sql(TAKEN_ALIVE, run_id)
        here.silent(run_id)
        here.sweep()
    assert (here.step(run_id).status, here.step(run_id).redispatch_count) == ("failed", 0)
    assert [offer.cause for offer in here.offers()] == ["retry"]
    error = here.step(run_id).error
    assert error is not None
    assert error["type"] == "remote_step_timeout"


TAKEN_ALIVE = (
    "UPDATE agentrun.steps SET status = 'started', step_epoch = coalesce(step_epoch, 0) + 1, by = 'worker:alive:1', "
    "started_seq = nextval('agentrun.event_seq'), started_at = now(), lease_expires_at = now() + interval '1 hour', "
    "due_at = now() + interval '30 s' WHERE run_id = %s AND status = 'offered'"
)


def test_time_in_the_queue_is_no_silence(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1, "timeout": 0.001})
    here.sql("UPDATE agentrun.steps SET due_at = now() - interval '1 hour' WHERE run_id = %s", run_id)
    here.sweep()
    assert here.step(run_id).status == "offered"
    assert here.take(run_id) == "completed"


def test_a_step_that_nobody_takes_in_its_pickup_timeout_fails_after_its_tries(here: Here) -> None:
    run_id = here.parked("asks", {"step": "double", "input": 1, "pickup_timeout": 5, "retries": 2, "backoff": 0.001})
    here.sweep()
    assert here.step(run_id).attempt == 1, "the control: its time is not over yet"
    here.unclaimed(run_id)
    assert here.sweep().steps_retried == 1
    assert (here.step(run_id).status, here.step(run_id).attempt) == ("offered", 2)
    here.unclaimed(run_id)
    here.sweep()
    assert here.engine.run(run_id).outcome == "requeued", "a timeout is worth another attempt of the run"
    error = here.client.status(run_id).error
    assert error is not None
    assert error["type"] == "remote_step_timeout"


def test_a_write_that_nobody_took_may_be_given_up(here: Here) -> None:
    """It never started: nothing is unknown."""
    run_id = here.parked("asks", {"step": "charge", "input": 1, "pickup_timeout": 5})
    here.unclaimed(run_id)
    here.sweep()
    assert here.step(run_id).status == "failed"
    assert here.client.status(run_id).pending_effect is None


# ---- writes


def test_a_silent_write_is_interrupted_and_what_its_taker_says_after_all_counts(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held-charge", "input": 5, "timeout": 30})
    taking = here.taking(run_id)
    assert doing.began.wait(10)
    here.silent(run_id)
    here.sweep()
    assert here.engine.run(run_id).outcome == "failed"
    assert here.client.status(run_id).pending_effect == "non_idempotent_write"
    doing.go_on.set()
    assert taking.result(10).outcome == "completed"
    assert here.client.status(run_id).status == "failed", "a result of a run that is over is kept, and changes nothing"
    here.client.redrive(run_id)
    assert here.engine.run(run_id).outcome == "completed"
    assert (here.client.status(run_id).result, doing.done) == ("charged 5", [5])


def test_a_write_that_raises_is_interrupted_and_never_repeated(here: Here, doing: Doing) -> None:
    @remote_step("breaks", effect=Effect.NON_IDEMPOTENT_WRITE)
    async def breaks(item: int) -> None:
        doing.done.append(item)
        raise ConnectionError("reset")

    run_id = here.parked("asks", {"step": "breaks", "input": 1, "retries": 5})
    assert here.take(run_id) == "interrupted"
    assert here.take(run_id) == "busy"
    assert here.engine.run(run_id).outcome == "failed"
    assert doing.done == [1]


def test_a_write_whose_input_does_not_fit_has_not_begun(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "charge", "input": 5})
    here.sql("UPDATE agentrun.steps SET args = '\"five\"' WHERE run_id = %s", run_id)
    assert here.take(run_id) == "failed"
    assert here.client.status(run_id).pending_effect is None


class Bank:
    """An outside system that can be asked."""

    def __init__(self) -> None:
        self.landed: dict[str, str] = {}
        self.asked = 0

    def find(self, key: str) -> Any:
        self.asked += 1
        return Applied(self.landed[key]) if key in self.landed else NOT_APPLIED


@pytest.fixture
def bank() -> Bank:
    bank = Bank()

    @remote_step("pay", effect=Effect.NON_IDEMPOTENT_WRITE, reconcile=bank.find)
    async def pay(item: int) -> str:
        return f"paid {item}"

    return bank


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_write_that_can_be_asked_about_is_asked_about_first(here: Here, bank: Bank, landed: bool) -> None:
    run_id = here.parked("asks", {"step": "pay", "input": 5})
    if landed:
        bank.landed[str(here.step(run_id).idempotency_key)] = "paid before"
    here.sql(TAKEN_ALIVE.replace("status = 'started'", "status = 'started', reconcilable = true"), run_id)
    here.lapse(run_id)
    assert here.sweep().redispatched == 1
    assert here.take(run_id) == "completed"
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == ("paid before" if landed else "paid 5")
    assert bank.asked == 1


def test_a_write_that_raised_and_can_be_asked_about_is_asked_about(here: Here, doing: Doing) -> None:
    bank = Bank()

    @remote_step("half-done", effect=Effect.NON_IDEMPOTENT_WRITE, reconcile=bank.find)
    async def half_done(item: int) -> str:
        doing.done.append(item)
        bank.landed[current_step().idempotency_key] = "landed"
        raise ConnectionError("the answer was lost")

    run_id = here.parked("asks", {"step": "half-done", "input": 1, "backoff": 0.001})
    assert here.take(run_id) == "redispatched"
    here.due(run_id)
    assert here.take(run_id) == "completed"
    assert here.engine.run(run_id).outcome == "completed"
    assert (here.client.status(run_id).result, doing.done) == ("landed", [1])


def test_a_write_that_can_be_asked_about_and_is_lost_too_often_is_interrupted_not_failed(
    here: Here, bank: Bank
) -> None:
    """A body that hears of a failure might do it by another name."""
    run_id = here.parked("asks", {"step": "pay", "input": 5, "redispatch_max": 0})
    here.sql(TAKEN_ALIVE.replace("status = 'started'", "status = 'started', reconcilable = true"), run_id)
    here.lapse(run_id)
    assert here.sweep().steps_given_up == 1
    assert here.step(run_id).status == "started"
    assert here.client.status(run_id).pending_effect == "non_idempotent_write"


# ---- ends that cross


def test_the_first_result_wins(here: Here, doing: Doing, make_engine: Callable[..., Engine]) -> None:
    """The taker whose lease had lapsed, and the one that the step was offered to again, both say theirs."""
    run_id = here.parked("asks", {"step": "held", "input": 1})
    slow = here.taking(run_id)
    assert doing.began.wait(10)
    here.lapse(run_id)
    here.sweep()
    here.sql("UPDATE agentrun.steps SET args = '2' WHERE run_id = %s", run_id)
    doing.began.clear()
    second = here.taking(run_id, engine=make_engine())
    assert doing.began.wait(10)
    here.sql("UPDATE agentrun.steps SET result = '100', status = 'completed', finished_at = now(), "
             "seq = nextval('agentrun.event_seq') WHERE run_id = %s", run_id)  # fmt: skip
    doing.go_on.set()
    assert {slow.result(10).outcome, second.result(10).outcome} == {"lease_lost"}
    assert here.step(run_id).result == 100


def test_a_late_result_counts_while_nobody_else_has_one(here: Here, doing: Doing) -> None:
    """Offered again, not taken yet: what the first taker brings is the result, and the second message finds it."""
    run_id = here.parked("asks", {"step": "held-charge", "input": 1})
    slow = here.taking(run_id)
    assert doing.began.wait(10)
    here.sql("UPDATE agentrun.steps SET effect = 'idempotent_write' WHERE run_id = %s", run_id)
    here.lapse(run_id)
    assert here.sweep().redispatched == 1
    doing.go_on.set()
    assert slow.result(10).outcome == "completed"
    assert here.take(run_id) == "ended"
    assert here.engine.run(run_id).outcome == "completed"
    assert (here.client.status(run_id).result, doing.done) == ("charged 1", [1])


def test_a_process_that_takes_a_step_again_drops_its_own_earlier_take(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held", "input": 1})
    slow = here.taking(run_id)
    assert doing.began.wait(10)
    here.lapse(run_id)
    here.sweep()
    doing.began.clear()
    again = here.taking(run_id)
    assert slow.result(10).outcome == "lease_lost"
    assert doing.began.wait(10)
    doing.go_on.set()
    assert again.result(10).outcome == "completed"


def test_a_late_result_of_a_run_that_is_over_is_kept_and_changes_nothing(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held-charge", "input": 1})
    taking = here.taking(run_id)
    assert doing.began.wait(10)
    here.client.cancel(run_id, by="ops")
    here.engine.heartbeat.beat()
    doing.go_on.set()
    assert taking.result(10).outcome == "completed", "a write is not cut short, and its end is recorded"
    assert (here.step(run_id).result, here.client.status(run_id).status) == ("charged 1", "cancelled")


def test_the_taker_hears_of_a_cancel_at_its_next_beat(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held", "input": 1})
    taking = here.taking(run_id)
    assert doing.began.wait(10)
    here.client.cancel(run_id, by="ops")
    here.engine.heartbeat.beat()
    doing.go_on.set()
    assert taking.result(10).outcome == "lease_lost"
    assert here.take(run_id) == "ended"
    assert here.step(run_id).result is None


def test_a_redrive_reopens_the_wait_that_the_end_of_its_run_had_closed(here: Here, client: Client) -> None:
    run_id = here.parked("fan", [1, 2])
    first, second = here.offers()
    here.sql("UPDATE agentrun.runs SET deadline_at = now() - interval '1 s' WHERE id = %s", run_id)
    here.sweep()
    assert here.client.status(run_id).reason == "deadline_exceeded"
    assert here.take(run_id, first.step_key) == "ended", "nobody works for a run that is over"
    here.sql("UPDATE agentrun.runs SET deadline_at = NULL WHERE id = %s", run_id)
    here.client.redrive(run_id)
    assert here.engine.run(run_id).outcome == "waiting"
    for offer in (first, second):
        here.take(run_id, offer.step_key)
    assert here.engine.run(run_id).outcome == "completed"
    assert client.status(run_id).result == [2, 4]


def test_retries_with_their_backoff_are_on_the_row(here: Here, make_engine: Any) -> None:
    """The run's coordinator and the step's first taker may both be gone: another process makes the second try."""
    run_id = here.parked("asks", {"step": "flaky", "input": 1, "retries": 3, "backoff": 60})
    assert here.take(run_id) == "retried"
    another = make_engine()
    report = another.run_step(run_id, here.step(run_id).key)
    assert report.outcome == "early"
    (again,) = [offer for offer in here.offers() if offer.cause == "early"]
    assert 50 < again.delay <= 66
    here.due(run_id)
    assert another.run_step(run_id, here.step(run_id).key).outcome == "completed"
    assert another.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == 2


# ---- what runs leave behind


def test_what_the_end_of_a_run_left_behind_is_put_aside_and_done_again_after_a_redrive(
    here: Here, doing: Doing
) -> None:
    """Otherwise every sweep would look at the steps of every run that was ever cancelled."""
    run_id = here.parked("fan", [1, 2, 3])
    offers = here.offers()
    here.sql("UPDATE agentrun.runs SET deadline_at = now() - interval '1 s' WHERE id = %s", run_id)
    here.sql("UPDATE agentrun.steps SET status = 'started', step_epoch = 1, by = 'worker:dead:1', started_at = now(), "
             "started_seq = nextval('agentrun.event_seq'), lease_expires_at = now() - interval '1 s' "
             "WHERE run_id = %s AND key = %s", run_id, offers[0].step_key)  # fmt: skip
    living = here.parked("fan", [4])
    external = here.parked("elsewhere", {})
    here.sql("UPDATE agentrun.runs SET deadline_at = now() - interval '1 s' WHERE id = %s", external)
    here.sweep()
    here.sweep()
    statuses = {step.status for step in here.client.steps(run_id)}
    assert (statuses, here.step(external).status, here.step(living).status) == ({"redo"}, "redo", "offered")
    here.sql("UPDATE agentrun.runs SET deadline_at = NULL WHERE id = %s", run_id)
    here.client.redrive(run_id)
    assert here.engine.run(run_id).outcome == "waiting"
    for offer in here.offers():
        here.take(offer.run_id, offer.step_key)
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == [2, 4, 6]


def test_a_write_in_flight_is_not_put_aside_with_its_run(here: Here) -> None:
    run_id = here.parked("asks", {"step": "charge", "input": 1})
    here.taken_by_the_dead(run_id)
    here.client.cancel(run_id)
    here.sweep()
    assert here.step(run_id).status == "started"
    here.client.resolve(run_id, applied=True, result="charged", by="ops")


def test_the_late_result_of_a_step_that_was_put_aside_is_kept(here: Here, doing: Doing) -> None:
    run_id = here.parked("asks", {"step": "held-charge", "input": 1})
    slow = here.taking(run_id)
    assert doing.began.wait(10)
    here.sql("UPDATE agentrun.steps SET effect = 'idempotent_write' WHERE run_id = %s", run_id)
    here.client.cancel(run_id)
    here.lapse(run_id)
    here.sweep()
    assert here.step(run_id).status == "redo"
    doing.go_on.set()
    assert slow.result(10).outcome == "completed"
    assert here.step(run_id).result == "charged 1"
