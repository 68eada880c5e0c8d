"""The verbs with which a body starts runs of other kinds, and goes on as a fresh run of its own."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from agentrun.core.outcome import ContinueAsNew
from agentrun.core.words import StepKind, WaitKind
from agentrun.runtime.children import child_row, decoded_result, to_start
from agentrun.runtime.waits import Waits, WaitSpec, child_id
from agentrun.runtime.wishes import Wishing

_OF_CHILDREN = "`start_within=…` of the verb itself bounds its start, `timeout=…` of the child's kind all of it"


@dataclass(frozen=True, slots=True)
class Child:
    """A child that was started and not waited for yet."""

    run_id: UUID
    spec: WaitSpec
    _verbs: ChildVerbs

    def result(self) -> Coroutine[Any, Any, Any]:
        """Its result, once it has ended. Raises StepFailed where it has none."""
        return self._verbs.child_result(self.spec)


class ChildVerbs(Wishing):
    """Part of what Context can do. Positions are taken when a verb is called, as for steps."""

    waits: Waits
    _owner: str | None

    def child(
        self,
        kind: str,
        request: Any = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        tags: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        start_within: timedelta | float | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Start a run of another kind and wait for its result, typed where the kind is registered here.

        `queue`, `priority`, `tags`, `attributes` as at a producer; the owner is this run's. A child that nobody has
        started after `start_within` (seconds or a timedelta) fails; so does one of a kind that no live process has
        known for AGENTRUN_UNKNOWN_KIND_SECONDS. Raises StepFailed where the child fails or is cancelled; InvalidRequest
        before anything is stored.
        """
        spec = self._child_spec("child", kind, request, queue, priority, tags, attributes, start_within)
        return self.child_result(spec)

    async def spawn(
        self,
        kind: str,
        request: Any = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        tags: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        start_within: timedelta | float | None = None,
    ) -> Child:
        """Start a child and go on; `await child.result()` when it is needed, or never. Wishes as for `child`."""
        spec = self._child_spec("spawn", kind, request, queue, priority, tags, attributes, start_within)
        await self.waits.start(spec)
        return Child(child_id(self.waits.steps.lease.run_id, spec.key), spec, self)

    def continue_as_new(self, request: Any = None) -> None:
        """End this run and start a fresh one of its kind with a new request, atomically. Never returns."""
        self.wishes.without(
            "ctx.continue_as_new", "key", "name", "retries", "timeout", instead="it is no step: leave them out"
        )
        raise ContinueAsNew(request)

    def child_result(self, spec: WaitSpec) -> Coroutine[Any, Any, Any]:
        """The child's result, typed."""
        kinds, kind = self.waits.kinds, spec.name
        return self.waits.ask(spec, decoded=lambda text: decoded_result(kinds, kind, text))

    def _child_spec(
        self,
        verb: str,
        kind: str,
        request: Any,
        queue: str | None,
        priority: int,
        tags: Sequence[str],
        attributes: Mapping[str, Any] | None,
        start_within: timedelta | float | None,
    ) -> WaitSpec:
        key = self._key_alone(verb, instead=_OF_CHILDREN)
        settings, kinds = self.waits.settings, self.waits.kinds
        row = child_row(
            settings,
            kinds,
            kind,
            request,
            owner=self._owner,
            queue=queue,
            priority=priority,
            tags=tags,
            attributes=attributes or {},
        )
        born = row | {"child_id": child_id(self.waits.steps.lease.run_id, key)}
        start = to_start(settings, kinds, kind, start_within)
        return WaitSpec(key, StepKind.CHILD, WaitKind.CHILD, kind, child=born, **start)
