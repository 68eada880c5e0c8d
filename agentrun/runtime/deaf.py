"""The check of `agentrun doctor` for workers that live, have room, and take nothing from a queue in which runs stand.

Their heartbeats go on, so nothing else notices. All of it has to be true at once, for longer than any sweep, message
and beat takes: who is busy, late, draining, limited or without the kind is not deaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrun.core.counting import counted, counted_is
from agentrun.runtime.doctor import Facts, Finding, Row, Severity, longest_silence, span
from agentrun.settings import Settings
from agentrun.store.diagnosis import MOST


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: its processes that beat. Children of a pool are one worker."""

    processes: Sequence[Row]

    @property
    def about(self) -> Row:
        """What all of them say of it."""
        return self.processes[0]["about"]

    @property
    def name(self) -> str:
        """As Celery's commands call it."""
        return self.about.get("node") or self.processes[0]["name"]

    def cancelled(self, queue: str) -> bool:
        """Whether its consumer says that it does not consume the queue any more."""
        return any(queue in (each["about"].get("cancelled") or ()) for each in self.processes)

    def took(self, queue: str) -> float | None:
        """Seconds since any of its processes took a message of the queue; None where one does not say."""
        told = [each["about"].get("took", {}).get(queue) for each in self.processes]
        return None if None in told else min(told)

    @property
    def free(self) -> float | None:
        """For how many seconds it has had a free slot; None where it has none, or does not say."""
        told = [each["about"].get("free") for each in self.processes]
        return max((seconds for seconds in told if seconds is not None), default=None)

    def idle(self, queue: str) -> float:
        """For how many seconds it has had room, and has taken nothing from the queue."""
        took, free = self.took(queue), self.free
        return 0.0 if took is None or free is None else min(took, free)


def deaf_workers(facts: Facts) -> Iterator[Finding]:
    """A. A worker lives and takes nothing: its connection went deaf, its consumer was cancelled, or it hangs."""
    for queue in sorted({row["queue"] for row in (*facts.due, *facts.offered)}):
        consuming = [worker for worker in _workers(facts) if queue in worker.processes[0]["queues"]]
        deaf = [worker for worker in consuming if _takes_nothing(facts, worker, queue)]
        severity = Severity.ERROR if len(deaf) == len(consuming) else Severity.WARNING
        for worker in deaf:
            yield _found(facts, worker, queue, severity)


def long_enough(settings: Settings) -> float:
    """Seconds within which a worker that hears has taken what is due, though its message was lost: a sweep sends it."""
    return longest_silence(settings.sweep_seconds + settings.heartbeat_seconds)


def _workers(facts: Facts) -> list[Worker]:
    late, found = facts.late, dict[str, list[Row]]()
    for each in facts.workers:
        if each not in late:
            found.setdefault(each["about"].get("worker") or str(each["id"]), []).append(each)
    return [Worker(processes) for processes in found.values()]


def _waiting(facts: Facts, worker: Worker, queue: str) -> list[Row]:
    """The rows of what stands in the queue, and this worker would take."""
    kinds = {kind for each in worker.processes for kind in each["kinds"]}
    steps = {name for each in worker.processes for name in each["about"].get("remote_steps", ())}
    runs = [row for row in facts.due if row["queue"] == queue and row["kind"] in kinds]
    return runs + [row for row in facts.offered if row["queue"] == queue and row["name"] in steps]


def _takes_nothing(facts: Facts, worker: Worker, queue: str) -> bool:
    long = long_enough(facts.settings)
    if not any(row["oldest"] > long for row in _waiting(facts, worker, queue)):
        return False
    if worker.cancelled(queue):
        return True
    return worker.idle(queue) > long and _lies_there(facts, queue, long) and not _busy_elsewhere(facts, worker, long)


def _busy_elsewhere(facts: Facts, worker: Worker, long: float) -> bool:
    """Whether it works through another of its queues: Redis hands out the first in the order that has a message."""
    depths = facts.broker.depths if facts.broker is not None else None
    heard = [name for name in worker.processes[0]["queues"] if (worker.took(name) or long) < long]
    return any(depths is None or depths.get(name, 0) > 0 for name in heard)


def _lies_there(facts: Facts, queue: str, long: float) -> bool:
    """Whether there is a message to take. What was lost is the sweep's business, and a broker that is away nobody's."""
    if facts.broker is not None and facts.broker.problem is not None:
        return False
    if facts.broker is not None and facts.broker.depths is not None:
        return facts.broker.depths.get(queue, 0) > 0
    return facts.sweep["age"] is not None and facts.sweep["age"] < long


def _found(facts: Facts, worker: Worker, queue: str, severity: Severity) -> Finding:
    waiting = _waiting(facts, worker, queue)
    count, oldest = sum(row["count"] for row in waiting), max(row["oldest"] for row in waiting)
    noun, said = ("run", "due") if any("kind" in row for row in waiting) else ("remote step", "offered")
    cancelled = worker.cancelled(queue)
    why = (
        "its consumer of the queue was cancelled (`cancel_consumer`)"
        if cancelled
        else "its connection to the broker delivers nothing any more, its consumer was cancelled, or it hangs"
    )
    return Finding(
        "deaf_worker",
        severity,
        f"{counted_is(count, noun, most=MOST)} {said} on queue `{queue}`, the oldest for {span(oldest)}, and a "
        "worker that lives takes nothing from it",
        f"`{worker.name}` takes nothing: {why}",
        _evidence(facts, worker, queue),
        *_heal(facts, worker, queue, cancelled=cancelled),
    )


def _evidence(facts: Facts, worker: Worker, queue: str) -> str:
    took, free, depths = worker.took(queue), worker.free, (facts.broker and facts.broker.depths) or {}
    parts = [
        f"`{worker.processes[0]['name']}` was seen {span(worker.processes[0]['silent'])} ago",
        f"it has taken nothing from the queue for {span(took)}" if took is not None else "",
        f"it has had a free slot for {span(free)}" if free is not None else "",
        f"{counted(depths[queue], 'message')} in the queue" if queue in depths else "",
    ]
    return "; ".join(part for part in parts if part)


def _heal(facts: Facts, worker: Worker, queue: str, *, cancelled: bool) -> tuple[str, str | None]:
    """The command, and what it needs beside itself."""
    node, pid = worker.about.get("node"), worker.about.get("pid")
    if cancelled and node:
        return f"celery -A {worker.about.get('app') or facts.app} control -d {node} add_consumer {queue}", None
    where = node.partition("@")[2] if node else "its host"
    return (
        f"kill -TERM {pid or 'PID'}",
        f"a shell on {where}, and whatever starts the worker again: {facts.worker(queue)}",
    )
