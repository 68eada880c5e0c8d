"""The checks of `agentrun doctor` that look at processes and at the broker."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from agentrun.core.alarms import Occasion
from agentrun.core.counting import counted, counted_is
from agentrun.runtime.doctor import Broker, Facts, Finding, Row, Severity, place, span
from agentrun.runtime.healing import needs
from agentrun.settings import Settings

LARGEST_SKEW_SECONDS = 5.0

_REDIS = 'redis-cli -u "$AGENTRUN_BROKER_URL"'


def no_workers(facts: Facts) -> Iterator[Finding]:
    """Nobody is there, although nothing waits just now."""
    if not facts.workers and not facts.due and not facts.offered:
        yield Finding(
            "no_workers",
            Severity.WARNING,
            "no worker is alive",
            "none runs, or none reaches the database",
            "none was seen within the last minute",
            facts.worker(f"{facts.settings.queue},{facts.settings.system_queue}"),
        )


def clock_skew(facts: Facts) -> Iterator[Finding]:
    """A host's clock is off the database's: logs and Celery's countdowns lie there. Leases do not: they are SQL's."""
    for each in facts.alive:
        skew = each["clock_skew_seconds"]
        if skew is not None and abs(skew) > LARGEST_SKEW_SECONDS:
            yield skewed(f"the host of `{each['name']}`", skew)


def skewed(where: str, skew: float) -> Finding:
    """A clock that is off."""
    return Finding(
        "clock_skew",
        Severity.WARNING,
        f"the clock of {where} is {'ahead of' if skew > 0 else 'behind'} the database's by {span(abs(skew))}",
        "no time synchronisation there",
        "countdowns that it sends fire early or late; runs go by the database's clock, and are safe",
        "timedatectl set-ntp true",
        "the rights of root there",
    )


def visibility_timeout(facts: Facts) -> Iterator[Finding]:
    """Redis hands a message that is not acknowledged to another worker: too early, every countdown fires many times."""
    for each in facts.alive:
        timeout, cap = each["about"].get("visibility_timeout"), each["about"].get("longest_countdown")
        if timeout is not None and cap is not None and timeout < 2 * cap:
            yield Finding(
                "visibility_timeout",
                Severity.WARNING,
                f"`{each['name']}` has a visibility timeout of {span(timeout)}",
                f"countdowns of up to {span(cap)} (AGENTRUN_LONGEST_COUNTDOWN_SECONDS) are delivered several times",
                "broker_transport_options of its Celery application",
                f'set `app.conf.broker_transport_options = {{"visibility_timeout": {max(3600, math.ceil(2 * cap))}}}` '
                f"in the Celery application `{each['about'].get('app') or facts.app}`, and restart its workers",
            )


def deployments(facts: Facts) -> Iterator[Finding]:
    """R. Two deployments in one namespace take one another's runs."""
    known = {each["deployment"]: each for each in facts.workers if each["deployment"] is not None}
    names = sorted(known)
    differ = {frozenset(each["kinds"]) for each in known.values()}
    if len(names) > 1 and len(differ) > 1:
        youngest = max(known.values(), key=lambda each: each["started_at"])
        heal = _in_a_namespace_of_its_own(facts, youngest)
        yield Finding(
            "shared_namespace",
            Severity.WARNING,
            f"{len(names)} deployments share namespace `{facts.namespace}`: each takes the other's wakes and runs",
            "their namespace was left as it is, although they are two; or it is one deployment under two names",
            "; ".join(f"{name}: {', '.join(sorted(known[name]['kinds'])) or 'no kinds'}" for name in names),
            heal,
            f"{youngest['deployment']}'s present workers stopped, and the same AGENTRUN_NAMESPACE for its beat and its "
            "producers; or, if the two are one deployment, none of this and one AGENTRUN_DEPLOYMENT for both",
        )


