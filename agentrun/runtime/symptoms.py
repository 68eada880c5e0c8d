"""The checks of `agentrun doctor` that look at runs: what stands still, what ended badly, what nobody would take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agentrun.core.counting import counted, counted_is
from agentrun.runtime.doctor import Facts, Finding, Row, Severity, span
from agentrun.runtime.healing import of_failed
from agentrun.runtime.still import blocked_loops, stranded
from agentrun.store.diagnosis import MOST

SWEPT_WITHIN = 60.0


def no_sweep(facts: Facts) -> Iterator[Finding]:
    """C. Nobody finds what no message will wake."""
    age = facts.sweep["age"]
    if age is not None and age <= max(SWEPT_WITHIN, 3 * facts.settings.sweep_seconds):
        return
    unheard = facts.settings.system_queue not in facts.queues and bool(facts.workers)
    yield Finding(
        "no_sweep",
        Severity.ERROR if facts.sweep["living"] else Severity.WARNING,
        "no sweep for more than a minute: crashed runs, due timers and lost wakes stay where they are",
        f"no live worker consumes `{facts.settings.system_queue}`, where beat sends the sweeps"
        if unheard
        else "beat does not run, or the workers of its queue have no free slot",
        "there was never one" if age is None else f"the last was {span(age)} ago, by `{facts.sweep['by']}`",
        facts.worker(facts.settings.system_queue) if unheard else f"celery -A {facts.app} beat",
    )


def no_worker(facts: Facts) -> Iterator[Finding]:
    """A. Runs are due on a queue that nobody consumes."""
    return _unconsumed(facts, facts.due, "no_worker", "run", "due")


def no_step_worker(facts: Facts) -> Iterator[Finding]:
    """G, J. Remote steps are offered on a queue that nobody consumes."""
    return _unconsumed(facts, facts.offered, "no_step_worker", "remote step", "offered")


def _unconsumed(facts: Facts, waiting: Sequence[Row], symptom: str, noun: str, said: str) -> Iterator[Finding]:
    for queue in sorted({row["queue"] for row in waiting} - facts.queues):
        mine = [row for row in waiting if row["queue"] == queue]
        count, oldest = sum(row["count"] for row in mine), max(row["oldest"] for row in mine)
        yield Finding(
            symptom,
            Severity.ERROR,
            f"{counted_is(count, noun, most=MOST)} {said} on queue `{queue}`, the oldest for {span(oldest)}",
            f"no live worker consumes `{queue}`",
            _consumed(facts),
            facts.worker(_with_sweeps(facts, queue)),
        )


def _with_sweeps(facts: Facts, queue: str) -> str:
    """The usual queue's worker takes the sweeps too, where nobody else does."""
    system = facts.settings.system_queue
    return f"{queue},{system}" if queue == facts.settings.queue and system not in facts.queues else queue


def unknown_step(facts: Facts) -> Iterator[Finding]:
    """G. Remote steps are offered that no live worker of their queue has registered: each hands the message on."""
    for row in facts.offered:
        consumers = [each for each in facts.workers if row["queue"] in each["queues"]]
        known = {name for each in consumers for name in each["about"].get("remote_steps", ())}
        if consumers and row["name"] not in known:
            yield Finding(
                "unknown_step",
                Severity.ERROR,
                f"{counted_is(row['count'], 'remote step')} offered by the name of `{row['name']}`, the oldest for "
                f"{span(row['oldest'])}",
                f"no live worker of queue `{row['queue']}` has registered it",
                f"they know: {', '.join(sorted(known)) or 'no remote steps'}",
                f"AGENTRUN_IMPORTS=MODULE {facts.worker(row['queue'])}",
            )


def unknown_kind(facts: Facts) -> Iterator[Finding]:
    """A. Runs are due whose kind no live worker of their queue knows: each hands the wake back."""
    for row in facts.due:
        known = {kind for each in facts.workers if row["queue"] in each["queues"] for kind in each["kinds"]}
        if row["queue"] in facts.queues and row["kind"] not in known:
            yield Finding(
                "unknown_kind",
                Severity.ERROR,
                f"{counted_is(row['count'], 'run', most=_most(row, facts.due))} due of kind `{row['kind']}`, "
                f"the oldest for {span(row['oldest'])}",
                f"no live worker of queue `{row['queue']}` has a body for it",
                f"they know: {', '.join(sorted(known)) or 'no kinds'}",
                f"AGENTRUN_IMPORTS=MODULE {facts.worker(row['queue'])}",
            )


def _most(row: Row, among: Iterable[Row]) -> int | None:
    """What the row's count is the least of, where the rows of its queue are no more than were counted together."""
    together = sum(each["count"] for each in among if each.get("queue") == row.get("queue"))
    return row["count"] if together >= MOST else None


