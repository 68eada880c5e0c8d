"""The fleet as Prometheus metrics, read out of the rows at each scrape: the same whoever asks, and whatever has died.

Labels are namespaces, queues, hooks and words of ours; never runs or owners. It decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrun.broker.publisher import CeleryPublisher
from agentrun.core.codec import decode
from agentrun.core.errors import ConfigurationError
from agentrun.runtime.doctor import Row, is_late, namespaces
from agentrun.settings import Settings
from agentrun.store import diagnosis, gauges, roster
from agentrun.store.database import Database
from agentrun.store.sql import Statement
from agentrun.store.troubles import explained
from agentrun.telemetry.gauges import GAUGES

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("agentrun.telemetry")

MOST = 100_000
"""Rows of a sort that are counted."""

Rows = Sequence[Row]
Sample = tuple[str, tuple[str, ...], float]
"""A gauge, the values of its labels, and its own."""


class Fleet(Collector):
    """Reads everything anew at each scrape, through a connection that it opens and closes. Thread-safe."""

    def __init__(self, settings: Settings, *, all_namespaces: bool = False) -> None:
        self._settings, self._all = settings, all_namespaces
        self._publisher = CeleryPublisher(settings)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def text(self) -> str:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.registry).decode()

    def serve(self, host: str, port: int) -> tuple[Any, Any]:
        """Begin to answer at /metrics; the server and its thread. Raises OSError where it cannot listen there."""
        server, thread = start_http_server(port, host, self.registry)
        if (metrics := server.get_app()) is not None:
            server.set_app(_only_metrics(metrics))
        return server, thread

    def close(self) -> None:
        """Let the broker go."""
        self._publisher.close()

    def describe(self) -> Iterator[Metric]:
        """What there may be. Nothing is read for it."""
        yield from _families().values()

    def collect(self) -> Iterator[Metric]:
        """Never raises for a database or a broker that is away: `agentrun_up` and `agentrun_broker_up` say so."""
        families = _families()
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        found: list[Sample] | None = None
        try:
            found = list(self._of_rows())
        except Exception as error:
            known = error if isinstance(error, ConfigurationError) else explained(error)
            if known is None:
                raise
            log.warning("%s", known)
        yield "up", (), float(found is not None)
        yield from found or ()
        if self._settings.broker_url is not None:
            queues = {labels[1] for name, labels, _ in found or () if name == "due_runs"}
            yield from self._of_broker(sorted(queues | {self._settings.queue, self._settings.system_queue}))

    def _of_rows(self) -> Iterator[Sample]:
        url = self._settings.require_database()
        with contextlib.closing(Database(url, name="agentrun metrics", max_connections=1)) as database:
            for namespace in namespaces(database) if self._all else [self._settings.namespace]:
                settings = self._settings.model_copy(update={"namespace": namespace})
                for name, labels, value in in_namespace(database, settings):
                    yield name, (namespace, *labels), value

    def _of_broker(self, queues: Sequence[str]) -> Iterator[Sample]:
        depths: dict[str, int] = {}
        for queue in queues:
            depth = self._publisher.depth(queue)
            if depth is None:
                # Away: each further question would take its whole time.
                break
            depths[queue] = depth
        yield "broker_up", (), float(len(depths) == len(queues))
        yield from (("broker_messages", (queue,), depth) for queue, depth in depths.items())


def _only_metrics(metrics: WSGIApplication) -> WSGIApplication:
    """`metrics` at /metrics, and at / where it is: prometheus_client's own answers whatever is asked for."""

    def answered(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return metrics(environ, start_response)
        status = "200 OK" if path in ("", "/") else "404 Not Found"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [b"agentrun's metrics are at /metrics\n"]

    return answered


def _families() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(f"agentrun_{name}", told, labels=labels) for name, (labels, told) in GAUGES.items()}


ASKED: tuple[Statement, ...] = (
    gauges.QUEUED, gauges.RUNNING, gauges.WAITING, gauges.FAILED, gauges.UNTOLD, gauges.SPENT, diagnosis.DEAD_LETTERS,
    diagnosis.OPEN_EPISODES, diagnosis.OFFERED_BY_QUEUE, diagnosis.GIVEN_UP, diagnosis.LAST_SWEEP, roster.PROCESSES,
)  # fmt: skip


