"""DBOS Transact: workflows on a queue without a limit, as it comes; a worker takes all that waits at its next poll."""

from __future__ import annotations

import threading

from dbos import DBOS, DBOSClient

from bench.peers import protocol
from bench.ticks import tick

_QUEUE, _VERSION = "bench", "1"


@DBOS.step()
def one(number: int) -> int:
    return number


@DBOS.step()
def noted(number: int) -> int:
    tick()
    return number


@DBOS.workflow(name=protocol.NOOP)
def noop(count: int) -> int:
    tick()
    return count


@DBOS.workflow(name=protocol.RUN)
def run(count: int) -> int:
    """Notes its first line too: all that waits starts at once."""
    tick()
    for number in range(count):
        one(number)
    tick()
    return count


@DBOS.workflow(name=protocol.STEPS)
def steps(count: int) -> int:
    for number in range(count):
        noted(number)
    return count


class Peer:
    def prepare(self) -> None:
        _launch()
        DBOS.register_queue(_QUEUE)
        DBOS.destroy()

    def work(self, room: int) -> None:
        """All at once whatever `room`: a limit makes it wait for the next poll whenever it is reached."""
        _launch()
        DBOS.register_queue(_QUEUE, polling_interval_sec=protocol.poll_seconds(), on_conflict="always_update")
        threading.Event().wait()

    def connect(self) -> None:
        self.client = DBOSClient(system_database_url=_url(), application_name="bench")

    def enqueue(self, kind: str, count: int) -> None:
        self.client.enqueue({"queue_name": _QUEUE, "workflow_name": kind, "app_version": _VERSION}, count)

    def enqueue_many(self, kind: str, count: int, runs: int) -> None:
        raise NotImplementedError


def _launch() -> None:
    settings = {"name": "bench", "system_database_url": _url(), "application_version": _VERSION, "log_level": "ERROR"}
    DBOS(config=settings | {"executor_id": "one"})
    DBOS.launch()


def _url() -> str:
    return protocol.database_url().replace("postgresql://", "postgresql+psycopg://")


if __name__ == "__main__":
    protocol.main(Peer())
