"""The producer's face: `Client`. Needs neither the bodies nor a Celery application."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import get_args

from agentrun.broker import CeleryPublisher
from agentrun.clients.answering import Answering
from agentrun.clients.base import Asking, Held, require_servers
from agentrun.clients.operating import Operating
from agentrun.clients.options import Dispatch
from agentrun.clients.producing import Producing
from agentrun.clients.reading import Reading
from agentrun.core.actors import Actor
from agentrun.core.errors import ConfigurationError, InvalidRequest
from agentrun.runtime.checks import shown
from agentrun.runtime.kinds import Registry, registry
from agentrun.settings import Settings


class Client(Producing, Reading, Answering, Operating):
    """Synchronous verbs on one namespace. Thread-safe, and safe to keep across a fork.

    `database_url`, `broker_url` and `namespace` override the settings. With `dispatch_failure="leave"` (the default)
    a run whose wake cannot be sent stays queued and starts when the broker is back; with `"fail"` it is settled as
    failed and EnqueueFailed is raised (ADR-102). Raises ConfigurationError where a URL is missing or cannot be used,
    and for another `dispatch_failure`.

    After `close` every verb raises NotAllowed, but for `drain` and `close`: nothing is left to be handed back. A client
    and its views (`acting`) are closed together; closed in one process, it is open in others that have a copy.
    """

    def __init__(
        self,
        *,
        database_url: str | None = None,
        broker_url: str | None = None,
        namespace: str | None = None,
        dispatch_failure: Dispatch = "leave",
        settings: Settings | None = None,
        kinds: Registry = registry,
    ) -> None:
        given = {"database_url": database_url, "broker_url": broker_url, "namespace": namespace}
        self.settings = _settings(settings, {name: value for name, value in given.items() if value is not None})
        require_servers(self.settings)
        self._strict = _is_strict(dispatch_failure)
        self.held = Held(self.settings, CeleryPublisher(self.settings), kinds)
        self.asking = Asking(self.held)

    def acting(self, actor: Actor) -> Client:
        """The same client for one actor: every verb checks its scopes, and records its id.

        Without READ an actor sees the runs it owns and no others: they are not there (NotFound), for every verb.
        Without ENQUEUE it starts none (Forbidden). What it enqueues is its own unless `owner` says otherwise.
        Raises NotAllowed where the client is closed, and InvalidRequest for what is no Actor: a plain name is for the
        record only (`by="ada"`), and restricts nobody.
        """
        self._open()
        if not isinstance(actor, Actor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(
                f"acting takes an Actor with scopes, as `Actor('ada', frozenset({{Scope.READ}}))`, not {shown(actor)}"
            )
        view = copy.copy(self)
        view.asking = Asking(self.held, actor)
        return view

    def drain(self, *, within: float | None = None) -> bool:
        """Hand back what executes in this process (`run`, and whatever goes on `here`): for a web process's shutdown.

        Each run goes to a worker at its next step, or after `within` seconds (AGENTRUN_DRAIN_SECONDS) wherever it is;
        nothing is counted against it, and its caller gets RunFailed, or the run as it is. From now on `run` and
        `resume` are refused with NotAllowed, and a decision `here` wakes a worker instead. Returns at once where
        nothing executes; False where a non-idempotent write is still in flight: `close` would leave it to its lease.
        """
        return self.held.drain(within)

    def close(self) -> None:
        """Hand back what still executes here (see `drain`), then close connections and threads. Twice does no harm.

        Calls under way go on to their end; a `run` is handed back (RunFailed), and a wait ends at once (NotAllowed).
        """
        # What executes here may call this client until it is handed back.
        self.drain()
        self.held.closed = True
        self.held.hints.closing.tell()
        self.held.close()

    def __enter__(self) -> Client:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _settings(given: object, overrides: Mapping[str, str]) -> Settings:
    """The given ones, else the environment's, with what overrides them: checked as all settings are."""
    if given is not None and not isinstance(given, Settings):
        raise ConfigurationError(f"settings must be a Settings, as `Settings(lease_seconds=60)`, not {shown(given)}")
    if given is not None and not overrides:
        return given
    return Settings(**{**(given.model_dump() if given is not None else {}), **overrides})


def _is_strict(dispatch_failure: object) -> bool:
    if dispatch_failure not in get_args(Dispatch):
        raise ConfigurationError(
            f'dispatch_failure must be "leave" (the run waits for the broker) or "fail" (it is settled as failed), not '
            f"{shown(dispatch_failure)}"
        )
    return dispatch_failure == "fail"
