"""The tasks, defined once, and the life of a worker process: when its engine starts, drains and ends.

A task is a few lines: it takes ids from the message and calls the runtime. Nothing that happens to a message matters.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

from celery import Celery, signals
from celery.backends.base import DisabledBackend
from celery.worker import state

from agentrun.broker.about import about, queues_of
from agentrun.broker.app import STEP, SWEEP, WAKE
from agentrun.broker.consumer import Flushing
from agentrun.broker.hearing import Hearing, Room, RoomOfChild, RoomOfPool
from agentrun.broker.publisher import CeleryPublisher
from agentrun.broker.slots import Slots
from agentrun.core.errors import ConfigurationError
from agentrun.core.wake import Wake
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import registry
from agentrun.runtime.settling import Report
from agentrun.runtime.upkeep import Sweep
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.store.outages import REMIND_SECONDS, of_postgres
from agentrun.store.schema import require_head
from agentrun.store.troubles import away, explained
from agentrun.telemetry import observer

log = logging.getLogger("agentrun.worker")

TURN = 0.0005
"""Seconds that a thread may compute while another one waits. With Python's 5 ms, the loop's thread sends the claim of a
run that was just received when the consumer's thread is done with everything else: 2 ms later, where nothing else is
going on. On a full queue it makes no difference."""

LONGEST_LOOK = 0.005
"""Seconds that an idle consumer lets a run that it began have the process for itself, until it is claimed."""

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


class Process:
    """One worker process's engine, made on first need and once per process id."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engines: dict[int, Engine] = {}
        self._lock = threading.Lock()
        self._shutdown: Shutdown | None = None
        self._sweeping = threading.Lock()
        self._slots: Slots | None = None
        self._warned: dict[str, float] = {}
        self._begun: tuple[str, Future[Report]] | None = None
        self._queues: tuple[str, ...] = ()
        self._about: Mapping[str, Any] = {}
        self._app: Any = None
        self._consumer: Any = None
        self._room: Room | None = None
        self._hearing: Hearing

    # ---- what the tasks do

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

    # ---- the process's life

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


class Shutdown:
    """Tells children, who cannot be reached otherwise, that their main process shuts down.

    A byte in a pipe that nobody takes out. multiprocessing.Event is no help: its `set` waits for every sleeper that it
    wakes, for ever if one of them was killed in its sleep.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def set(self) -> None:
        """From now on nobody waits. For signal handlers too."""
        os.write(self._write, b"!")

    def wait(self) -> None:
        """Until `set` was called in any process."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.poll()


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


def _only_uuid(args: tuple[object, ...], kwargs: dict[str, object]) -> UUID | None:
    if len(args) != 1 or kwargs or not isinstance(args[0], str):
        return None
    try:
        return UUID(args[0])
    except ValueError:
        return None
