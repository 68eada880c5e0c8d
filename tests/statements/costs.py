"""What each operation costs in statements: the table that the test holds, and that the sizing guide shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_DECIDED = "run_by_id x2, BEGIN, count_resolution, waiting_for, close_wait_resolved, unpark, COMMIT"
_ANSWERED = "claim, replay, waits_of_run, record, settle_completed"

COSTS: Mapping[str, str] = {
    "enqueue": "enqueue",
    "enqueue with an idempotency key": "enqueue",
    "enqueue again with the same key": "enqueue, by_keys",
    "enqueue_many of 100": "enqueue_many",
    "a run without steps": "claim, settle_completed",
    "a run of 10 steps, alone": "claim, record x10, settle_completed",
    "a run of one fenced write": "claim, fence, finish, settle_completed",
    "a run that goes on after 1,000 steps": "claim, replay, settle_completed",
    "a wake for a run that has ended": "claim, unclaimed",
    "a run up to its wait for a signal": "claim, take_signal, register_wait, park",
    "a signal to it": "lock_runs, send_signal",
    "signal_many to 40 such runs": "lock_runs x2, send_signal x40",
    "the run after the signal": _ANSWERED,
    "a run up to its approval": "claim, register_wait, park",
    "approve": _DECIDED,
    "the run after the approval": _ANSWERED,
    "a run up to its child": "claim, child_born, park",
    "its child": "claim, settle_completed",
    "the run after its child": "claim, replay, waits_of_run, child_result, record, settle_completed",
    "a run up to its timer": "claim, register_wait, park",
    "the timer": "claim, unclaimed, waits_due_of_run, BEGIN, count_resolution, close_wait_resolved, unpark, COMMIT",
    "the run after its timer": _ANSWERED,
    "a run up to its remote step": "claim, offer_step, park",
    "the remote step": "take_step, complete_step",
    "the run after its remote step": "claim, replay, waits_of_run, settle_completed",
    "a sweep that finds nothing": "needs, forget_gone, swept",
    "a heartbeat, nothing held": "process_seen",
    "a heartbeat over 100 leases": "renew_all, process_seen",
    "status": "run_by_id",
    "steps": "run_by_id, journal",
    "events": "run_by_id, events",
    "list": "runs_listed",
    "inbox": "inbox",
    "cancel": "cancel, open_children, run_by_id",
    "a scrape of the metrics": (
        "queued_by_queue, running_by_queue, waiting_by_sort, failed_by_reason, notices_untold, spent_today, "
        "dead_letters, open_episodes, offered_by_name, notices_given_up, last_sweep, processes"
    ),
}
"""By operation: our names of the statements. BEGIN and COMMIT are statements too: each is a round trip."""

SIDE_BY_SIDE = 50
"""Runs at once in one process."""

MOST_PER_STEP = 0.1
"""Statements for each step of runs of 10 steps, side by side, everything counted: what is waited for goes together."""


def counted(cost: str) -> Counter[str]:
    """The statements by name."""
    found: Counter[str] = Counter()
    for each in cost.split(", "):
        name, _, number = each.partition(" x")
        found[name] += int(number or 1)
    return found


def told(found: Mapping[str, int]) -> str:
    """As the table has it."""
    return ", ".join(name if number == 1 else f"{name} x{number}" for name, number in found.items())


def table() -> str:
    """For the page."""
    rows = [f"| {operation} | {counted(cost).total()} | {cost} |" for operation, cost in COSTS.items()]
    return "\n".join(["| operation | statements | which |", "|---|---|---|", *rows])
