"""What runs that wait have to get through, as the field has seen it, and the test that shows each of them.

The table names every scenario once; the test below sees to it that the tests it names are there. What no other file
shows is shown here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from agentrun import Client, Context, EventType, NotAllowed, Status, current_step, durable
from tests.waits.conftest import Go, Parked

ROOT = Path(__file__).parents[2]

SUSPEND_AND_APPROVE: dict[str, str] = {
    "an approved write end to end: nothing happens before, the decision is on record before the tool": (
        "tests/waits/test_scenarios.py::test_nothing_happens_before_the_decision_and_the_record_says_so_in_order"
    ),
    "an approved write is fenced as any other, and interrupted it is not repeated": (
        "tests/agents/test_approvals.py::test_a_write_that_was_approved_and_interrupted_stops_the_run"
    ),
    "a denied write changes nothing; the model hears of it and goes on": (
        "tests/agents/test_approvals.py::test_a_denial_is_a_result_for_the_model_and_the_run_goes_on"
    ),
    "a decision that cannot be recorded releases nothing": (
        "tests/waits/test_approvals.py::test_a_decision_that_cannot_be_recorded_releases_nothing"
    ),
    "a suspension after a cancel is discarded": "tests/waits/test_moments.py::test_a_cancel_at_any_moment_ends_the_run",
    "a second suspension of a run": "tests/waits/test_here.py::test_a_run_that_asks_again_waits_again",
    "counters go on over suspensions": (
        "tests/agents/test_models.py::test_the_agents_own_usage_limits_hold_over_segments"
    ),
    "only one of two decisions at once wins, approve beside reject included": (
        "tests/waits/test_approvals.py::test_of_decisions_at_the_same_time_one_wins_and_the_others_hear_of_it"
    ),
    "a stale digest is refused, and the question stays": (
        "tests/waits/test_approvals.py::test_a_decision_on_something_else_is_refused_and_leaves_the_wait_open"
    ),
    "an unknown run, a finished one, one of another namespace, one that asks nothing: an error each": (
        "tests/waits/test_approvals.py::"
        "test_decisions_that_cannot_be_meant_each_have_their_own_error_and_change_nothing"
    ),
    "a stranger learns nothing": (
        "tests/waits/test_actors.py::test_a_run_that_is_not_to_be_seen_is_not_there_for_any_verb"
    ),
    "an approver without the right is refused": (
        "tests/waits/test_actors.py::test_who_may_only_see_a_run_hears_what_is_missing"
    ),
    "the tool runs as the owner, never as who decided": (
        "tests/waits/test_scenarios.py::test_what_was_approved_is_done_as_the_owner_and_not_as_who_approved_it"
    ),
    "four eyes: the initiator may deny and not approve, whatever its scopes; a colleague may": (
        "tests/waits/test_approvals.py::test_who_started_a_run_cannot_approve_it_where_four_eyes_are_asked_for"
    ),
    "four eyes by the kind": "tests/waits/test_approvals.py::test_a_kind_may_demand_four_eyes_of_all_its_approvals",
    "the configuration is gone: a worker without the kind": (
        "tests/waits/test_replays.py::test_a_worker_without_the_kind_takes_no_answer_away"
    ),
    "a tool that is gone by then is not called, though approved": (
        "tests/agents/test_approvals.py::test_a_tool_that_was_taken_away_meanwhile_is_not_called_although_it_was_approved"
    ),
    "a declared write suspends where it says so, a read does not": (
        "tests/agents/test_approvals.py::test_calls_of_one_turn_wait_side_by_side_and_are_asked_with_tool_and_arguments"
    ),
    "a preview is made as the owner, once; one that fails holds up nothing": (
        "tests/agents/test_approvals.py::test_a_preview_is_made_once_and_as_the_runs_owner"
    ),
    "a turn of a read, an approved and a denied write, with crashes: each as decided": (
        "tests/agents/test_approvals.py::test_a_crash_after_any_commit_changes_nothing_of_what_was_decided"
    ),
    "the process that decides is killed": (
        "tests/waits/test_kills.py::test_a_decision_whose_process_is_killed_is_recorded_whole_or_not_at_all"
    ),
    "the process that goes on from its own decision is killed": (
        "tests/waits/test_kills.py::test_a_decision_that_goes_on_here_survives_its_process_wherever_it_is_killed"
    ),
    "a resume that dies is taken over": (
        "tests/waits/test_here.py::test_a_resume_that_dies_is_taken_over_from_the_journal"
    ),
    "a resume retries as any other segment": (
        "tests/waits/test_here.py::test_a_failure_here_is_retried_by_workers_as_any_other"
    ),
}

INPUT: dict[str, str] = {
    "a degenerate schema fails when it is asked with": (
        "tests/waits/test_inputs.py::test_a_schema_that_is_none_is_refused_when_it_is_asked_with_and_nothing_is_stored"
    ),
    "and when it is answered": (
        "tests/waits/test_inputs.py::test_a_stored_schema_that_is_none_is_said_to_be_so_and_fetches_nothing"
    ),
    "invalid data is rejected and consumes nothing; only declared members": (
        "tests/waits/test_inputs.py::test_data_that_does_not_fit_is_refused_with_its_reason_and_changes_nothing"
    ),
    "a second submission at the same time loses": (
        "tests/waits/test_inputs.py::test_of_two_answers_at_the_same_time_one_wins"
    ),
    "the digest covers question and schema": (
        "tests/waits/test_replays.py::test_data_for_another_question_than_was_read_is_refused"
    ),
    "data for an approval, a decision for an input": (
        "tests/waits/test_scenarios.py::test_an_answer_of_one_kind_is_none_to_a_wait_of_another"
    ),
    "a submitter without the right is refused": (
        "tests/waits/test_actors.py::test_each_scope_permits_its_verb_and_the_actors_id_is_recorded"
    ),
}

FIELD: dict[str, str] = {
    "48 approve twice at once: one tool effect": (
        "tests/agents/test_approvals.py::test_of_two_decisions_at_once_one_wins"
    ),
    "49 an approval survives a restart of everything": (
        "tests/waits/test_kills.py::"
        "test_what_was_asked_outlives_a_restart_of_everything_and_is_done_once_as_it_was_asked"
    ),
    "51 another worker uses the decision and asks nothing again": (
        "tests/waits/test_replays.py::test_another_worker_goes_on_from_the_answer_and_asks_nothing_again"
    ),
    "52 stale: other arguments": "tests/agents/test_approvals.py::test_a_decision_on_other_arguments_is_refused",
    "52 stale: an expired request": "tests/waits/test_approvals.py::test_an_approval_that_nobody_gives_ends_as_it_says",
    "54 a rejection is one result of its call": (
        "tests/agents/test_approvals.py::test_each_call_of_a_turn_ends_exactly_as_decided"
    ),
    "55 a timer due while everything is down": (
        "tests/waits/test_processes.py::test_a_timer_that_falls_due_while_all_is_down_ends_once_when_all_is_up"
    ),
    "57 a long sleep holds nothing": "tests/waits/test_timers.py::test_a_sleep_of_days_holds_no_lease_and_no_message",
    "57 an old timer is nothing once the run has gone on": (
        "tests/waits/test_timers.py::test_an_old_timer_is_nothing_once_its_run_has_gone_on"
    ),
}

LOST_WORK: dict[str, str] = {
    "14 an answer taken by a process that lacks the body": (
        "tests/waits/test_replays.py::test_a_worker_without_the_kind_takes_no_answer_away"
    ),
    "15 what a dead worker had claimed": (
        "tests/processes/test_death.py::"
        "test_a_worker_killed_between_any_two_commits_is_taken_over_and_no_recorded_step_runs_again"
    ),
    "16 a setting that is not heeded": "tests/remote/test_lost.py::test_the_bound_is_a_setting",
    "17 a lost dispatch of a fan": (
        "tests/remote/test_lost.py::test_a_whole_fan_that_is_lost_is_offered_again_in_one_pass"
    ),
    "18 parking on what is settled": "tests/waits/test_races.py::test_children_that_end_together_are_both_heard_of",
    "19 a lost wake of a run whose wait was answered": (
        "tests/waits/test_crashes.py::"
        "test_a_decision_whose_process_dies_before_its_wake_is_kept_and_its_run_woken_by_the_sweep"
    ),
    "20 a signal just before its waiter is registered": (
        "tests/waits/test_races.py::test_a_signal_sent_while_its_wait_is_registered_is_found_before_the_run_parks"
    ),
    "21 an event before its waiter": "tests/waits/test_signals.py::test_signals_that_come_early_are_kept_in_order",
    "22 a signal while the run executes": "tests/waits/test_moments.py::test_a_signal_at_any_moment_is_taken_once",
    "23 a child that does not start": (
        "tests/waits/test_starting.py::test_a_child_of_a_kind_that_no_live_process_knows_fails_after_several_looks"
    ),
    "24 a child's end lost in a crash": (
        "tests/waits/test_crashes.py::test_a_parent_hears_of_its_child_wherever_the_childs_process_dies"
    ),
    "25 a cancelled child": "tests/waits/test_children.py::test_the_parent_hears_of_every_end_of_its_child",
    "26 a chain of continuations under kills": (
        "tests/waits/test_crashes.py::test_a_chain_of_continuations_breaks_at_no_commit"
    ),
    "27 a subscriber that is dead without knowing it": (
        "tests/producers/test_waiting.py::test_a_wait_without_hints_sees_the_end_in_the_row"
    ),
    "28 a decision before its waiter": "tests/waits/test_moments.py::test_a_decision_at_any_moment_is_applied_once",
    "29 a handed-over run without a wake": (
        "tests/processes/test_shutdown.py::"
        "test_sigterm_hands_a_run_back_at_its_next_step_and_another_worker_goes_on_at_once"
    ),
    "30 a replay over a result that has landed": (
        "tests/waits/test_statements.py::test_what_is_registered_twice_is_there_once_and_unchanged"
    ),
}

SCENARIOS = {
    f"{group}: {name}": test
    for group, table in {
        "suspend and approve": SUSPEND_AND_APPROVE,
        "input": INPUT,
        "field": FIELD,
        "lost work": LOST_WORK,
    }.items()
    for name, test in table.items()
}


@lru_cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def missing() -> Iterator[str]:
    for scenario, test in SCENARIOS.items():
        path, _, name = test.partition("::")
        if not (ROOT / path).is_file() or name not in names_in(path):
            yield f"{scenario}: {test}"


def test_every_scenario_has_its_test() -> None:
    assert list(missing()) == []


def test_nothing_happens_before_the_decision_and_the_record_says_so_in_order(
    client: Client, parked: Parked, go: Go
) -> None:
    paid: list[int] = []

    async def pay(cents: int) -> int:
        paid.append(cents)
        return cents

    @durable("pay")
    async def body(ctx: Context) -> int:
        said = await ctx.approval("pay?", payload={"cents": 5})
        return await ctx.write(pay, said.payload["cents"])

    run_id = parked("pay", owner="ann")
    assert paid == []
    client.approve(run_id, by="bob")
    assert paid == []
    assert (go(run_id).result, paid) == (5, [5])
    told = [(event.type, event.data.get("by")) for event in client.events(run_id)]
    decided = told.index((EventType.RESOLVED, "bob"))
    started = next(place for place, (type_, _) in enumerate(told) if type_ is EventType.STEP_STARTED)
    assert decided < started


def test_what_was_approved_is_done_as_the_owner_and_not_as_who_approved_it(
    client: Client, parked: Parked, go: Go
) -> None:
    async def who() -> str | None:
        return current_step().owner

    @durable("as-owner")
    async def body(ctx: Context) -> list[Any]:
        said = await ctx.approval("sure?")
        return [said.by, ctx.owner, await ctx.write(who)]

    here, there = parked("as-owner", owner="ann"), parked("as-owner", owner="ann")
    assert client.approve(here, by="bob", here=True).result == ["bob", "ann", "ann"]
    client.approve(there, by="bob")
    assert go(there).result == ["bob", "ann", "ann"]


def test_an_answer_of_one_kind_is_none_to_a_wait_of_another(client: Client, parked: Parked, go: Go) -> None:
    @durable("asks-both")
    async def body(ctx: Context) -> list[Any]:
        said = await ctx.options(key="a").approval("sure?")
        return [said.approved, await ctx.options(key="i").input("n?", schema={"type": "integer"})]

    run_id = parked("asks-both")
    with pytest.raises(NotAllowed):
        client.submit_input(run_id, 1, by="ann", key="a")
    client.approve(run_id, by="ann", key="a")
    assert go(run_id).status is Status.WAITING
    with pytest.raises(NotAllowed):
        client.approve(run_id, by="ann", key="i")
    client.submit_input(run_id, 1, by="ann", key="i")
    assert go(run_id).result == [True, 1]
