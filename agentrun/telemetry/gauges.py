"""Every metric by its name without `agentrun_`: its labels, and what it says."""

from __future__ import annotations

from collections.abc import Mapping

_HERE = ("namespace",)
_QUEUE = ("namespace", "queue")

GAUGES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "up": ((), "Whether the database has answered. Without it, nothing else is said but of the broker."),
    "runs": ((*_QUEUE, "status"), "Runs that have not ended, by status."),
    "due_runs": (_QUEUE, "Queued runs that may start now; the other queued ones are due later."),
    "due_age_seconds": (_QUEUE, "How long the oldest due run has been due."),
    "queue_workers": (_QUEUE, "Processes that consume a queue and do not drain."),
    "waiting_runs": ((*_HERE, "on"), "Waiting runs by what they wait on; `several` for more than one thing."),
    "expired_leases": (_HERE, "Running runs past their lease: their worker died or hangs, and no sweep was there yet."),
    "failed_runs_last_hour": ((*_HERE, "reason"), "Runs that have failed within the last hour."),
    "dead_letters": (
        (*_HERE, "cause"),
        "Runs that gave up within seven days and were not put back; `write`: nobody knows whether a write happened.",
    ),
    "stalled_runs": (_HERE, "Runs for which the pager has paged, and which still stand still."),
    "offered_steps": (_QUEUE, "Remote steps that may be taken now."),
    "offered_age_seconds": (_QUEUE, "How long ago the oldest of them was offered."),
    "workers": ((*_HERE, "state"), "Worker processes that were seen within the last minute."),
    "worker_slots": (_HERE, "Runs that workers which do not drain can execute at once."),
    "worker_slots_taken": (_HERE, "Runs and remote steps that these workers hold."),
    "sweep_age_seconds": (_HERE, "How long ago the last sweep was; +Inf where there was none."),
    "due_notices": (_HERE, "Notices that are due, and that no hook has taken yet."),
    "notice_age_seconds": (_HERE, "How old the oldest of them is."),
    "notices_given_up_last_day": ((*_HERE, "hook"), "Notices that a hook never took, given up within the last day."),
    "spend_today_dollars": (_HERE, "What model requests of runs with an owner have cost today (UTC)."),
    "spend_today_tokens": (_HERE, "The tokens of these requests."),
    "broker_up": ((), "Whether the broker has answered."),
    "broker_messages": (("queue",), "Messages that wait in a queue of the broker."),
}
