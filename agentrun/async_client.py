"""The producer's face on an event loop: `AsyncClient`, whose verbs are those of Client."""

from __future__ import annotations

import asyncio
import copy
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, ParamSpec, TypeVar, Unpack
from uuid import UUID

from agentrun.broker.waiting import wait_for_end_async
from agentrun.client import Client
from agentrun.clients.base import RunId, as_uuid
from agentrun.clients.options import (
    AnswerOptions,
    ApproveOptions,
    ClientOptions,
    EnqueueManyOptions,
    EnqueueOptions,
    ExternalStepsOptions,
    FailStepOptions,
    InboxOptions,
    ListOptions,
    PurgeOptions,
    RejectOptions,
    ResolveOptions,
    RunOptions,
)
from agentrun.clients.reading import result_of
from agentrun.core.actors import Actor
from agentrun.core.errors import AgentrunError, NotAllowed
from agentrun.core.records import Event, Purged, Redispatched, Run, Step, TakenStep
from agentrun.runtime.commands import Wishes
from agentrun.runtime.filters import checked_wait
from agentrun.runtime.sending import MOST_TOGETHER, Signal
from agentrun.runtime.together import Together
from agentrun.store.borrowed import enqueue_in_async

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient:
    """The verbs of Client as coroutines, on any event loop: its calls run in a few threads of their own.

    After `aclose` every verb raises NotAllowed, but for `drain`: nothing is left to be handed back. A client and its
    views (`acting`) are closed together.
    """

    def __init__(self, **options: Unpack[ClientOptions]) -> None:
        self._client = Client(**options)
        self._threads = ThreadPoolExecutor(self._client.settings.max_connections, thread_name_prefix="agentrun client")
        self._closed = threading.Event()
        self._signals = Together[Signal, Run](self._client.answers.send, self._threads, most=MOST_TOGETHER)

    def acting(self, actor: Actor) -> AsyncClient:
        """As Client.acting: no coroutine, for it asks nobody."""
        self._refuse_closed()
        view = copy.copy(self)
        view._client = self._client.acting(actor)  # noqa: SLF001 - its own, of another one
        return view

    async def enqueue(
        self,
        kind: str,
        request: Any = None,
        *,
        idempotency_key: str | None = None,
        connection: Any = None,
        **wishes: Unpack[EnqueueOptions],
    ) -> UUID:
        """As Client.enqueue; `connection` may be an asynchronous SQLAlchemy or psycopg connection."""
        if connection is None:
            verb = functools.partial(self._client.enqueue, kind, request, idempotency_key=idempotency_key)
            return await self._call(verb, **wishes)
        commands, relay = self._client.commands, self._client.relay
        params = await self._call(commands.prepare, kind, request, Wishes(**wishes), idempotency_key)
        announcing = await self._call(relay.announcing, commands.wake_of(params))
        taken = await enqueue_in_async(connection, params, announcing)
        return params["run_id"] if taken is None else commands.same_as_before(params, taken)

    async def enqueue_many(
        self, kind: str, requests: Sequence[Any], **wishes: Unpack[EnqueueManyOptions]
    ) -> list[UUID]:
        """As Client.enqueue_many."""
        return await self._call(self._client.enqueue_many, kind, requests, **wishes)

    async def run(self, kind: str | Callable[..., Any], request: Any = None, **wishes: Unpack[RunOptions]) -> Any:
        """As Client.run."""
        return await self._call(self._client.run, kind, request, **wishes)

    async def status(self, run_id: RunId) -> Run:
        """As Client.status."""
        return await self._call(self._client.status, run_id)

    async def list(self, **filters: Unpack[ListOptions]) -> list[Run]:
        """As Client.list."""
        return await self._call(self._client.list, **filters)

    async def events(self, run_id: RunId, *, after: int = -1, limit: int = 1000) -> Sequence[Event]:
        """As Client.events."""
        return await self._call(self._client.events, run_id, after=after, limit=limit)

    async def steps(self, run_id: RunId) -> Sequence[Step]:
        """As Client.steps."""
        return await self._call(self._client.steps, run_id)

    async def wait(self, run_id: RunId, *, timeout: float | timedelta | None = None) -> Run:  # noqa: ASYNC109
        """As Client.wait; holds no thread while it waits."""
        return await wait_for_end_async(self._client.hints, self.status, as_uuid(run_id), checked_wait(timeout))

    async def result(self, run_id: RunId, *, timeout: float | timedelta | None = None) -> Any:  # noqa: ASYNC109
        """As Client.result."""
        return result_of(await self.wait(run_id, timeout=timeout))

    async def cancel(self, run_id: RunId, *, by: Actor | str = "client") -> Run:
        """As Client.cancel."""
        return await self._call(self._client.cancel, run_id, by=by)

    async def redrive(self, run_id: RunId, *, by: Actor | str = "client") -> Run:
        """As Client.redrive."""
        return await self._call(self._client.redrive, run_id, by=by)

    async def redrivable(
        self, *, kind: str | None = None, reason: str | None = None, limit: int = 1000
    ) -> Sequence[UUID]:
        """As Client.redrivable."""
        return await self._call(self._client.redrivable, kind=kind, reason=reason, limit=limit)

    async def inbox(self, **filters: Unpack[InboxOptions]) -> Sequence[Mapping[str, Any]]:
        """As Client.inbox."""
        return await self._call(functools.partial(self._client.inbox, **filters))

    async def approve(self, run_id: RunId, *, by: Actor | str, **decision: Unpack[ApproveOptions]) -> Run:
        """As Client.approve."""
        return await self._call(functools.partial(self._client.approve, run_id, by=by, **decision))

    async def reject(self, run_id: RunId, *, by: Actor | str, **decision: Unpack[RejectOptions]) -> Run:
        """As Client.reject."""
        return await self._call(functools.partial(self._client.reject, run_id, by=by, **decision))

    async def submit_input(self, run_id: RunId, data: Any, *, by: Actor | str, **answer: Unpack[AnswerOptions]) -> Run:
        """As Client.submit_input."""
        return await self._call(functools.partial(self._client.submit_input, run_id, data, by=by, **answer))

    async def signal(
        self,
        run_id: RunId,
        name: str,
        payload: Any = None,
        *,
        by: Actor | str = "client",
        expires: float | timedelta | None = None,
    ) -> Run:
        """As Client.signal. Of many at once, those that come while others are sent go together, in one transaction."""
        answers = self._client.answers
        check = functools.partial(answers.checked_signal, as_uuid(run_id), name, payload, by=by, expires=expires)
        # An actor's rights are read first, in a thread; a plain name has none to be read.
        signal = check() if isinstance(by, str) and self._client.commands.actor is None else await self._call(check)
        # Checked before it is handed over: one that nobody sends now would go with those that are still under way.
        self._refuse_closed()
        return await asyncio.wrap_future(self._signals.submit(signal))

    async def signal_many(
        self,
        run_ids: Sequence[RunId],
        name: str,
        payload: Any = None,
        *,
        payloads: Sequence[Any] | None = None,
        by: Actor | str = "client",
        expires: float | timedelta | None = None,
    ) -> list[Run | AgentrunError]:
        """As Client.signal_many."""
        verb = functools.partial(self._client.signal_many, run_ids, name, payload, payloads=payloads)
        return await self._call(verb, by=by, expires=expires)

    async def waits(self, run_id: RunId) -> Sequence[Mapping[str, Any]]:
        """As Client.waits."""
        return await self._call(self._client.waits, run_id)

    async def signals(self, run_id: RunId | None = None, *, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """As Client.signals."""
        return await self._call(self._client.signals, run_id, limit=limit)

    async def webhook(self, token: str, payload: Any = None) -> Run:
        """As Client.webhook."""
        return await self._call(self._client.webhook, token, payload)

    async def resume(self, run_id: RunId) -> Run:
        """As Client.resume."""
        return await self._call(self._client.resume, run_id)

    async def redispatch(self, run_id: RunId, *, by: Actor | str = "client") -> Redispatched:
        """As Client.redispatch."""
        return await self._call(self._client.redispatch, run_id, by=by)

    async def external_steps(self, **filters: Unpack[ExternalStepsOptions]) -> Sequence[Mapping[str, Any]]:
        """As Client.external_steps."""
        return await self._call(self._client.external_steps, **filters)

    async def take_step(self, run_id: RunId, key: str | None = None, *, by: Actor | str) -> TakenStep:
        """As Client.take_step."""
        return await self._call(self._client.take_step, run_id, key, by=by)

    async def complete_step(self, token: str, result: Any = None) -> None:
        """As Client.complete_step."""
        return await self._call(self._client.complete_step, token, result)

    async def fail_step(self, token: str, message: str, **options: Unpack[FailStepOptions]) -> str:
        """As Client.fail_step."""
        return await self._call(functools.partial(self._client.fail_step, token, message, **options))

    async def heartbeat_step(self, token: str, progress: Any = None) -> bool:
        """As Client.heartbeat_step."""
        return await self._call(self._client.heartbeat_step, token, progress)

    async def resolve(self, run_id: RunId, *, applied: bool, **answer: Unpack[ResolveOptions]) -> Run:
        """As Client.resolve."""
        return await self._call(functools.partial(self._client.resolve, run_id, applied=applied, **answer))

    async def purge(self, *, older_than: float | timedelta, **wishes: Unpack[PurgeOptions]) -> Purged:
        """As Client.purge; `told` is called in a thread."""
        return await self._call(functools.partial(self._client.purge, older_than=older_than, **wishes))

    async def set_budget(
        self,
        owner: str,
        *,
        period: Literal["day", "month"],
        max_tokens: int | None = None,
        max_cost: Decimal | None = None,
    ) -> None:
        """As Client.set_budget."""
        verb = self._client.set_budget
        return await self._call(verb, owner, period=period, max_tokens=max_tokens, max_cost=max_cost)

    async def budgets(self, owner: str | None = None) -> Sequence[Mapping[str, Any]]:
        """As Client.budgets."""
        return await self._call(self._client.budgets, owner)

    async def drain(self, *, within: float | None = None) -> bool:
        """As Client.drain."""
        return await asyncio.get_running_loop().run_in_executor(None, lambda: self._client.drain(within=within))

    async def aclose(self) -> None:
        """As Client.close. Calls under way go on to their end; a wait ends at once."""
        loop, held = asyncio.get_running_loop(), self._client.held
        await loop.run_in_executor(None, self._client.drain)
        self._closed.set()
        held.hints.closing.tell()
        # Not the client's own `close`: that would refuse the calls that were asked for and have no thread yet.
        await loop.run_in_executor(None, held.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        self._refuse_closed()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _call(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._refuse_closed()
        call = functools.partial(verb, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise NotAllowed("this AsyncClient is closed; make another one, and close it after its last call")
