"""Errors of steps as an agent's run must see them: of the type that was raised, at the first pass and at replays.

pydantic-ai's hooks and fallbacks look at an error's type. The StepFailed that names the step stays in its causes, so
that the retry decision finds it.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelHTTPError, ToolFailed

from agentrun.core.errors import NotApplied, StepFailed
from agentrun.core.failures import qualified_name

_NOT_APPLIED = qualified_name(NotApplied)
_HTTP = re.compile(r"HTTP (?P<status>\d+)( from model (?P<model>\S+))?")


def as_raised(failed: StepFailed) -> Exception:
    """What a failed step raises into the agent's run. `NotApplied` goes to the model, as the tool's answer."""
    if failed.error_type == _NOT_APPLIED:
        return ToolFailed(failed.message or "nothing happened")
    original = failed.__cause__
    if isinstance(original, Exception):
        _name_step(original, failed)
        return original
    revived = _revived(failed)
    if revived is not failed:
        revived.__cause__ = failed
    return revived


def _name_step(original: Exception, failed: StepFailed) -> None:
    """Put the step at the head of the error's causes; a copy, because `failed` itself is caused by the error."""
    cause = original.__cause__
    if isinstance(cause, StepFailed) and cause.key == failed.key:
        return
    link = StepFailed(failed.key, failed.name, failed.error_type, failed.message, failed.failure_class)
    link.retry_after = failed.retry_after
    link.__cause__, original.__cause__ = cause, link


def _revived(failed: StepFailed) -> Exception:
    """An error of the recorded type and message; `failed` itself where no such error can be made here."""
    kind = _named(failed.error_type)
    if kind is None:
        return failed
    try:
        error = _with_status(kind, failed) or kind.__new__(kind, failed.message)
        _fill(error, failed)
        str(error)
    except Exception:
        # A type that cannot be made from its message; its name and message are in StepFailed.
        return failed
    return error


def _with_status(kind: type[Exception], failed: StepFailed) -> Exception | None:
    """pydantic-ai's categories of HTTP errors are ModelHTTPErrors too, by private classes that take their names."""
    said = _HTTP.match(failed.message)
    if said is None or not issubclass(kind, ModelAPIError) or issubclass(kind, ModelHTTPError):
        return None
    category: Any = kind
    return ModelHTTPError.for_category(category, status_code=int(said.group("status")), model_name="")


def _fill(error: Exception, failed: StepFailed) -> None:
    if isinstance(error, ModelAPIError):
        said = _HTTP.match(failed.message)
        model = (said.group("model") or "") if said else ""
        ModelAPIError.__init__(error, model_name=model, message=failed.message, retry_after=failed.retry_after)
        if isinstance(error, ModelHTTPError):
            error.status_code = int(said.group("status")) if said else 0
            error.headers = error.suggested_model_id = error.hint = None
        return
    error.args = (failed.message,)
    if isinstance(error, AgentRunError):
        error.message = failed.message


def _named(error_type: str) -> type[Exception] | None:
    """The class of that qualified name, in a module that is imported already."""
    parts = error_type.split(".")
    candidates = [("builtins", parts)] if len(parts) == 1 else []
    candidates += [(".".join(parts[:cut]), parts[cut:]) for cut in range(len(parts) - 1, 0, -1)]
    for module, path in candidates:
        found: Any = sys.modules.get(module)
        for name in path:
            found = getattr(found, name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None
