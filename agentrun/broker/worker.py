"""The tasks, defined once, and the life of a worker process: when its engine starts, drains and ends."""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from celery import Celery, signals
from celery.backends.base import DisabledBackend
from celery.worker import state

from agentrun.broker.about import about, queues_of
from agentrun.broker.app import STEP, SWEEP, WAKE
from agentrun.broker.consumer import Flushing
from agentrun.broker.hearing import Hearing, Room, RoomOfChild, RoomOfPool
from agentrun.broker.publisher import CeleryPublisher
from agentrun.broker.serving import Serving
from agentrun.broker.shutdown import Shutdown
from agentrun.broker.slots import Slots
from agentrun.core.errors import ConfigurationError
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import registry
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.store.outages import REMIND_SECONDS
from agentrun.store.schema import require_head
from agentrun.store.troubles import explained
from agentrun.telemetry import observer

log = logging.getLogger("agentrun.worker")

TURN = 0.0005
"""Seconds that a thread may compute while another one waits. With Python's 5 ms, the loop's thread sends the claim of a
run that was just received when the consumer's thread is done with everything else: 2 ms later, where nothing else is
going on. On a full queue it makes no difference."""

LAST_LOOK = 2.0
"""Seconds that a worker that ends waits for runs that no task of Celery's waits for any more."""

YOUNG = 30_000
"""New objects after which Python's collector looks for cycles: some milliseconds' work, and some megabytes at most."""


def register(app: Celery, settings: Settings | None = None) -> Celery:
    """Give an existing Celery application agentrun's tasks; returns it.

    Its workers have to consume agentrun's queues as well: `celery -A app worker -Q celery,agentrun,agentrun.system`.
    Nothing else of the application's configuration is touched; late acks and a result backend do no harm.
    """
    process = Process(settings or Settings())
    # Celery makes a backend for every thread that has none given, and reads the entry points of all packages for it:
    # 10 ms of processor time for each of a pool's threads. Nothing here has a result to store anyway.
    nowhere: Any = DisabledBackend(app)

    @app.task(name=WAKE, bind=True, ignore_result=True, backend=nowhere)
    def wake(task: Any, *args: object, **kwargs: object) -> str:
        delivery: dict[str, Any] = task.request.delivery_info or {}
        return _in_a_line(process.wake(args, kwargs, queue=delivery.get("routing_key"), message=task.request.id))

    @app.task(name=STEP, bind=True, ignore_result=True, backend=nowhere)
    def step(task: Any, *args: object, **kwargs: object) -> str:
        delivery: dict[str, Any] = task.request.delivery_info or {}
        return _in_a_line(process.step(args, kwargs, queue=delivery.get("routing_key")))

    @app.task(name=SWEEP, ignore_result=True, backend=nowhere)
    def sweep() -> dict[str, Any]:
        return process.sweep()

    process.connect_signals()
    return app


