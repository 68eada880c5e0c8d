"""What a step is: the specification that a body asks with, and how its ends are stored and read back."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol
from uuid import UUID

from agentrun.core.codec import decode, misfit, read_back, unwritable
from agentrun.core.errors import InvalidRequest, InvalidResult, NonDeterminism, StepFailed
from agentrun.core.failures import Failure, qualified_name
from agentrun.core.words import Effect, FailureClass, StepKind, StepStatus
from agentrun.runtime.options import ONCE, Retries

LONGEST_MESSAGE = 2_000
"""Characters of an error's message that are kept."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a model call used, as recorded on its step and its run. Cost is in US dollars, as text."""

    model: str
    input_tokens: int
    output_tokens: int
    cost: str | None = None


@dataclass(slots=True)
class StepSpec:
    """One step that a body asks for. `arguments` gives JSON text and is only asked for writes.

    Nothing changes it; to have it frozen would take three times as long to make.
    """

    key: str
    kind: StepKind
    name: str
    effect: Effect
    call: Callable[[], Awaitable[Any]]
    encode: Callable[[Any], str]
    decode: Callable[[str], Any]
    arguments: Callable[[], str] | None = None
    retries: Retries = ONCE
    timeout: float | None = None
    reconcile: Callable[..., Any] | None = None
    spent: Callable[[Any], Spent | None] | None = None
    """What the value says was used: of model requests. A write uses nothing of the kind, and is not asked."""

    passes: tuple[type[Exception], ...] = ()
    """Exceptions that are control flow of the body's own framework: they pass through and are not recorded."""

    recorded_by_call: bool = False
    """The call records its own success, in its own transaction."""


class Named(Protocol):
    """What tells one step from another: steps and waits alike."""

    @property
    def key(self) -> str: ...

    @property
    def kind(self) -> StepKind: ...

    @property
    def name(self) -> str: ...


class Performs(Protocol):
    """What a context asks for steps. The only implementation that lets a write through is `Steps`, under a lease."""

    async def perform(self, spec: StepSpec) -> Any: ...

    async def transact(self, spec: StepSpec, function: Callable[..., Any]) -> Any: ...


class WriteUnknown(BaseException):
    """A non-idempotent write raised without saying that nothing happened: the run stops as it would at a crash.

    Derives from BaseException: a body that went on after it could do the write again by another name.
    """

    def __init__(self, key: str, name: str, failure: Failure) -> None:
        super().__init__(f"write `{name}` ({key}) raised {failure.error_type}; nobody knows whether it happened")
        self.key, self.name = key, name
        self.failure = replace(failure, step_key=key)


async def in_thread(executor: Executor, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A plain function in a thread, with the caller's context variables."""
    context = contextvars.copy_context()
    bound = functools.partial(context.run, call, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(executor, bound)


def detached(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that is no branch of the body: a replay does not start it, so it must not be counted.

    The loop's own factory counts. What the step calls has no branch anyhow (see `Journaling._inside`).
    """
    return asyncio.Task(coroutine, loop=asyncio.get_running_loop())


def same_step(spec: Named, there: Mapping[str, Any]) -> None:
    """Raises NonDeterminism where another step is recorded under the key."""
    if (there["kind"], there["name"]) != (str(spec.kind), spec.name):
        raise NonDeterminism(spec.key, f"{there['kind']} `{there['name']}`", f"{spec.kind} `{spec.name}`")


def recorded_failure(spec: Named, there: Mapping[str, Any]) -> StepFailed:
    """The error that the step raised when it was executed."""
    error: dict[str, Any] = decode(there["error"]) or {}
    failed = StepFailed(
        spec.key, spec.name, error.get("type", "?"), error.get("message", ""), error.get("class", "unknown")
    )
    failed.retry_after = error.get("retry_after")
    return failed


def unfit(spec: Named, error: Exception, run_id: UUID) -> StepFailed:
    """What ends the run where the recorded result is none that the step's function returns, without the value.

    Where an operator gave it, the operator can give another one.
    """
    told = (
        f"step `{spec.name}` ({spec.key}) is recorded with a result that its function's annotation does not allow: "
        f"{misfit(error)}; where `resolve` recorded it, say another: `agentrun resolve {run_id} --key '{spec.key}' "
        f"--applied --result JSON`; else change the annotation back, then `agentrun redrive {run_id}`"
    )
    return StepFailed(spec.key, spec.name, qualified_name(InvalidResult), told, str(FailureClass.UNKNOWN))


def ended(status: StepStatus, result: str | None, error: Failure | None) -> dict[str, Any]:
    """The parameters of a step's end, as the journal's statements name them."""
    return {"status": str(status), "result": result, "error": error and _told(error)}


def ended_with(status: StepStatus, result: str | None, error: Failure | None, spent: Spent | None) -> dict[str, Any]:
    """As `ended`, for statements that take what was used as well."""
    return {**ended(status, result, error), **_used(spent)}


def _told(error: Failure) -> str:
    said = error.as_json()
    said["message"] = str(said["message"])[:LONGEST_MESSAGE]
    return json.dumps(said)


_NOTHING: Mapping[str, Any] = dict.fromkeys(("model", "input_tokens", "output_tokens", "cost"))


def _used(spent: Spent | None) -> Mapping[str, Any]:
    return _NOTHING if spent is None else asdict(spent)


def stored(spec: StepSpec, value: Any) -> tuple[str, Any]:
    """JSON text of a result, and what a replay makes of it: the body gets that at the first pass too.

    Raises InvalidResult where it has no such text, or could not be read back from it.
    """
    try:
        text = spec.encode(value)
    except InvalidRequest as error:
        raise InvalidResult(f"the result of step `{spec.name}`: {error}") from None
    except ValueError as error:
        raise InvalidResult(f"step `{spec.name}` returned {unwritable(error)}") from None
    return text, read_back(value, text, spec.decode, of=f"step `{spec.name}`")
