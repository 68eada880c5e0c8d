"""Remote steps: functions registered under a name, which workers on any queue execute for whatever run asks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agentrun.core.codec import adapter_of, checked_result, encode, explain
from agentrun.core.errors import ConfigurationError, InvalidRequest, UnknownKind
from agentrun.core.words import Effect
from agentrun.runtime.checks import checked_queue
from agentrun.runtime.effects import UNDECLARED, Declared, declared, declared_effect
from agentrun.runtime.kinds import plain_request, spread_request, taken, unknown
from agentrun.runtime.signatures import all_named, checked_reconcile, registered_name, signature_of

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RemoteStep:
    """A registered function. `spread` ones take the input's members as arguments, the others the input itself."""

    name: str
    function: Callable[..., Any]
    declares: Declared
    queue: str | None
    input: TypeAdapter[Any]
    result: TypeAdapter[Any]
    takes: tuple[str, ...]
    spread: bool

    def encode_input(self, value: Any) -> str:
        """JSON text of an input. Raises InvalidRequest where it does not fit the function's types."""
        text = encode(value, what=f"the input of remote step `{self.name}`")
        self._decoded(text)
        return text

    def encode_result(self, value: Any) -> str:
        """JSON text of what the function returned. Raises InvalidResult where that is not what it promised."""
        return checked_result(self.result, value, of=f"remote step `{self.name}`")

    def bound(self, text: str) -> Callable[[], Any]:
        """The function with its input: a call gives a coroutine for `async def`, the result itself for `def`.

        Raises InvalidRequest where the input does not fit; nothing was called then.
        """
        value = self._decoded(text)
        if self.spread:
            return functools.partial(self.function, **{name: getattr(value, name) for name in self.takes})
        return functools.partial(self.function, value) if self.takes else self.function

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function: it runs on the loop, others get a thread."""
        return inspect.iscoroutinefunction(self.function)

    def _decoded(self, text: str) -> Any:
        try:
            return self.input.validate_json(text)
        except ValidationError as error:
            raise InvalidRequest(
                f"the input does not fit remote step `{self.name}`: {explain(error)}; the function takes "
                f"{taken(self.takes, spread=self.spread)}"
            ) from None


class RemoteSteps:
    """The remote steps of one process."""

    def __init__(self) -> None:
        self._steps: dict[str, RemoteStep] = {}

    def add(self, step: RemoteStep) -> None:
        """Register. Raises ConfigurationError where another function has the name."""
        there = self._steps.get(step.name)
        if there is not None and _source(there.function) != _source(step.function):
            raise ConfigurationError(
                f"remote step `{step.name}` is registered twice: by {_source(there.function)} and "
                f"{_source(step.function)}"
            )
        self._steps[step.name] = step

    def get(self, name: str) -> RemoteStep | None:
        """The step, or None where this process does not know it."""
        return self._steps.get(name)

    def require(self, name: str) -> RemoteStep:
        """The step. Raises UnknownKind, with the near miss."""
        step = self._steps.get(name)
        if step is None:
            raise UnknownKind(unknown(name, self.names(), what="remote step", here=True))
        return step

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted."""
        return tuple(sorted(self._steps))

    def undeclared(self) -> tuple[str, ...]:
        """Steps that say nothing of their effect, and are taken for non-idempotent writes."""
        return tuple(name for name in self.names() if self._steps[name].declares is UNDECLARED)

    def reconcilable(self) -> tuple[str, ...]:
        """Steps whose interrupted writes can be asked about."""
        return tuple(name for name in self.names() if self._steps[name].declares.reconcile is not None)

    def effects(self) -> dict[str, str]:
        """What each step's function declares."""
        return {name: str(step.declares.effect) for name, step in self._steps.items()}

    def snapshot(self) -> Mapping[str, RemoteStep]:
        """The steps as they are now, for `restore`."""
        return dict(self._steps)

    def restore(self, steps: Mapping[str, RemoteStep]) -> None:
        """Forget what was registered since."""
        self._steps = dict(steps)


remote_steps = RemoteSteps()
"""This process's remote steps."""


def remote_step(
    name: str,
    *,
    effect: Effect | str | None = None,
    reconcile: Callable[..., Any] | None = None,
    queue: str | None = None,
) -> Callable[[F], F]:
    """Register a function as the remote step `name`; the function itself stays as it is.

    With one parameter, that is the input; with several, the input is an object of their names. `effect` is what
    repeating it would do: without it (and without `@effect` on the function) it is taken for a non-idempotent write,
    which is never repeated. `reconcile(idempotency_key)` is asked about an interrupted write, in place of the
    function's own. `queue` is where bodies offer it that name none.

    Raises ConfigurationError where the signature, the effect, the queue or `reconcile` cannot be used or the name is
    taken.
    """
    of = f"remote step `{registered_name('remote step', 'remote_step', name)}`"
    said = declared_effect(of, effect) if effect is not None else None
    asked = checked_reconcile(of, reconcile)

    def register(function: F) -> F:
        own = declared(function) or UNDECLARED
        if asked is not None:
            own = replace(own, reconcile=asked)
        declares = own if said is None else Declared(said, asked)
        remote_steps.add(_step_of(name, function, declares, queue))
        return function

    return register


def _step_of(
    name: str,
    function: Callable[..., Any],
    declares: Declared,
    queue: str | None,
) -> RemoteStep:
    of = f"remote step `{name}`"
    parameters, hints = signature_of(of, function)
    takes = all_named(of, function, parameters)
    result = hints.get("return", Any)
    spread = len(takes) > 1
    return RemoteStep(
        name=name,
        function=function,
        declares=declares,
        queue=_queue_of(name, queue),
        input=spread_request(name, takes, hints) if spread else plain_request(takes, hints),
        result=adapter_of(type(None) if result is None else result),
        takes=tuple(parameter.name for parameter in takes),
        spread=spread,
    )


def _queue_of(name: str, queue: str | None) -> str | None:
    try:
        return checked_queue(queue)
    except InvalidRequest as error:
        raise ConfigurationError(f"remote step `{name}`: {error}") from None


def _source(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
