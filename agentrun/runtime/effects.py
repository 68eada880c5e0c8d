"""Effects of functions and tools: what repeating them would do, how to ask how a write ended, who has to approve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrun.core.errors import ConfigurationError
from agentrun.core.words import Effect
from agentrun.runtime.checks import shown
from agentrun.runtime.signatures import checked_reconcile

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__agentrun_effect__"


@dataclass(frozen=True, slots=True)
class Declared:
    """What a function says of itself. `reconcile(idempotency_key)` asks outside whether the write landed."""

    effect: Effect
    reconcile: Callable[..., Any] | None = None
    approval: bool | Callable[..., bool] = False


UNDECLARED = Declared(Effect.NON_IDEMPOTENT_WRITE)
"""A tool that says nothing is taken for the worst (ADR-111)."""


def effect(
    effect: Effect | str,
    *,
    reconcile: Callable[..., Any] | None = None,
    approval: bool | Callable[..., bool] = False,
) -> Callable[[F], F]:
    """Declare what a function or tool does outside; the function itself stays as it is.

    `reconcile(idempotency_key)` is asked about an interrupted write: it returns `Applied(result)` or `NOT_APPLIED`,
    and then the write is settled without a person. `approval` makes a tool of an agent wait for a decision, always or
    by a rule on its arguments. Raises ConfigurationError for what is no effect, a `reconcile` that cannot be called,
    and an `approval` that is neither true, false nor a rule.
    """
    said = declared_effect("an effect", effect)
    checked_reconcile("an effect", reconcile)
    if not isinstance(approval, bool) and not callable(approval):
        raise ConfigurationError(
            f"`approval` of an effect must be True, False or a function of the tool's arguments, not {shown(approval)}"
        )

    def declare(function: F) -> F:
        setattr(function, _ATTRIBUTE, Declared(said, reconcile, approval))
        return function

    return declare


def as_effect(said: Effect | str) -> Effect:
    """An effect, or its word. Raises ValueError with the words that there are."""
    try:
        return Effect(said)
    except ValueError:
        raise ValueError(f"{said!r} is no effect; it is one of {', '.join(Effect)}") from None


def declared_effect(of: str, said: Effect | str) -> Effect:
    """As `as_effect`, of what is registered. Raises ConfigurationError."""
    try:
        return as_effect(said)
    except ValueError as error:
        raise ConfigurationError(f"{of} cannot be declared: {error}") from None


def declared(function: Callable[..., Any]) -> Declared | None:
    """What `function` declares, or None."""
    return getattr(function, _ATTRIBUTE, None)


@dataclass(frozen=True, slots=True)
class Applied:
    """A reconcile function's answer: the write landed, and this was its result."""

    result: Any = None


class NotAppliedYet:
    """The type of NOT_APPLIED."""

    def __repr__(self) -> str:
        return "NOT_APPLIED"


NOT_APPLIED = NotAppliedYet()
"""A reconcile function's answer: nothing happened, the write may start afresh."""