class Process(Serving):
    """One worker process's engine, made on first need and once per process id."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._lock = threading.Lock()
        self._shutdown: Shutdown | None = None
        self._warned: dict[str, float] = {}
        self._queues: tuple[str, ...] = ()
        self._about: Mapping[str, Any] = {}
        self._app: Any = None
        self._consumer: Any = None
        self._room: Room | None = None

    def engine(self) -> Engine:
        """This process's engine."""
        engine = self._engines.get(os.getpid())
        if engine is None:
            with self._lock:
                engine = self._engines.get(os.getpid()) or self._start()
        return engine

    def connect_signals(self) -> None:
        """Follow the worker: load kinds at its start, drain at its shutdown."""
        for signal, receiver in (
            (signals.worker_init, self._on_init),
            (signals.worker_process_init, self._on_child),
            (signals.worker_ready, self._on_ready),
            (signals.worker_shutting_down, self._on_shutting_down),
            (signals.worker_process_shutdown, self._on_end),
            (signals.worker_shutdown, self._on_end),
        ):
            signal.connect(receiver, weak=False)

    def _start(self) -> Engine:
        settings = self._settings
        self._hearing = Hearing(self._queues, beat=settings.heartbeat_seconds, room=self._room, consumer=self._consumer)
        engine = Engine(
            settings,
            Database(
                settings.require_database(),
                name="agentrun worker",
                max_connections=settings.max_connections,
                direct_url=settings.direct_database_url,
            ),
            CeleryPublisher(settings),
            queues=self._queues,
            about=self._about,
            hearing=self._hearing.told,
            sweep=self._sweep_in_background,
            observer=observer(settings),
        )
        self._engines[os.getpid()] = engine
        return engine

    def _on_init(self, sender: Any = None, **_: object) -> None:
        # Children of a pool are one worker: what they all say here is the same.
        self._app = getattr(sender, "app", None)
        self._queues, self._about = queues_of(sender), {**about(sender), "worker": uuid4().hex}
        try:
            registry.load(self._settings.imports)
            require_head(self._settings.require_database())
            self._settings.require_broker()
        except Exception as error:
            trouble = error if isinstance(error, ConfigurationError) else explained(error)
            if trouble is None:
                # Celery would log what a signal's receiver raises, and go on as a worker that knows no kinds.
                log.exception("a module of AGENTRUN_IMPORTS cannot be imported, or the database cannot be used")
                raise SystemExit(1) from None
            raise SystemExit(f"agentrun: {trouble}") from None
        self._shutdown = Shutdown()
        if (wait := getattr(sender, "wait_for_soft_shutdown", None)) is not None:
            sender.wait_for_soft_shutdown = functools.partial(self._on_soft_shutdown, wait)
        if (terminate := getattr(sender, "terminate", None)) is not None:
            sender.terminate = functools.partial(self._on_terminated, terminate)

    def _on_ready(self, sender: Any = None, **_: object) -> None:
        pool = getattr(sender, "pool", None)
        if type(pool).__module__.endswith(".thread"):
            if (hub := getattr(sender, "hub", None)) is not None:
                self._slots = Slots.of(pool, hub, (WAKE, STEP))
                signals.task_received.connect(self.received, weak=False)
            Flushing.begin(sender)
            sys.setswitchinterval(TURN)
        if pool is not None and type(pool).__module__.endswith("prefork"):
            return
        if pool is not None:
            # A cold shutdown ends tasks with their processes. Celery's threads cannot be ended like that, and it would
            # stop halfway with a NotImplementedError, its threads going on.
            pool.terminate_job = self._terminate
            self._consumer, self._room = sender, RoomOfPool(sender)
        self.engine().announce()
        _collect_less()

    def _on_child(self, **_: object) -> None:
        self._room = RoomOfChild(self._app, self._heard)
        self.engine().announce()
        _collect_less()
        if self._shutdown is not None:
            self._in_background(functools.partial(self._drain_after, self._shutdown), "agentrun drain")

    def _heard(self, name: str, delivery: Mapping[str, Any] | None) -> None:
        if os.getpid() in self._engines:
            self._hearing.heard(name, delivery)

    def _drain_after(self, shutdown: Shutdown) -> None:
        shutdown.wait()
        self.engine().drain()

    def _on_shutting_down(self, **_: object) -> None:
        if self._shutdown is not None:
            self._shutdown.set()
        engine = self._engines.get(os.getpid())
        if engine is not None:
            engine.drain()

    def _on_soft_shutdown(self, wait: Callable[[], None]) -> None:
        """Celery says that it shuts down only when the soft shutdown's time is over: that time is the drain's."""
        self._on_shutting_down()
        wait()
        if self._slots is not None:
            self._slots.go_on()

    def _terminate(self, *_: object) -> None:
        engine = self.engine()
        if not engine.draining:
            # `revoke --terminate`, Flower's button: by that, the process would give up all that it does.
            _hear_again()
            raise NotImplementedError("a run does not end with its message: `agentrun cancel RUN` ends it")
        engine.drain(within=0.0)

    def _on_terminated(self, terminate: Callable[..., None], *args: object, **options: object) -> None:
        """The end of a cold shutdown, of which Celery sends no signal. The wakes of what was handed back are on their
        way to a thread that would die with this process."""
        terminate(*args, **options)
        self._on_end()

    def _on_end(self, **_: object) -> None:
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            if engine.draining:
                # A run may be without its task: what listens to Celery's signals can end one, and not the other.
                engine.idle(LAST_LOOK)
            engine.close()
            engine.publisher.close()
            engine.database.close()

    def _sweep_in_background(self, why: str) -> None:
        now = time.monotonic()
        if now - self._warned.get(why, -REMIND_SECONDS) >= REMIND_SECONDS:
            self._warned[why] = now
            log.warning(why)
        self._in_background(self.sweep, "agentrun sweep")

    def _in_background(self, call: Callable[[], object], name: str) -> None:
        threading.Thread(target=call, name=name, daemon=True).start()


def _collect_less() -> None:
    """What was imported stays: to look through it again and again would take a sixth of a step's time. To look through
    2,000 runs that wait, after every 700 objects that others make, takes another sixth."""
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG:
        gc.set_threshold(YOUNG, *older)


def _hear_again() -> None:
    """Celery has noted the id before it asked to terminate it: a message that is delivered again would be dropped."""
    for request in list(state.active_requests):
        if request.name in (WAKE, STEP):
            state.revoked.discard(request.id)


def _in_a_line(report: Mapping[str, Any]) -> str:
    """For Celery's log and Flower. Celery makes a shortened text of every result, which takes long of a dictionary."""
    return " ".join(f"{name}={value}" for name, value in report.items() if value not in (None, ""))
