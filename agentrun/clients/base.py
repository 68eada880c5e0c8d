"""What all parts of Client need: what it holds in this process, and what it asks with, for one actor or for nobody."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from uuid import UUID

from agentrun.broker.hints import Hints
from agentrun.core.actors import Actor
from agentrun.core.errors import ConfigurationError, InvalidRequest, NotAllowed
from agentrun.core.wake import Publisher
from agentrun.runtime.answers import Answers
from agentrun.runtime.asked import Asked
from agentrun.runtime.commands import Commands
from agentrun.runtime.engine import Engine
from agentrun.runtime.external import External
from agentrun.runtime.kinds import Registry
from agentrun.runtime.operators import Operators
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.store.relay import Relay
from agentrun.telemetry import observer

RunId = UUID | str

LAST_SECONDS = 2.0
"""How long a process that ends without closing its client takes to hand its runs back."""


class Held:
    """What a client and all its views hold: connections, engines, threads. After a fork, each process has its own."""

    def __init__(self, settings: Settings, publisher: Publisher, kinds: Registry) -> None:
        self.settings, self.publisher, self.kinds = settings, publisher, kinds
        self.database = Database(
            settings.require_database(),
            name="agentrun client",
            max_connections=settings.max_connections,
            direct_url=settings.direct_database_url,
        )
        self.hints, self.relay = Hints(settings), Relay(self.database, publisher)
        self.drained, self.closed = threading.Event(), False
        self._engines: dict[int, Engine] = {}
        self._lock = threading.Lock()

    def engine(self) -> Engine:
        """This process's engine, made when it is first asked for."""
        with self._lock:
            engine = self._engines.get(os.getpid())
            if engine is None:
                look = observer(self.settings)
                engine = Engine(self.settings, self.database, self.publisher, kinds=self.kinds, observer=look)
                engine.draining = self.drained.is_set()
                self._engines[os.getpid()] = engine
                atexit.register(_hand_back, weakref.ref(engine), os.getpid())
            return engine

    def drain(self, within: float | None = None) -> bool:
        """As Client.drain."""
        with self._lock:
            self.drained.set()
            engine = self._engines.get(os.getpid())
        if engine is None:
            return True
        budget = self.settings.drain_seconds if within is None else within
        engine.drain(within=budget)
        return engine.idle(budget)

    def close(self) -> None:
        """Close connections and threads of this process. Twice does no harm."""
        self.relay.close()
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.close()
        self.publisher.close()
        self.hints.close()
        self.database.close()


class Asking:
    """What the verbs ask with: for one actor, or for nobody in particular."""

    def __init__(self, held: Held, actor: Actor | None = None) -> None:
        self.commands = Commands(held.settings, held.database, held.publisher, held.kinds, actor=actor)
        self.operators, self.external = Operators(self.commands), External(self.commands)
        self.answers, self.asked = Answers(self.commands), Asked(self.commands)


class Face:
    """Part of what Client is: its verbs' one way to all that they need, which is shut once the client is closed.

    A call that is under way then goes on with `held` and `asking`, and is not stopped halfway.
    """

    settings: Settings
    held: Held
    asking: Asking

    def _open(self) -> Asking:
        """What a verb begins with. Raises NotAllowed where the client, or a view of it, was closed."""
        if self.held.closed:
            raise NotAllowed("this Client is closed; make another one, and close it after its last call")
        return self.asking

    @property
    def commands(self) -> Commands:
        """Enqueueing, and reads."""
        return self._open().commands

    @property
    def operators(self) -> Operators:
        """The operators' verbs."""
        return self._open().operators

    @property
    def answers(self) -> Answers:
        """Answers to waits."""
        return self._open().answers

    @property
    def asked(self) -> Asked:
        """What people are asked."""
        return self._open().asked

    @property
    def external(self) -> External:
        """Steps done elsewhere."""
        return self._open().external

    @property
    def relay(self) -> Relay:
        """Wakes for what is committed in callers' transactions."""
        return self.held.relay

    @property
    def hints(self) -> Hints:
        """Who waits for which end."""
        return self.held.hints

    def _engine(self) -> Engine:
        self._open()
        return self.held.engine()


def _hand_back(there: weakref.ref[Engine], process_id: int) -> None:
    """A process that ends without closing its client: what still executes goes to workers, and not to the reaper."""
    engine = there()
    if engine is not None and os.getpid() == process_id and not engine.closed:
        engine.drain(within=LAST_SECONDS)
        engine.idle(LAST_SECONDS)
        engine.publisher.close()


def require_servers(settings: Settings) -> None:
    """Raises ConfigurationError where a URL is not set.

    With neither set it tells of this user's `agentrun up`, if one runs: a program uses no servers that nobody has
    named, and no message holds their passwords.
    """
    if settings.database_url is None and settings.broker_url is None and (up := _process_of_up()) is not None:
        raise ConfigurationError(
            f"AGENTRUN_DATABASE_URL and AGENTRUN_BROKER_URL are not set. Your `agentrun up` runs here (process {up}), "
            'but a program uses only servers that it is told of; for these, run `eval "$(agentrun up)"` in its shell: '
            "a second `up` starts nothing, and prints the `export` lines"
        )
    settings.require_broker()
    settings.require_database()


def _process_of_up() -> int | None:
    # Whoever has set the URLs needs none of it.
    from agentrun.embedded import EmbeddedError, find_running

    try:
        running = find_running()
    except EmbeddedError:  # another user's state folder: then nothing of ours runs
        return None
    return running.pid if running is not None else None


def as_uuid(value: RunId) -> UUID:
    """A run id. Raises InvalidRequest where it is none."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidRequest(f"a run id is a uuid, not {str(value)[:40]!r}") from None