def in_namespace(database: Database, settings: Settings) -> Iterator[Sample]:
    """What is in one namespace, asked in one round trip."""
    scope = {"namespace": settings.namespace, "most": MOST}
    queued, running, waiting, failed, untold, spent, dead, still, offered, given_up, sweep, seen = database.together(
        *((statement, scope) for statement in ASKED)
    )
    workers: Rows = [{**row, "about": decode(row["about"]) or {}} for row in seen if row["alive"] and row["queues"]]
    yield from _runs(queued, running, waiting)
    yield from _queues(queued, workers, settings)
    yield from (("waiting_runs", (sort,), count) for sort, count in _summed(waiting, "sort").items())
    yield "expired_leases", (), sum(row["expired"] for row in running)
    yield from (("failed_runs_last_hour", (row["reason"],), row["count"]) for row in failed)
    died = {row["cause"]: row["count"] for row in dead}
    yield from (("dead_letters", (cause,), died.get(cause, 0)) for cause in ("write", "crashes", "lost_step", "other"))
    yield "stalled_runs", (), still[0]["count"]
    yield from _offered(offered)
    yield from _fleet(workers, settings)
    yield "sweep_age_seconds", (), float("inf") if sweep[0]["age"] is None else sweep[0]["age"]
    yield "due_notices", (), untold[0]["count"]
    yield "notice_age_seconds", (), untold[0]["age"] or 0.0
    yield from (("notices_given_up_last_day", (row["hook"],), row["count"]) for row in given_up)
    yield "spend_today_dollars", (), float(spent[0]["cost"])
    yield "spend_today_tokens", (), float(spent[0]["tokens"])


def _runs(queued: Rows, running: Rows, waiting: Rows) -> Iterator[Sample]:
    yield from (("runs", (row["queue"], "queued"), row["due"] + row["later"]) for row in queued)
    yield from (("runs", (row["queue"], "running"), row["count"]) for row in running)
    yield from (("runs", (queue, "waiting"), count) for queue, count in _summed(waiting, "queue").items())


def _queues(queued: Rows, workers: Rows, settings: Settings) -> Iterator[Sample]:
    """Of every queue that holds runs or that somebody consumes: zeros say more than gaps do."""
    due = {row["queue"]: row for row in queued}
    consumed = Counter(queue for each in workers if not each["draining"] for queue in each["queues"])
    for queue in sorted({*due, *consumed, settings.queue}):
        row = due.get(queue, {"due": 0, "age": None})
        yield "due_runs", (queue,), row["due"]
        yield "due_age_seconds", (queue,), row["age"] or 0.0
        yield "queue_workers", (queue,), consumed[queue]


def _offered(offered: Rows) -> Iterator[Sample]:
    oldest: dict[str, float] = {}
    for row in offered:
        oldest[row["queue"]] = max(row["oldest"], oldest.get(row["queue"], 0.0))
    yield from (("offered_steps", (queue,), count) for queue, count in _summed(offered, "queue").items())
    yield from (("offered_age_seconds", (queue,), age) for queue, age in oldest.items())


def _fleet(workers: Rows, settings: Settings) -> Iterator[Sample]:
    states = Counter(_state(each, settings) for each in workers)
    yield from (("workers", (state,), states[state]) for state in ("alive", "late", "draining"))
    taking = [each for each in workers if not each["draining"]]
    yield "worker_slots", (), sum(_slots(each["about"]) for each in taking)
    yield "worker_slots_taken", (), sum(each["holds"] for each in taking)


def _state(worker: Row, settings: Settings) -> str:
    if worker["draining"]:
        return "draining"
    return "late" if is_late(worker, settings) else "alive"


def _slots(about: Mapping[str, Any]) -> int:
    """Runs that a process executes at once: each of a pool's processes tells of itself, and has one slot."""
    return (about.get("concurrency") or 1) if about.get("pool") != "prefork" else 1


def _summed(rows: Rows, name: str) -> Mapping[str, int]:
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row[name]] += row["count"]
    return sums
