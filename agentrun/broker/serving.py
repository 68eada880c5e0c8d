"""What a worker's tasks do: take ids from the message, call the runtime. What happens to a message does not matter."""

from __future__ import annotations

import functools
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any
from uuid import UUID

from agentrun.broker.app import WAKE
from agentrun.broker.hearing import Hearing
from agentrun.broker.slots import Slots
from agentrun.core.wake import Wake
from agentrun.runtime.engine import Engine
from agentrun.runtime.settling import Report
from agentrun.runtime.upkeep import Sweep
from agentrun.settings import Settings
from agentrun.store.outages import of_postgres
from agentrun.store.troubles import away

log = logging.getLogger("agentrun.worker")

LONGEST_LOOK = 0.005
"""Seconds that an idle consumer lets a run that it began have the process for itself, until it is claimed."""


class Serving(ABC):
    """The half of a worker process that its tasks see. `Process` is the other one: its life."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engines: dict[int, Engine] = {}
        self._sweeping = threading.Lock()
        self._slots: Slots | None = None
        self._begun: tuple[str, Future[Report]] | None = None
        self._hearing: Hearing

    @abstractmethod
    def engine(self) -> Engine:
        """This process's engine."""

    def wake(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        queue: str | None = None,
        message: str | None = None,
    ) -> dict[str, Any]:
        """Execute a segment of the run that the message from `queue` names; garbage is one log line."""
        run_id = _only_uuid(args, kwargs)
        if run_id is None:
            log.warning("a wake that names no run was dropped (%d arguments)", len(args) + len(kwargs))
            return {"outcome": "garbage"}
        engine, ahead = self.engine(), self._ahead(message)
        self._hearing.took(queue)
        if engine.draining and ahead is None:
            return self._sent_on(engine, run_id, queue)
        return self._ended(ahead or engine.begin(run_id), functools.partial(engine.release, run_id))

    def received(self, sender: Any, request: Any, **_: object) -> None:
        """A message has come, and a slot is free: the run begins, and then Celery makes a task of the message."""
        engine = self._engines.get(os.getpid())
        if engine is not None and request.name != WAKE:
            self._hearing.heard(request.name, request.delivery_info)
        if request.name != WAKE or request.eta or engine is None or engine.draining:
            return
        if sender.task_buckets.get(WAKE) is not None:
            # `celery control rate_limit`: Celery decides when.
            return
        run_id = _only_uuid(tuple(request.args), request.kwargs)
        if run_id is None or self._slots is None or self._slots.full:
            return
        claimed = threading.Event()
        # One is enough: what comes next in this thread is that task. Where Celery thinks otherwise, nobody asks for it.
        self._begun = request.id, engine.begin(run_id, claimed=claimed.set)
        if not self._slots.taken:
            # Nothing else is going on. Two threads that compute hinder each other, and this one is not in a hurry.
            claimed.wait(LONGEST_LOOK)

    def _ahead(self, message: str | None) -> Future[Report] | None:
        begun = self._begun
        if begun is None or begun[0] != message:
            return None
        self._begun = None
        return begun[1]

    def step(self, args: tuple[object, ...], kwargs: dict[str, object], *, queue: str | None = None) -> dict[str, Any]:
        """Take and execute the remote step that the message from `queue` names; garbage is one log line."""
        run_id = _only_uuid(args[:1], kwargs)
        key = args[1] if len(args) == 2 else None
        if run_id is None or not isinstance(key, str):
            log.warning("a message that names no step was dropped (%d arguments)", len(args) + len(kwargs))
            return {"outcome": "garbage"}
        engine = self.engine()
        self._hearing.took(queue)
        if engine.draining:
            return self._sent_on(engine, run_id, queue, key)
        return self._ended(engine.begin_step(run_id, key), functools.partial(engine.release_step, run_id, key))

    def _sent_on(self, engine: Engine, run_id: UUID, queue: str | None, key: str | None = None) -> dict[str, Any]:
        engine.publisher.soon(Wake(run_id, queue or self._settings.queue, cause="drain", step_key=key))
        return {"outcome": "draining", "run": str(run_id)}

    def _ended(self, begun: Future[Report], release: Callable[[], None]) -> dict[str, Any]:
        try:
            return (begun.result() if self._slots is None else self._slots.end_of(begun)).as_json()
        except Exception:
            raise
        except BaseException:
            # SystemExit of a cold shutdown or a time limit: what it holds goes back before this process dies.
            release()
            raise

    def sweep(self) -> dict[str, Any]:
        """One sweep; a second one in the same process at the same time is left out."""
        engine = self.engine()
        outage = of_postgres(engine.database.url)
        if not self._sweeping.acquire(blocking=False):
            return {"outcome": "already sweeping here"}
        try:
            by = f"sweep:{engine.owner_suffix}"
            sweep = Sweep(self._settings, engine.database, engine.publisher, by=by, draining=engine.draining)
            found = asdict(sweep.run())
        except Exception as error:
            if not away(error):
                raise
            outage.failed(error)
            return {"outcome": "the database is away"}
        else:
            outage.worked()
            return found
        finally:
            self._sweeping.release()


def _only_uuid(args: tuple[object, ...], kwargs: dict[str, object]) -> UUID | None:
    if len(args) != 1 or kwargs or not isinstance(args[0], str):
        return None
    try:
        return UUID(args[0])
    except ValueError:
        return None
