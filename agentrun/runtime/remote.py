"""The verbs whose work is done elsewhere: `remote` on another queue, `external` by any program. Both park the run.

The step's row is the truth: it is offered under the run's epoch, taken under an epoch of its own, and the statement
that ends it resolves the run's wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

from pydantic import TypeAdapter

from agentrun.core.codec import decode, digest, encode, within
from agentrun.core.errors import BodyError
from agentrun.core.failures import Failure
from agentrun.core.outcome import LeaseLost, Parked
from agentrun.core.policy import Backoff
from agentrun.core.wake import Wake
from agentrun.core.words import Effect, FailureClass, StepKind, StepStatus, WaitKind, WaitStatus
from agentrun.runtime.checks import checked_queue
from agentrun.runtime.current import idempotency_key
from agentrun.runtime.effects import as_effect
from agentrun.runtime.gathering import note_waiting
from agentrun.runtime.options import Retries, as_retries
from agentrun.runtime.remotesteps import remote_steps
from agentrun.runtime.stepspec import WriteUnknown, recorded_failure, same_step
from agentrun.runtime.waits import Waits, wait_id
from agentrun.runtime.wishes import Wishing
from agentrun.store.batches import Write
from agentrun.store.offering import OFFER

T = TypeVar("T")

LONGEST_PAUSE = 600.0
"""Seconds between two tries, where the body says how long the first pause is: the row keeps the time, not a process."""

_OF_ITS_OWN = "give the verb itself its `timeout=…` and `retries=…`; its first argument is its name"


@dataclass(frozen=True, slots=True)
class OfferSpec:
    """One step that a body has done elsewhere. `policy` is stored with it: its retries survive every process."""

    key: str
    kind: StepKind
    name: str
    effect: Effect
    input: str
    queue: str | None
    policy: Mapping[str, Any]
    decoded: Callable[[str], Any]


class _Tried(TypedDict, total=False):
    timeout: timedelta | float | None
    retries: Retries | int | None
    backoff: float | None
    redispatch_max: int | None


class RemoteOptions(_Tried, total=False):
    """What `remote` may be told beside its result's type, for type checkers: the method says what each means."""

    queue: str | None
    pickup_timeout: timedelta | float | None
    effect: Effect | str | None


class ExternalOptions(_Tried, total=False):
    """The same for `external`."""

    window: timedelta | float | None
    effect: Effect | str


