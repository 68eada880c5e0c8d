"""What a context knows of a function that it makes a step of: name, effect, and how its results are stored.

Found out once per function: a body may call the same one a thousand times.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_json

from agentrun.core.codec import PLAIN, adapter_of, decode, dumped, encode
from agentrun.runtime.effects import Declared, declared


@dataclass(frozen=True, slots=True)
class Described:
    """One function: what people see of it, what it declares, how what it returns becomes JSON text and back."""

    name: str
    declared: Declared | None
    is_async: bool
    encode: Callable[[Any], str]
    decode: Callable[[str], Any]


def described(function: Callable[..., Any]) -> Described:
    """Results are stored by the function's return annotation, else as plain JSON."""
    return _kept(function) if getattr(function, "__hash__", None) else _described(function)


def _described(function: Callable[..., Any]) -> Described:
    adapter = _adapter(function)
    name, is_async = name_of(function), _is_async(function)
    if adapter is None:
        return Described(name, declared(function), is_async, functools.partial(encode, what="it"), decode)
    dump = functools.partial(_dump, adapter, _hint(function))
    return Described(name, declared(function), is_async, dump, adapter.validate_json)


_kept = functools.lru_cache(maxsize=4096)(_described)


def name_of(function: Callable[..., Any]) -> str:
    """What people see of a function."""
    if isinstance(function, functools.partial):
        return name_of(cast("Callable[..., Any]", function.func))
    return getattr(function, "__name__", type(function).__name__)


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments as JSON, for their digest. What has no JSON stands as its type."""
    return to_json([args, kwargs], fallback=lambda value: f"<{type(value).__name__}>", inf_nan_mode="strings").decode()


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    try:
        hint = _hint(function)
        return None if hint is Any else adapter_of(hint)
    except Exception:
        # Annotations that cannot be read or that pydantic does not know: the result is stored as plain JSON.
        return None


def _hint(function: Callable[..., Any]) -> Any:
    hint = get_type_hints(function).get("return", Any)
    return type(None) if hint is None else hint


def _dump(adapter: TypeAdapter[Any], hint: Any, value: Any) -> str:
    if type(value) is hint and hint in PLAIN:
        # To have pydantic compare the value with its declaration takes nine tenths of the time, and they are the same.
        return to_json(value).decode()
    return dumped(adapter, value, warnings="error")
