"""The failure class of an error: by what agentrun raised or was told, by what users added, by what is known of others.

Pure but for the users' own entries, which hold for this process. It decides nothing about retries: that is `policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast, overload

from agentrun.core.error_facts import inner_of, name_of, package_of
from agentrun.core.errors import AgentrunError, ConfigurationError, Fatal, Retryable, StepFailed
from agentrun.core.known_errors import Known, Wraps, known
from agentrun.core.words import FailureClass

E = TypeVar("E", bound=Exception)

DEEPEST_CHAIN = 50
"""Links of wrappers and groups that are followed; beyond them nothing is known."""

GRAVITY = (
    FailureClass.CONFIGURATION,
    FailureClass.AUTH,
    FailureClass.CLIENT_ERROR,
    FailureClass.UNKNOWN,
    FailureClass.CIRCUIT_OPEN,
    FailureClass.RATE_LIMIT,
    FailureClass.SERVER_ERROR,
    FailureClass.CONNECTION,
)
"""Which of several failures decides: one that is not retryable before all others."""


def classify(error: BaseException) -> FailureClass:
    """The failure class of `error`; `unknown` where nothing is known about it. Never raises.

    What agentrun itself raises (StepFailed, Retryable, Fatal) has its class. A group has that of its gravest member, a
    chain of fallbacks that of its last attempt. For the rest the most special type decides that either the user or
    agentrun knows, of one type the user's entry. An error of which nobody knows anything has the class of agentrun's
    own error that it was raised from, if any.
    """
    return _said(error, DEEPEST_CHAIN) or FailureClass.UNKNOWN


_registered: dict[type[BaseException], FailureClass] = {}


@overload
def classifies(error_type: type[E], failure_class: FailureClass | str) -> type[E]: ...


@overload
def classifies(error_type: FailureClass | str) -> Callable[[type[E]], type[E]]: ...


def classifies(error_type: Any, failure_class: Any = None) -> Any:
    """From now on, in this process, `error_type` and what derives from it has this failure class.

    `classifies(SomeError, FailureClass.RATE_LIMIT)`, or `@classifies(FailureClass.RATE_LIMIT)` above your own class.
    The most special type wins, and over agentrun's own knowledge of the same type yours; the last call for one type
    holds. Raises TypeError where that is no exception type or one of agentrun's (their class is fixed), ValueError
    where there is no such failure class.
    """
    if failure_class is not None:
        return _register(error_type, _class_named(failure_class))
    chosen = _class_named(error_type)

    def decorate(decorated: type[Any]) -> type[Any]:
        return _register(decorated, chosen)

    return decorate


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """The members of a group that matter: all of them; of a chain of fallbacks only the last attempt."""
    members = cast("BaseExceptionGroup[BaseException]", error).exceptions if is_group(error) else ()
    return members[-1:] if is_fallback(error) else members


def decisive_of(error: BaseException) -> BaseException:
    """The one error that decides: of a group the gravest member, else the error itself."""
    while members := members_of(error):
        error = min(members, key=lambda member: GRAVITY.index(classify(member)))
    return error


def is_group(error: BaseException) -> bool:
    """Whether the error is several."""
    return isinstance(error, BaseExceptionGroup)


def is_fallback(error: BaseException) -> bool:
    """Whether the error is a chain of models that were tried one after the other."""
    return any(name_of(of) == "pydantic_ai.FallbackExceptionGroup" for of in type(error).__mro__)


def stands_for(error: BaseException) -> BaseException | None:
    """The error that speaks in place of this one: what a known wrapper wraps, or agentrun's own error behind it."""
    found = known(error)
    if found is not None:
        return inner_of(error) if isinstance(found.verdict, Wraps) else None
    if _registered_type(error) is not None:
        return None
    return next((link for link in causes_of(error) if isinstance(link, StepFailed | Retryable | Fatal)), None)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """What the error was explicitly raised from, and so on; a circle is walked once."""
    seen = {id(error)}
    link = error.__cause__
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _class_named(name: Any) -> FailureClass:
    try:
        return FailureClass(name)
    except ValueError:
        raise ValueError(f"{name!r} is no failure class; take one of {', '.join(FailureClass)}") from None


def _register(error_type: Any, failure_class: FailureClass) -> Any:
    if not (isinstance(error_type, type) and issubclass(error_type, Exception)):
        raise TypeError(f"{error_type!r} is no exception type; pass a class derived from Exception")
    if issubclass(error_type, AgentrunError):
        raise TypeError(f"`{error_type.__name__}` is agentrun's and has its class; derive your error from Exception")
    _registered[error_type] = failure_class
    return error_type


# ---- None where an error says nothing, so that another one may speak instead


def _said(error: BaseException, depth: int) -> FailureClass | None:
    if depth == 0:
        return None
    match error:
        case StepFailed():
            return FailureClass(error.failure_class)
        case Retryable():
            cause = _said_by_cause(error, depth)
            return cause if cause is not None and cause.retryable else FailureClass.SERVER_ERROR
        case Fatal():
            cause = _said_by_cause(error, depth)
            return FailureClass.UNKNOWN if cause is None or cause.retryable else cause
        case ConfigurationError():
            return FailureClass.CONFIGURATION
        case BaseExceptionGroup():
            said = [_said(member, depth - 1) or FailureClass.UNKNOWN for member in members_of(error)]
            return min(said, key=GRAVITY.index, default=FailureClass.UNKNOWN)
        case _:
            return _said_by_type(error, depth)


def _said_by_cause(error: BaseException, depth: int) -> FailureClass | None:
    return _said(error.__cause__, depth - 1) if error.__cause__ is not None else None


def _said_by_type(error: BaseException, depth: int) -> FailureClass | None:
    found, chosen = known(error), _registered_type(error)
    if chosen is not None and (found is None or not _is_more_special(found, chosen)):
        return _registered[chosen]
    if found is not None and not isinstance(found.verdict, Wraps):
        return found.verdict
    speaker = stands_for(error)
    said = _said(speaker, depth - 1) if speaker is not None else None
    return said or (found.verdict.otherwise if found is not None and isinstance(found.verdict, Wraps) else None)


def _registered_type(error: BaseException) -> type[BaseException] | None:
    return next((of for of in type(error).__mro__ if of in _registered), None)


def _is_more_special(found: Known, chosen: type[BaseException]) -> bool:
    """Whether agentrun knows more than the user's entry says. A status is more than a builtin base."""
    if found.owner is None:
        return package_of(chosen) == "builtins"
    return found.owner is not chosen and issubclass(found.owner, chosen)