def lost_lease(facts: Facts) -> Iterator[Finding]:
    """C. Workers died; the next sweep takes their runs, where there is one."""
    count, age = facts.expired["count"], facts.expired["age"]
    if not count:
        return
    swept = facts.sweep["age"] is not None and facts.sweep["age"] <= SWEPT_WITHIN
    heals = swept and age <= SWEPT_WITHIN
    yield Finding(
        "lost_lease",
        Severity.NOTICE if heals else Severity.ERROR,
        f"{counted_is(count, 'run', most=MOST)} running past the lease, the first for {span(age)}",
        "the worker died or hangs" + (": the next sweep requeues it" if heals else ", and no sweep has taken it back"),
        f"run {facts.expired['run_id']}",
        "agentrun sweep",
        run_id=str(facts.expired["run_id"]),
    )


_DIED = {
    "write": ("interrupted in a write", "nobody can say whether it happened; ask the other system by its key"),
    "crashes": ("took workers down more often than the budget allows", "a body that kills its process"),
    "lost_step": ("lost a remote step more often than AGENTRUN_REDISPATCH_MAX allows",
                  "the step kills its workers, or they are stopped without a drain"),
    "code": ("the body's code has changed under them", "recorded steps were removed, moved or renamed by a deploy"),
    "unanswered": ("nobody answered in time, and the body did not catch it", "a wait expired"),
    "other": ("an error that another try would not repair", "a bug, a bad request, a wrong password"),
}  # fmt: skip


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """D, H, O. Runs that gave up within the last seven days."""
    for row in facts.dead:
        symptom, cause = _DIED[row["cause"]]
        yield Finding(
            "interrupted_write" if row["cause"] == "write" else f"dead_{row['cause']}",
            Severity.WARNING,
            f"{counted(row['count'], 'run', most=_most(row, facts.dead))} dead-lettered within seven days: {symptom}",
            cause,
            _named(row),
            of_failed(
                row["run_ids"][0],
                write_in_flight=row["cause"] == "write",
                changed=row["cause"] == "code",
                unfit=row["unfit"],
            ),
            run_id=str(row["run_ids"][0]),
        )


def _named(row: Row) -> str:
    """The last ones, how many more there are, and what lists them all."""
    more = row["count"] - len(row["run_ids"])
    these = ", ".join(map(str, row["run_ids"])) + (f" and {more:,} more" if more else "")
    reason = f" --reason {row['reasons'][0]}" if len(row["reasons"]) == 1 else ""
    return (
        f"the last {span(row['newest'])} ago: {these}; `agentrun show {row['run_ids'][0]}` has its error, "
        f"`agentrun list --status failed{reason}` lists them"
    )


def paged(facts: Facts) -> Iterator[Finding]:
    """People were told of these, and they stand still."""
    if facts.episodes["count"]:
        run_id = facts.episodes["run_id"]
        yield Finding(
            "paged",
            Severity.NOTICE,
            f"{counted(facts.episodes['count'], 'run', most=MOST)} paged for, and standing still",
            "somebody was paged, and the run has not moved since",
            f"the first {span(facts.episodes['age'])} ago: run {run_id}",
            f"agentrun show {run_id}",
            run_id=str(run_id),
        )


def long_waits(facts: Facts) -> Iterator[Finding]:
    """What has waited for people for more than a day."""
    if facts.waiting["count"]:
        yield Finding(
            "long_wait",
            Severity.NOTICE,
            f"{counted_is(facts.waiting['count'], 'answer', most=MOST)} missing for more than a day",
            "nobody has answered",
            f"the longest for {span(facts.waiting['age'])}: run {facts.waiting['run_id']}",
            "agentrun inbox",
            run_id=str(facts.waiting["run_id"]),
        )


def untold(facts: Facts) -> Iterator[Finding]:
    """Notices of the last day that a hook never took."""
    for row in facts.given_up:
        yield Finding(
            "notice_given_up",
            Severity.WARNING,
            f"{counted(row['count'], 'notice')} never told: hook `{row['hook']}` failed each time",
            f"the hook raises {row['error']}",
            f"the last was about run {row['run_id']}",
            f"agentrun show {row['run_id']}",
            run_id=str(row["run_id"]),
        )


NOT_TAKEN = (no_worker, no_step_worker, unknown_kind, unknown_step)
"""Why what is due is not taken, where it is not the worker's fault."""

CHECKS = (
    no_sweep, *NOT_TAKEN, blocked_loops, lost_lease, stranded, dead_letters, untold, paged,
    long_waits,
)  # fmt: skip


def _consumed(facts: Facts) -> str:
    if not facts.workers:
        return "no worker was seen within the last minute"
    late = [each for each in facts.late if each in facts.workers]
    said = f" ({len(late)} of them late: see `agentrun workers`)" if late else ""
    consume = "consumes" if len(facts.workers) == 1 else "consume"
    return f"{counted_is(len(facts.workers), 'worker')} alive{said}, and {consume}: {', '.join(sorted(facts.queues))}"
