"""What went wrong, as a value that can be stored, shown and decided on. Pure; imports no provider and no driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from agentrun.core.classifying import (
    DEEPEST_CHAIN,
    causes_of,
    classifies,
    classify,
    decisive_of,
    is_fallback,
    is_group,
    members_of,
    stands_for,
)
from agentrun.core.error_facts import qualified_name
from agentrun.core.errors import InvalidResult, Retryable, StepFailed
from agentrun.core.retry_after import wait_named_by
from agentrun.core.safe_text import safe_text
from agentrun.core.words import FailureClass

__all__ = [
    "WAIT_EXPIRED",
    "Failure",
    "classifies",
    "classify",
    "describe",
    "failed_steps_in",
    "qualified_name",
    "unfit_step_in",
]

WAIT_EXPIRED = "agentrun.WaitExpired"
"""The type of a stored error: nobody answered in time."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in a form that can be stored. `retry_after` is seconds, where the failing side named them.

    `step_key` is the failed step that the error came out of, `step_keys` all of them where several failed at once.
    """

    failure_class: FailureClass
    error_type: str
    message: str
    step_key: str | None = None
    retry_after: float | None = None
    step_keys: tuple[str, ...] = ()

    @property
    def failed_steps(self) -> list[str]:
        """The keys of all failed steps that the error came out of: the next attempt does them again."""
        return list(dict.fromkeys(key for key in (self.step_key, *self.step_keys) if key is not None))

    def as_json(self) -> dict[str, Any]:
        """The value of the run's `error` column."""
        return {
            "class": str(self.failure_class),
            "type": self.error_type,
            "message": self.message,
            "step": self.step_key,
            "retry_after": self.retry_after,
            **({"steps": list(self.step_keys)} if len(self.step_keys) > 1 else {}),
        }


def failed_steps_in(error: Mapping[str, Any] | None) -> list[str]:
    """The keys of the failed steps in a stored `error`."""
    told = error or {}
    return list(told.get("steps") or ([told["step"]] if told.get("step") else []))


def unfit_step_in(error: Mapping[str, Any] | None) -> str | None:
    """The key of the step whose recorded result did not fit its function, where that is what a stored `error` says."""
    told = error or {}
    return told.get("step") if told.get("type") == qualified_name(InvalidResult) else None


def describe(error: BaseException) -> Failure:
    """The failure that `error` stands for: its class, its type, a message that may be shown, the steps behind it.

    Of an error that came out of a step and says nothing more, type and message are the step's, the same at the first
    pass and at every replay. Which messages may be shown is `safe_text`'s rule. Never raises.
    """
    keys = tuple(dict.fromkeys(step.key for step in _steps_behind(error)))
    key = next((step.key for step in _steps_behind(decisive_of(error))), None) or next(iter(keys), None)
    kind, message = _named(error)
    return Failure(classify(error), kind, message, key, _retry_after(error), keys)


def _named(error: BaseException) -> tuple[str, str]:
    """The type and message to show."""
    if is_group(error):
        return qualified_name(type(error)), _of_several(error)
    step = _step_that_speaks(error)
    if step is not None:
        return step.error_type, step.message
    return qualified_name(type(error)), safe_text(error, classify(error))


def _of_several(group: BaseException) -> str:
    count = len(cast("BaseExceptionGroup[BaseException]", group).exceptions)
    which = "the last" if is_fallback(group) else "the gravest"
    text = ": ".join(part for part in _named(decisive_of(group)) if part)
    return f"{count} errors, {which}: {text}" if count > 1 else text


def _step_that_speaks(error: BaseException) -> StepFailed | None:
    """The step whose error this is, or that this error was raised from and adds nothing to."""
    if isinstance(error, StepFailed):
        return error
    step = next((link for link in causes_of(error) if isinstance(link, StepFailed)), None)
    if step is None or isinstance(error, Retryable):
        return None
    return step if stands_for(error) is step or step.error_type == qualified_name(type(error)) else None


def _steps_behind(error: BaseException) -> Iterator[StepFailed]:
    """The failed steps among the causes of an error and of all members of its groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        if isinstance(link, StepFailed):
            yield link
            continue
        waiting.append(link.__cause__)
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(reversed(cast("BaseExceptionGroup[BaseException]", link).exceptions))


def _retry_after(error: BaseException, depth: int = DEEPEST_CHAIN) -> float | None:
    """The wait that the error names, or the one that speaks for it; of several failures at once, the longest."""
    if depth == 0:
        return None
    if isinstance(error, StepFailed):
        return error.retry_after
    if is_group(error):
        waits = [_retry_after(member, depth - 1) for member in members_of(error)]
        return max((wait for wait in waits if wait is not None), default=None)
    named = wait_named_by(error)
    inner = error.__cause__ if isinstance(error, Retryable) else stands_for(error)
    return named if named is not None or inner is None else _retry_after(inner, depth - 1)
