"""The verbs with which a body waits: sleep, signal, approval, input, webhook. All of them park."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import to_json

from agentrun.core.codec import decode
from agentrun.core.errors import BodyError
from agentrun.core.words import Effect, StepKind, WaitKind
from agentrun.runtime.checks import checked_flag, checked_name
from agentrun.runtime.childverbs import ChildVerbs
from agentrun.runtime.schemas import checked_default, checked_schema
from agentrun.runtime.stepspec import StepSpec
from agentrun.runtime.waits import WaitSpec, expiry

SHORTEST_PARK = 1.0
"""Seconds: a shorter sleep holds its worker, since giving the run up and back costs more."""

LONGEST_WAIT = 10**9
"""Seconds: some 30 years."""

FIRST_YEAR, LAST_YEAR = 2, 9990
"""In every time zone that a server may be set to, Python can read what is stored of them."""

_KEY_ONLY = "a sleep has a key and nothing else: leave it out"
_EXPIRES = "`expires=…` of the verb itself says how long it waits"
_UNSET = object()


@dataclass(frozen=True, slots=True)
class Decision:
    """How an approval was decided. True where it was given. `payload` is what was approved, edited or not."""

    approved: bool
    by: str | None = None
    comment: str | None = None
    payload: Any = None

    def __bool__(self) -> bool:
        return self.approved


@dataclass(frozen=True, slots=True)
class Webhook:
    """A wait that whoever holds `token` resolves, once. The token is safe to put into a URL; keep it secret."""

    token: str
    key: str
    _verbs: WaitingVerbs

    def wait(self) -> Coroutine[Any, Any, Any]:
        """The payload, once somebody sent one."""
        return self._verbs.waits.ask(self._verbs.webhook_spec(self.key, self.token))


class WaitingVerbs(ChildVerbs):
    """Mixed into Context. Positions are taken when a verb is called, as for steps."""

    def sleep(
        self,
        duration: timedelta | float | None = None,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> Coroutine[Any, Any, None]:
        """Go on after a while (seconds or a timedelta). The end is stored at the first pass and never moves.

        Holds no worker, however long; a sleep of up to a second does. A sleep never ends early.
        """
        span = duration if isinstance(duration, timedelta) else timedelta(seconds=duration or 0)
        total = _bounded((span + timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)).total_seconds())
        key = self._key_alone("sleep", instead=_KEY_ONLY)
        if total <= SHORTEST_PARK:
            return self._nap(key, total)
        return self.waits.ask(WaitSpec(key, StepKind.SLEEP, WaitKind.TIMER, "sleep", due_in=total))

    def sleep_until(self, when: datetime) -> Coroutine[Any, Any, None]:
        """Go on at an instant (with a time zone). Raises BodyError for one without, and outside the years 2 to 9990."""
        if when.tzinfo is None:
            raise BodyError("sleep_until needs a datetime with a time zone, for example datetime(..., tzinfo=UTC)")
        if not FIRST_YEAR <= when.year <= LAST_YEAR:
            raise BodyError(f"sleep_until takes instants of the years {FIRST_YEAR} to {LAST_YEAR}, not of {when.year}")
        key = self._key_alone("sleep_until", instead=_KEY_ONLY)
        return self.waits.ask(WaitSpec(key, StepKind.SLEEP, WaitKind.TIMER, "sleep", due_at=when))

    def signal(
        self, name: str, *, timeout: timedelta | float | None = None, default: Any = _UNSET
    ) -> Coroutine[Any, Any, Any]:
        """The next signal of that name, also one that came before anybody waited. Its payload is a JSON value.

        After `timeout` (seconds or a timedelta) WaitExpired is raised, or `default` is the answer where one is given.
        """
        policy = expiry("fail") if default is _UNSET else expiry("default", default=default)
        key = self._key_alone("signal", instead="`timeout=…` of the verb itself says how long it waits")
        return self.waits.ask(
            WaitSpec(key, StepKind.SIGNAL, WaitKind.SIGNAL, name, due_in=_seconds(timeout), on_expiry=policy)
        )

    def approval(
        self,
        question: str,
        *,
        payload: Any = None,
        role: str | None = None,
        editable: bool = False,
        four_eyes: bool = False,
        expires: timedelta | float | None = None,
        on_expiry: Literal["fail", "deny", "escalate"] = "deny",
        escalate_to: str | None = None,
        remind: timedelta | float | None = None,
    ) -> Coroutine[Any, Any, Decision]:
        """Wait until somebody decides. The decision is bound to a digest of question and payload, and single-use.

        `role` says who is asked. With `editable`, whoever approves may change the payload (both are recorded). With
        `four_eyes`, the run's owner cannot approve. After `expires`: denied, WaitExpired, or another role is asked.

        Raises InvalidRequest where one of the two is neither True nor False.
        """
        asks = {
            "question": question,
            "payload": _as_json(payload),
            "editable": checked_flag("editable", editable),
            "four_eyes": checked_flag("four_eyes", four_eyes),
        }
        spec = WaitSpec(
            self._key_alone("approval", instead=_EXPIRES),
            StepKind.APPROVAL,
            WaitKind.APPROVAL,
            question[:200],
            asks=asks,
            role=_role(role),
            due_in=_seconds(expires),
            remind_in=_seconds(remind),
            on_expiry=expiry(on_expiry, role=_role(escalate_to), seconds=_seconds(expires)),
        )
        return self._decided(spec)

    def input(
        self,
        question: str,
        *,
        schema: type[BaseModel] | Mapping[str, Any],
        role: str | None = None,
        expires: timedelta | float | None = None,
        on_expiry: Literal["fail", "default", "escalate"] = "fail",
        default: Any = None,
        escalate_to: str | None = None,
        remind: timedelta | float | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Wait for data of a schema: a pydantic model (the answer is one of it) or a JSON schema (a JSON value).

        Raises BodyError, before anything is stored, where the schema is none, refers to what it does not hold, or is
        not kept by `default` where that is to be the answer. The rest is as for `approval`.
        """
        model = schema if isinstance(schema, type) else None
        asked = checked_schema(schema.model_json_schema() if isinstance(schema, type) else schema)
        if on_expiry == "default":
            checked_default(_as_json(default), asked)
        spec = WaitSpec(
            self._key_alone("input", instead=_EXPIRES),
            StepKind.INPUT,
            WaitKind.INPUT,
            question[:200],
            asks={"question": question, "schema": asked},
            role=_role(role),
            due_in=_seconds(expires),
            remind_in=_seconds(remind),
            on_expiry=expiry(on_expiry, default=_as_json(default), role=_role(escalate_to), seconds=_seconds(expires)),
        )
        return self.waits.ask(spec, decoded=model.model_validate_json if model is not None else decode)

    async def webhook(self, *, expires: timedelta | float | None = None) -> Webhook:
        """A token for one answer from outside: put it into a URL, then `await hook.wait()`."""
        key = self._key_alone("webhook", instead=_EXPIRES)
        token = await self.waits.steps.perform(_token_step(f"{key[:190]}:token"))
        spec = self.webhook_spec(key, token, expires)
        await self.waits.start(spec)
        return Webhook(token, key, self)

    # ---- what the returned values call

    def webhook_spec(self, key: str, token: str, expires: timedelta | float | None = None) -> WaitSpec:
        """The wait that the token resolves."""
        return WaitSpec(
            key,
            StepKind.SIGNAL,
            WaitKind.SIGNAL,
            "webhook",
            due_in=_seconds(expires),
            on_expiry=expiry("fail"),
            token_digest=token_digest(token),
        )

    async def _decided(self, spec: WaitSpec) -> Decision:
        asked = spec.asks["payload"]
        said: dict[str, Any] = await self.waits.ask(spec)
        payload = said["edited"] if said.get("edited") is not None else asked
        return Decision(bool(said.get("approved")), said.get("by"), said.get("comment"), payload)

    async def _nap(self, key: str, seconds: float) -> None:
        async def nap() -> None:
            await asyncio.sleep(max(seconds, 0))

        await self.waits.steps.perform(
            StepSpec(key, StepKind.SLEEP, "sleep", Effect.READ_ONLY, call=nap, encode=_null, decode=decode)
        )


def token_digest(token: str) -> str:
    """What is stored of a token."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _token_step(key: str) -> StepSpec:
    async def make() -> str:
        return secrets.token_urlsafe(32)

    return StepSpec(key, StepKind.STEP, "token", Effect.READ_ONLY, call=make, encode=json.dumps, decode=json.loads)


def _null(_: object) -> str:
    return "null"


def _seconds(span: timedelta | float | None) -> float | None:
    return None if span is None else _bounded(span.total_seconds() if isinstance(span, timedelta) else span)


def _bounded(seconds: float) -> float:
    """Raises BodyError for what no clock can hold; less than nothing is at once."""
    if not -LONGEST_WAIT < seconds < LONGEST_WAIT:
        raise BodyError(f"a wait's times must be less than 30 years, in seconds or as a timedelta, not {seconds}")
    return seconds


def _role(role: str | None) -> str | None:
    """Raises InvalidRequest for what is no name: what cannot be stored would be noticed when time is up, by nobody."""
    return None if role is None else checked_name("role", role)


def _as_json(value: Any) -> Any:
    return json.loads(to_json(value))
