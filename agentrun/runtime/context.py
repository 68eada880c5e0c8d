"""`Context`, what a body may do: steps, writes, transactions, branches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, ParamSpec, TypeVar, overload
from uuid import UUID

from agentrun.core.errors import BodyError, WriteWithoutLease
from agentrun.core.words import Effect, StepKind
from agentrun.runtime.effects import UNDECLARED, as_effect
from agentrun.runtime.functions import Described, arguments_of, described
from agentrun.runtime.gathering import gathered, leaving_what_waits
from agentrun.runtime.keys import key_for
from agentrun.runtime.options import Retries
from agentrun.runtime.remote import RemoteVerbs
from agentrun.runtime.stepspec import Performs, StepSpec, in_thread
from agentrun.runtime.verbs import WaitingVerbs
from agentrun.runtime.waits import Waits
from agentrun.runtime.wishes import Wishes

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a body may know of its run."""

    run_id: UUID
    kind: str
    epoch: int
    requeue_count: int
    owner: str | None
    tags: Sequence[str]
    attributes: Mapping[str, Any]
    deadline_at: datetime | None


class Context(RemoteVerbs, WaitingVerbs):
    """A body's only door to the outside. Everything that goes through it is journaled and replayed.

    Steps are keyed by their position in their branch, or by an explicit `key`. Their errors come as StepFailed, at
    the first pass and at every replay alike.
    """

    def __init__(
        self, run: RunFacts, steps: Performs, threads: Executor, wishes: Wishes, waits: Waits | None = None
    ) -> None:
        self.run = run
        self._steps, self._threads, self.wishes = steps, threads, wishes
        self._waits, self._owner = waits, run.owner

    @property
    def waits(self) -> Waits:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The run's waits. Raises WriteWithoutLease in a rehearsal: nothing could wait there."""
        if self._waits is None:
            raise WriteWithoutLease("there is no durable run here that could wait; enqueue it or use client.run(...)")
        return self._waits

    def options(
        self,
        *,
        key: str | None = None,
        name: str | None = None,
        retries: Retries | int | None = None,
        timeout: timedelta | float | None = None,
    ) -> Context:
        """A context with wishes for one step: `await ctx.options(key="…", retries=3).step(function, …)`.

        This one stays as it is. What was wished for before and is not said anew stays wished for.

        `key` replaces the position (it must not start with '#'), `name` is what people see, `retries` is for steps
        that may be repeated, `timeout` is seconds (or a timedelta) per attempt. Raises BodyError for a value that
        cannot be one of these; so does a verb for what it cannot keep: a transaction has no timeout, a write in the
        fence no retries, a wait nothing but a key, a gather nothing.
        """
        wishes = self.wishes.then(key, name, retries, timeout)
        return Context(self.run, self._steps, self._threads, wishes, self._waits)

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self.run.run_id

    @property
    def owner(self) -> str | None:
        """Whom the run works for."""
        return self.run.owner

    @property
    def threads(self) -> Executor:
        """Where plain functions run."""
        return self._threads

    def perform(self, spec: StepSpec) -> Coroutine[Any, Any, Any]:
        """One step that is specified in full: for bindings of other frameworks. Bodies use `step` and `write`."""
        return self._steps.perform(spec)

    @overload
    def step(
        self,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def step(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run `function(*args, **kwargs)` once and record what it returns; a replay returns the record.

        For what may be repeated: a crash in the middle of it runs it again. Plain functions run in a thread. Its
        position is taken when `step` is called, not when it is awaited. For a key, retries or a timeout of its own:
        `ctx.options(key="…", retries=3).step(function, …)`.

        Raises StepFailed where the function raised and its retries are spent; BodyError for a declared write
        (`ctx.write` fences it) and inside another step.
        """
        known = described(function)
        if known.declared is not None and known.declared.effect is Effect.NON_IDEMPOTENT_WRITE:
            raise BodyError(f"`{known.name}` is declared as a non-idempotent write; use ctx.write, which fences it")
        return self._perform(StepKind.STEP, known, function, args, kwargs)

    @overload
    def write(
        self,
        function: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        effect: Effect | str | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def write(
        self, function: Callable[..., T], *args: Any, effect: Effect | str | None = None, **kwargs: Any
    ) -> Coroutine[Any, Any, T]: ...

    def write(
        self, function: Callable[..., Any], *args: Any, effect: Effect | str | None = None, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Run a function that changes something outside, fenced: a non-idempotent write starts at most once.

        `effect` is what the function declares (`@effect`), or non-idempotent. Inside it,
        `current_step().idempotency_key` is the same in every attempt. Raises StepFailed for `NotApplied`, and for any
        error of an idempotent write; any other error of a non-idempotent write ends the run as a crash would, because
        nobody knows whether it happened.
        """
        known = described(function)
        declaration = known.declared or UNDECLARED
        effect = declaration.effect if effect is None else as_effect(effect)
        if effect.is_write:
            self.wishes.without("ctx.write", "retries", instead=_NO_RETRIES)
        return self._perform(
            StepKind.WRITE,
            known,
            function,
            args,
            kwargs,
            effect=effect,
            reconcile=declaration.reconcile,
            arguments=functools.partial(arguments_of, args, kwargs),
        )

    def transaction(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Coroutine[Any, Any, T]:
        """Run `function(connection, *args, **kwargs)` exactly once, in one transaction with its own record.

        `connection` is a psycopg connection to agentrun's own PostgreSQL database, inside a transaction that commits
        together with the step. The function is a plain one and runs in a thread; what it raises rolls everything back
        and comes as StepFailed. For writes to other systems, `write` is the verb.

        Commit, rollback and close are not the function's to call: its step fails with BodyError then, and nothing is
        recorded as done.

        Raises BodyError for a coroutine function, and for a timeout: `SET LOCAL statement_timeout` is PostgreSQL's own.
        """
        self.wishes.without("ctx.transaction", "timeout", instead=_NO_TIMEOUT)
        known = described(function)
        if known.is_async:
            raise BodyError(
                f"`{known.name}` is a coroutine function, and ctx.transaction takes a plain one (it runs in a thread): "
                "write `def` in place of `async def`, and await other things in steps before it"
            )
        spec = StepSpec(
            key=key_for(self.wishes.key),
            kind=StepKind.TRANSACTION,
            name=self.wishes.name or known.name,
            # No fence has to stand before it: without its record it did not happen.
            effect=Effect.READ_ONLY,
            call=_unused,
            encode=known.encode,
            decode=known.decode,
            retries=self.wishes.retries,
        )

        def inside(connection: Any) -> Any:
            return function(connection, *args, **kwargs)

        return self._steps.transact(spec, inside)

    async def gather(
        self,
        *awaitables: Coroutine[Any, Any, T],
        limit: int | None = None,
        on_failure: Literal["wait_all", "fail_fast"] = "wait_all",
    ) -> list[T]:
        """Several branches side by side; their results in order.

        `limit` bounds how many run at once; a branch that waits keeps its place. With `wait_all`, all of them end
        before the first failure (in order) is raised; with `fail_fast`, the first failure ends the others' work.
        """
        try:
            self.wishes.without("ctx.gather", "key", "name", "retries", "timeout", instead=_NO_STEP)
        except BodyError:
            for awaitable in awaitables:
                awaitable.close()
            raise
        with leaving_what_waits([] if self._waits is None else self._waits.waiting_on):
            return await gathered(awaitables, limit=limit, fail_fast=on_failure == "fail_fast")

    def now(self) -> Coroutine[Any, Any, datetime]:
        """The time, recorded at the first pass: the same at every replay."""
        return self._perform(StepKind.STEP, described(_utc_now), _utc_now, (), {}, name="now")

    def _perform(
        self,
        kind: StepKind,
        known: Described,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        name: str | None = None,
        effect: Effect = Effect.READ_ONLY,
        reconcile: Callable[..., Any] | None = None,
        arguments: Callable[[], str] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        wishes = self.wishes
        called = function if known.is_async else functools.partial(in_thread, self._threads, function)
        spec = StepSpec(
            key=key_for(wishes.key),
            kind=kind,
            name=wishes.name or name or known.name,
            effect=effect,
            call=functools.partial(called, *args, **kwargs),
            encode=known.encode,
            decode=known.decode,
            arguments=arguments,
            retries=wishes.retries,
            timeout=wishes.timeout,
            reconcile=reconcile,
        )
        return self._steps.perform(spec)


_NO_RETRIES = (
    "a write is not tried again within its segment. Leave it out: the run's requeues repeat an idempotent write, and "
    "nothing repeats another by itself"
)
_NO_TIMEOUT = (
    "its function runs in a thread, which cannot be interrupted. Let PostgreSQL end it: "
    """`connection.execute("SET LOCAL statement_timeout = '20s'")` as the first thing inside the transaction"""
)
_NO_STEP = "it is no step. Give them to each of its branches: `ctx.gather(ctx.options(…).step(…), …)`"


async def _unused() -> None:
    """Replaced by the transaction itself."""


def _utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - recorded once as a step, decides nothing
