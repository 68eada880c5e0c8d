"""What is registered under a name, looked at when it is registered: its name, its parameters, their types.

Everything here raises ConfigurationError, which names what was registered and says what to write.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast, get_type_hints

from agentrun.core.errors import ConfigurationError
from agentrun.runtime.checks import LONGEST_NAME, shown

Function = Callable[..., Any]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def registered_name(what: str, decorator: str, name: object) -> str:
    """The name itself. A decorator without its parentheses gets the function in place of the name."""
    if callable(name):
        function = getattr(name, "__name__", "my_function")
        raise ConfigurationError(
            f"`@{decorator}` needs the name under which `{function}` is registered: "
            f'write `@{decorator}("{function.replace("_", "-")}")`'
        )
    if not isinstance(name, str) or not name or name != name.strip() or len(name) > LONGEST_NAME:
        raise ConfigurationError(
            f"the name of a {what} must be 1 to {LONGEST_NAME} characters without blanks around it, not {shown(name)}"
        )
    return name


def signature_of(of: str, function: object) -> tuple[list[inspect.Parameter], Mapping[str, Any]]:
    """The parameters and the types of what is registered; `of` says what that is, with its name."""
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"{of} must be a function, not {shown(function)}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
        return parameters, get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"an annotation of {of} cannot be read: {error}; import it where the module is executed, not under "
            "`if TYPE_CHECKING`, and define it outside of functions"
        ) from None
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{of} must be a function whose signature can be read ({error})") from None


def after_context(of: str, function: Function, parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters beside the first one, which takes the context."""
    if not parameters or parameters[0].kind not in _BY_PLACE or not _are_named(parameters[1:]):
        raise ConfigurationError(
            f"{of} must take the context first and then named parameters: def {name_of(function)}(ctx: Context, ...)"
        )
    return parameters[1:]


def all_named(of: str, function: Function, parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters, each of which takes what has its name."""
    if not _are_named(parameters):
        raise ConfigurationError(f"{of} must take named parameters: def {name_of(function)}(doc: Doc)")
    return parameters


def checked_reconcile(of: str, value: object) -> Function | None:
    """A function that is asked how a write ended, or None."""
    if value is not None and not callable(value):
        raise ConfigurationError(f"`reconcile` of {of} must be a function of the idempotency key, not {shown(value)}")
    return cast("Function | None", value)


def name_of(function: object) -> str:
    """What the function is called in its module."""
    return getattr(function, "__name__", type(function).__name__)


def _are_named(parameters: list[inspect.Parameter]) -> bool:
    return all(parameter.kind in _NAMED for parameter in parameters)
