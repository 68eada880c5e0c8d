"""From exceptions to failure classes: pure, by type and by what the exception carries.

Nothing is imported from providers or drivers: types are recognised by their qualified names along the MRO, so that a
package that is not installed costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentrun.core.errors import Fatal, Retryable, StepFailed
from agentrun.core.words import FailureClass


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in a form that can be stored. `retry_after` is seconds, where the failing side named them."""

    failure_class: FailureClass
    error_type: str
    message: str
    step_key: str | None = None
    retry_after: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The value of the run's `error` column."""
        return {
            "class": str(self.failure_class),
            "type": self.error_type,
            "message": self.message,
            "step": self.step_key,
            "retry_after": self.retry_after,
        }


def describe(error: BaseException) -> Failure:
    """The failure that `error` stands for: its class, its type and message, and the step it came out of."""
    step = _step_of(error)
    if step is not None:
        return Failure(
            FailureClass(step.failure_class), step.error_type, step.message, step.key, retry_after=step.retry_after
        )
    return Failure(classify(error), qualified_name(type(error)), str(error), None, _retry_after(error))


def classify(error: BaseException) -> FailureClass:
    """The failure class of `error`; `unknown` where nothing is known about it."""
    match error:
        case StepFailed():
            return FailureClass(error.failure_class)
        case Retryable():
            return FailureClass.SERVER_ERROR
        case Fatal():
            return FailureClass.UNKNOWN
        case ConnectionError() | TimeoutError():
            return FailureClass.CONNECTION
        case _:
            return FailureClass.UNKNOWN


def qualified_name(of: type) -> str:
    """`ValueError`, `httpx.ReadTimeout`: builtins without their module."""
    return of.__qualname__ if of.__module__ == "builtins" else f"{of.__module__}.{of.__qualname__}"


def _step_of(error: BaseException) -> StepFailed | None:
    return next((link for link in _causes(error) if isinstance(link, StepFailed)), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _causes(member)
        return
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _retry_after(error: BaseException) -> float | None:
    if isinstance(error, Retryable) and error.after is not None:
        return error.after.total_seconds()
    return None