class RemoteVerbs(Wishing):
    """Mixed into Context. Positions are taken when a verb is called, as for steps."""

    waits: Waits

    @overload
    def remote(
        self,
        name: str,
        input: Any = None,
        *,
        returns: type[T],
        **options: Unpack[RemoteOptions],
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def remote(
        self,
        name: str,
        input: Any = None,
        *,
        returns: Any = None,
        **options: Unpack[RemoteOptions],
    ) -> Coroutine[Any, Any, Any]: ...

    def remote(
        self,
        name: str,
        input: Any = None,  # noqa: A002 - the word of the API
        *,
        queue: str | None = None,
        timeout: timedelta | float | None = None,
        pickup_timeout: timedelta | float | None = None,
        retries: Retries | int | None = None,
        backoff: float | None = None,
        effect: Effect | str | None = None,
        redispatch_max: int | None = None,
        returns: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        """Have the remote step `name` done by a worker on `queue`, and wait for its result without holding one.

        `timeout` bounds a taken step's silence: seconds since it was taken or last called
        `current_step().heartbeat()`. `pickup_timeout` bounds its time in the queue. `retries` is how often it is
        tried, `backoff` the first pause in seconds (it doubles, up to ten minutes). A worker that dies costs no try:
        the step is offered again, at most `redispatch_max` times, where its effect permits; a non-idempotent write is
        not repeated and ends as any interrupted write. `effect` overrides what the step's function declares. `returns`
        is the result's type where this process has not registered the step.

        Raises StepFailed where it failed; its `error_type` says `remote_step_timeout` or `remote_step_lost` where
        nobody answered. Raises InvalidRequest for an input that does not fit and for what
        is no queue's name, before anything is stored.
        """
        step = remote_steps.get(name)
        said = as_effect(effect) if effect is not None else None
        policy = _policy(
            tried=as_retries(retries), backoff=backoff, timeout=timeout, pickup_timeout=pickup_timeout, effect=said,
            redispatch_max=redispatch_max,
        )  # fmt: skip
        declared = step.declares.effect if step is not None else Effect.NON_IDEMPOTENT_WRITE
        text = step.encode_input(input) if step is not None else encode(input, what=f"the input of `{name}`")
        known = step.result if step is not None else None
        settings = self.waits.settings
        spec = OfferSpec(
            key=self._key_alone("remote", instead=_OF_ITS_OWN),
            kind=StepKind.REMOTE,
            name=_named(name),
            effect=said or declared,
            input=self._within(text),
            queue=settings.queue_of(checked_queue(queue), step.queue if step is not None else None),
            policy=policy,
            decoded=_decoder(TypeAdapter(returns) if returns is not None else known),
        )
        return self._offered(spec)

    @overload
    def external(
        self,
        name: str,
        input: Any = None,
        *,
        returns: type[T],
        **options: Unpack[ExternalOptions],
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def external(
        self,
        name: str,
        input: Any = None,
        *,
        returns: Any = None,
        **options: Unpack[ExternalOptions],
    ) -> Coroutine[Any, Any, Any]: ...

    def external(
        self,
        name: str,
        input: Any = None,  # noqa: A002 - the word of the API
        *,
        window: timedelta | float | None = None,
        timeout: timedelta | float | None = None,
        retries: Retries | int | None = None,
        backoff: float | None = None,
        effect: Effect | str = Effect.NON_IDEMPOTENT_WRITE,
        redispatch_max: int | None = None,
        returns: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        """Have a step done by a program that is no worker of ours; it takes it from a listing and answers.

        Nobody can tell whether that program is dead or slow, so the step is offered again only where `window` says
        how long its silence may be (and its effect permits it). `timeout` fails it after that much silence. `retries`
        and `backoff` are for failures that the program calls retryable. Raises as `remote`.
        """
        policy = _policy(
            tried=as_retries(retries), backoff=backoff, timeout=timeout, pickup_timeout=None, effect=as_effect(effect),
            redispatch_max=redispatch_max,
        ) | {"window": _seconds(window)}  # fmt: skip
        spec = OfferSpec(
            key=self._key_alone("external", instead=_OF_ITS_OWN),
            kind=StepKind.EXTERNAL,
            name=_named(name),
            effect=as_effect(effect),
            input=self._within(encode(input, what=f"the input of `{name}`")),
            queue=None,
            policy=policy,
            decoded=_decoder(TypeAdapter(returns) if returns is not None else None),
        )
        return self._offered(spec)

    def _within(self, text: str) -> str:
        limit = self.waits.settings.max_request_bytes
        return within(text, limit, what="the step's input", setting="AGENTRUN_MAX_REQUEST_BYTES")

    async def _offered(self, spec: OfferSpec) -> Any:
        """The result: from the journal, or once somebody has given it. Raises Parked until then."""
        waits, steps = self.waits, self.waits.steps
        steps.lease.check()
        there = steps.recorded.get(spec.key)
        if there is not None:
            same_step(spec, there)
            if there["status"] == StepStatus.COMPLETED:
                return steps.recorded_result(spec, there, spec.decoded)
            if there["status"] == StepStatus.FAILED:
                steps.replayed += 1
                raise recorded_failure(spec, there)
        if there is None or there["status"] in (StepStatus.NOT_APPLIED, StepStatus.REDO):
            await _offer(waits, spec, tried=there["attempt"] if there is not None else 0)
        else:
            await _still_worked_on(waits, spec, there)
        note_waiting(waits.waiting_on, f"{spec.kind}:{spec.name}")
        raise Parked


async def _offer(waits: Waits, spec: OfferSpec, *, tried: int) -> None:
    """Offer it; one that is offered afresh gets its tries anew."""
    lease = waits.steps.lease
    asks = json.dumps({"step": spec.name})
    blank = dict.fromkeys(("role", "due_at", "due_in", "remind_in", "on_expiry", "token_digest"))
    params = blank | {
        "run_id": lease.run_id,
        "epoch": lease.epoch,
        "by": lease.owner,
        "key": spec.key,
        "step_kind": str(spec.kind),
        "kind": str(WaitKind.REMOTE),
        "name": spec.name,
        "effect": str(spec.effect),
        "args": spec.input,
        "args_digest": digest(spec.input),
        "idempotency_key": idempotency_key(lease.run_id, spec.key),
        "queue": spec.queue,
        "pickup": spec.policy["pickup_timeout"],
        "policy": json.dumps({**spec.policy, "attempts": spec.policy["attempts"] + tried}),
        "namespace": waits.settings.namespace,
        "wait_id": wait_id(lease.run_id, spec.key),
        "asks": asks,
        "asks_digest": digest(asks),
    }
    rows = await waits.steps.writer.write(Write(OFFER, params)) or await waits.reloaded(spec.key)
    if not rows:
        raise LeaseLost
    if spec.queue is not None:
        waits.wake(Wake(lease.run_id, spec.queue, spec.name, cause="offer", step_key=spec.key))


async def _still_worked_on(waits: Waits, spec: OfferSpec, there: Mapping[str, Any]) -> None:
    """Raises WriteUnknown where the step's taker is gone and nobody knows how its write ended."""
    row = await waits.known(spec.key)
    if row is None or row["status"] == WaitStatus.OPEN:
        return
    resolution: dict[str, Any] = decode(row["resolution"]) or {}
    if not resolution.get("interrupted"):
        return
    error: dict[str, Any] = decode(there["error"]) or {}
    said = error.get("message", "whoever worked on it is gone, and nobody knows whether it happened")
    failure = Failure(FailureClass.UNKNOWN, error.get("type", "remote_step_lost"), said, spec.key)
    waits.steps.broken = WriteUnknown(spec.key, spec.name, failure)
    raise waits.steps.broken


def _policy(
    *,
    tried: Retries,
    backoff: float | None,
    timeout: timedelta | float | None,
    pickup_timeout: timedelta | float | None,
    effect: Effect | None,
    redispatch_max: int | None,
) -> dict[str, Any]:
    pauses = tried.backoff if backoff is None else Backoff(backoff, LONGEST_PAUSE)
    return {
        "attempts": tried.attempts,
        "backoff_base": pauses.base,
        "backoff_cap": pauses.cap,
        "timeout": _seconds(timeout),
        "pickup_timeout": _seconds(pickup_timeout),
        "effect": str(effect) if effect is not None else None,
        "redispatch_max": redispatch_max,
    }


def _decoder(adapter: TypeAdapter[Any] | None) -> Callable[[str], Any]:
    return decode if adapter is None else adapter.validate_json


def _named(name: str) -> str:
    if not name or len(name) > 200:
        raise BodyError(f"a step's name must be 1 to 200 characters, not {name!r}")
    return name


def _seconds(span: timedelta | float | None) -> float | None:
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds is not None and not 0 < seconds < 10**9:
        raise BodyError(f"a step's times must be more than 0 seconds and less than 30 years, not {seconds}")
    return seconds