def _in_a_namespace_of_its_own(facts: Facts, worker: Row) -> str:
    name = re.sub(r"[^a-z0-9_-]+", "-", worker["deployment"].lower()).strip("-_")[:60] or "other"
    own = facts.settings.model_copy(update={"namespace": f"{name}-2" if name == facts.namespace else name})
    bare = [each.removesuffix(f".{facts.namespace}") for each in worker["queues"]]
    return f"AGENTRUN_NAMESPACE={own.namespace} {facts.worker(','.join(own.queue_of(each) for each in bare))}"


def foreign_queues(facts: Facts) -> Iterator[Finding]:
    """A, R. Workers that take messages, and none of their own namespace. In `default`, a queue may have any name."""
    lost = [each for each in facts.workers if not any(facts.settings.queue_of(name) == name for name in each["queues"])]
    if lost:
        names = ", ".join(f"`{each['name']}`" for each in lost[:5])
        consumed = ", ".join(sorted({name for each in lost for name in each["queues"]}))
        yield Finding(
            "foreign_queues",
            Severity.WARNING,
            f"{counted(len(lost), 'worker')} of namespace `{facts.namespace}` on no queue of it",
            "`-Q` names the queues of another namespace: of its wakes, those that these workers take are lost",
            f"{names} on: {consumed}",
            facts.worker(f"{facts.settings.queue},{facts.settings.system_queue}"),
        )


def shared_stable_ids(facts: Facts) -> Iterator[Finding]:
    """Two workers that live call themselves the same: a restarted one is to take back what it held, and from whom?"""
    named = sorted((each for each in facts.workers if each["stable_id"]), key=lambda each: each["started_at"])
    for name in sorted({each["stable_id"] for each in named}):
        mine = [each for each in named if each["stable_id"] == name]
        # Children of one worker share its name; and who was not seen since the youngest began may be the dead one.
        live = {each["about"].get("worker") for each in mine if each["seen_at"] >= mine[-1]["started_at"]}
        if len(live) > 1:
            yield Finding(
                "shared_stable_id",
                Severity.WARNING,
                f"{len(live)} live workers have the stable id `{name}`",
                "AGENTRUN_STABLE_ID is to be another one for each, and the same after a restart",
                ", ".join(f"`{each['name']}`" for each in mine),
                *_called_otherwise(facts, mine[-1]),
            )


def _called_otherwise(facts: Facts, worker: Row) -> tuple[str, str]:
    """The command, and what it needs beside itself."""
    host, pid = place(worker)
    stop = f"kill -TERM {worker['about'].get('pid') or pid}"
    heal = f"AGENTRUN_STABLE_ID={worker['stable_id']}-2 {facts.worker(','.join(worker['queues']))}"
    return heal, f"`{stop}` on {host} before it; {needs(heal, namespace=facts.namespace)}"


def nobody_is_told(facts: Facts) -> Iterator[Finding]:
    """K. There is no pager."""
    told = any(each["about"].get("hooks", {}).get(str(Occasion.STALLED)) for each in facts.alive)
    if facts.workers and not told:
        yield Finding(
            "nobody_is_told",
            Severity.NOTICE,
            "nobody is told of runs that stand still",
            "no live worker has an `on_stalled` hook",
            f"{counted(len(facts.workers), 'worker')} alive",
            "call `agentrun.on_stalled(agentrun.log_line())` in a module of AGENTRUN_IMPORTS, and restart the workers",
        )


def vanished(facts: Facts) -> Iterator[Finding]:
    """P. Workers that ended without a drain: their runs wait for their leases to run out."""
    gone = [each for each in facts.processes if not each["alive"]]
    if gone:
        yield Finding(
            "killed",
            Severity.NOTICE,
            f"{counted(len(gone), 'process', 'processes')} ended within the last hour without saying so",
            "killed, out of memory, cut off from the database, or stopped with less than AGENTRUN_DRAIN_SECONDS "
            f"({span(facts.settings.drain_seconds)}) between TERM and KILL",
            ", ".join(f"`{each['name']}` {span(each['silent'])} ago" for each in gone[:5]),
            "agentrun workers",
        )


