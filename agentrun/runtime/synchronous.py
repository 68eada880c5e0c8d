"""`SyncContext`, what a plain `def` body has in place of a `Context`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload
from uuid import UUID

from agentrun.core.words import Effect
from agentrun.runtime.context import Context
from agentrun.runtime.options import Retries
from agentrun.runtime.verbs import Decision

T = TypeVar("T")


class SyncContext:
    """The context of a plain `def` body, which runs in a thread: the same verbs, and they return their values."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop
        self.run = context.run

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self._context.run_id

    @property
    def owner(self) -> str | None:
        """Whom the run works for."""
        return self._context.owner

    def options(
        self,
        *,
        key: str | None = None,
        name: str | None = None,
        retries: Retries | int | None = None,
        timeout: timedelta | float | None = None,
    ) -> SyncContext:
        """As `Context.options`."""
        return SyncContext(self._context.options(key=key, name=name, retries=retries, timeout=timeout), self._loop)

    def wait(self, verb: Coroutine[Any, Any, T]) -> T:
        """Any verb of `Context`: `ctx.wait(ctx.asynchronous.sleep(hours=1))`."""
        return self._wait(verb)

    @property
    def asynchronous(self) -> Context:
        """The context whose verbs are coroutines, for `wait`."""
        return self._context

    def sleep(self, duration: timedelta | float | None = None, **units: float) -> None:
        """As `Context.sleep`."""
        self._wait(self._context.sleep(duration, **units))

    def signal(self, name: str, **options: Any) -> Any:
        """As `Context.signal`; returns the payload."""
        return self._wait(self._context.signal(name, **options))

    def approval(self, question: str, **options: Any) -> Decision:
        """As `Context.approval`; returns the decision."""
        return self._wait(self._context.approval(question, **options))

    def input(self, question: str, *, schema: Any, **options: Any) -> Any:
        """As `Context.input`; returns the data."""
        return self._wait(self._context.input(question, schema=schema, **options))

    def child(self, kind: str, request: Any = None, **wishes: Any) -> Any:
        """As `Context.child`; returns its result."""
        return self._wait(self._context.child(kind, request, **wishes))

    @overload
    def remote(self, name: str, input: Any = None, *, returns: type[T], **options: Any) -> T: ...

    @overload
    def remote(self, name: str, input: Any = None, **options: Any) -> Any: ...

    def remote(self, name: str, input: Any = None, **options: Any) -> Any:  # noqa: A002 - the word of the API
        """As `Context.remote`; returns the result."""
        return self._wait(self._context.remote(name, input, **options))

    @overload
    def external(self, name: str, input: Any = None, *, returns: type[T], **options: Any) -> T: ...

    @overload
    def external(self, name: str, input: Any = None, **options: Any) -> Any: ...

    def external(self, name: str, input: Any = None, **options: Any) -> Any:  # noqa: A002 - the word of the API
        """As `Context.external`; returns the result."""
        return self._wait(self._context.external(name, input, **options))

    def step(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """As `Context.step`; returns the value."""
        return self._wait(self._context.step(function, *args, **kwargs))

    def write(self, function: Callable[..., T], *args: Any, effect: Effect | str | None = None, **kwargs: Any) -> T:
        """As `Context.write`; returns the value."""
        return self._wait(self._context.write(function, *args, effect=effect, **kwargs))

    def transaction(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """As `Context.transaction`; returns the value."""
        return self._wait(self._context.transaction(function, *args, **kwargs))

    def now(self) -> datetime:
        """As `Context.now`; returns the value."""
        return self._wait(self._context.now())

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
