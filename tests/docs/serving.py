"""Executes the queued runs and offered steps of a test's database here, so that `client.wait` in a page comes back."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any

import psycopg

from agentrun.runtime.engine import Engine
from agentrun.runtime.segment import run_segment
from agentrun.runtime.taking import run_step
from agentrun.runtime.upkeep import Sweep

DUE = "SELECT id FROM agentrun.runs WHERE status = 'queued' AND due_at <= now()"
ON_OFFER = "SELECT run_id, key FROM agentrun.steps WHERE status = 'offered' AND queue IS NOT NULL AND due_at <= now()"


class Serving:
    """From `with` to its end. Wakes are not asked for: the row is the truth."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="docs worker", daemon=True)
        self._segments: dict[object, Future[Any]] = {}

    def __enter__(self) -> Serving:
        self._engine.announce()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(10)
        wait(self._segments.values(), 10)

    def _serve(self) -> None:
        with psycopg.connect(self._engine.settings.require_database(), autocommit=True) as connection:
            turns = 0
            while not self._closing.wait(0.02):
                for (run_id,) in connection.execute(DUE).fetchall():
                    self._wake(run_id, run_segment(self._engine, run_id))
                for run_id, key in connection.execute(ON_OFFER).fetchall():
                    self._wake((run_id, key), run_step(self._engine, run_id, key))
                turns += 1
                if turns % 50 == 0:
                    self._sweep()

    def _wake(self, what: object, segment: Coroutine[Any, Any, Any]) -> None:
        executing = self._segments.get(what)
        if executing is None or executing.done():
            self._segments[what] = self._engine.submit(segment)
        else:
            segment.close()

    def _sweep(self) -> None:
        Sweep(self._engine.settings, self._engine.database, self._engine.publisher, by="sweep:docs").run()