def late(facts: Facts) -> Iterator[Finding]:
    """P. Processes that have missed beats, and are not given up yet."""
    for each in facts.late:
        yield Finding(
            "late_worker",
            Severity.NOTICE,
            f"`{each['name']}` was last seen {span(each['silent'])} ago",
            "killed, frozen, overloaded, or cut off from the database",
            f"it holds {counted(each['holds'], 'run')}; after a minute without a beat it counts as gone",
            "agentrun workers",
        )


def long_drain(facts: Facts) -> Iterator[Finding]:
    """Q. A worker that drains for longer than its budget."""
    for each in facts.alive:
        if _drains_long(each, facts.settings):
            yield Finding(
                "long_drain",
                Severity.NOTICE,
                f"`{each['name']}` drains for {span(each['draining_for'])}",
                "a non-idempotent write is in flight: it is waited for",
                f"it holds {counted(each['holds'], 'run')}",
                "agentrun workers",
            )


def _drains_long(process: Row, settings: Settings) -> bool:
    return bool(process["holds"]) and (process["draining_for"] or 0.0) > 2 * settings.drain_seconds


CHECKS = (
    no_workers, foreign_queues, clock_skew, visibility_timeout, deployments, shared_stable_ids, nobody_is_told, late,
    vanished, long_drain,
)  # fmt: skip


def broker_findings(broker: Broker, settings: Settings) -> Iterator[Finding]:
    """What is wrong with the broker, for all namespaces."""
    if broker.problem is not None:
        yield Finding(
            "broker_away",
            Severity.ERROR,
            "no wake can be sent: runs start when a sweep finds them, and no worker hears of it",
            "the broker cannot be used",
            broker.problem,
            f"{_REDIS} ping"
            if str(settings.broker_url).startswith("redis")
            else "start it, or set AGENTRUN_BROKER_URL to where it is",
        )
        return
    if broker.full is not None:
        yield _broker_full(*broker.full)
    if broker.policy not in (None, "noeviction"):
        yield Finding(
            "evicting",
            Severity.WARNING,
            "Redis throws keys away when it is full, messages too: wakes are lost until a sweep sends them again",
            f"maxmemory-policy is {broker.policy}",
            f"{counted(broker.evicted or 0, 'key')} evicted since it started",
            f"{_REDIS} config set maxmemory-policy noeviction",
        )
    elif broker.evicted:
        yield Finding(
            "evicted",
            Severity.NOTICE,
            f"Redis has thrown {counted(broker.evicted, 'key')} away since it started",
            "its maxmemory-policy was another one before",
            "evicted_keys of INFO; the sweep has sent lost wakes again",
            f"{_REDIS} config resetstat",
        )
    if broker.late:
        task, seconds = max(broker.late, key=lambda each: each[1])
        yield Finding(
            "long_countdown",
            Severity.WARNING,
            f"{counted_is(len(broker.late), 'message')} held with a countdown over the cap, of {span(seconds)}",
            "an application of yours sends with a countdown or eta of its own; a worker holds it in memory",
            f"task {task}; the cap is {span(settings.longest_countdown_seconds)} (AGENTRUN_LONGEST_COUNTDOWN_SECONDS)",
            "call `client.enqueue(…, delay=…)` there instead: the time is in the row, and survives the worker",
        )


def _broker_full(used: int, most: int) -> Finding:
    return Finding(
        "broker_full",
        Severity.ERROR,
        "no wake can be sent: runs start when a sweep finds them, and beat's sweeps are not sent either",
        "Redis is full, and refuses whatever would take more memory",
        f"{used:,} bytes used of the {most:,} of its maxmemory",
        f"{_REDIS} config set maxmemory {2 * max(used, most)}",
        f"that much memory on its host; what fills it is found with `{_REDIS} --bigkeys`",
    )
