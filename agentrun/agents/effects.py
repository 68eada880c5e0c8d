"""What an agent's tools do outside: found on the tool's function through its wrappers, else said by the operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from pydantic_ai.toolsets import FunctionToolset, ToolsetTool
from pydantic_ai.toolsets.function import FunctionToolsetTool

from agentrun.core.words import Effect
from agentrun.runtime.effects import UNDECLARED, Declared, declared, declared_effect

DEEPEST = 20
"""Wrappers around one function that are looked through."""


def effect_of(tool: ToolsetTool[Any] | None, names: tuple[str, ...], said: Mapping[str, Declared]) -> Declared:
    """The tool's own declaration, else the operator's for any of its names, else a non-idempotent write (ADR-111)."""
    function = function_of(tool)
    own = declared_by(function) if function is not None else None
    if own is not None:
        return own
    return next((said[name] for name in names if name in said), UNDECLARED)


def function_of(tool: ToolsetTool[Any] | None) -> Callable[..., Any] | None:
    """The function behind a tool; None where there is none in this process (an MCP server's)."""
    if not isinstance(tool, FunctionToolsetTool):
        return None
    holder = tool.toolset
    source = None
    if isinstance(holder, FunctionToolset):
        source = holder.tools.get(tool.original_name or tool.tool_def.name)
    if source is not None:
        return source.function
    return getattr(getattr(tool.call_func, "__self__", None), "function", None)


def declared_by(function: Callable[..., Any]) -> Declared | None:
    """What a function declares, or what it wraps: partials, `functools.wraps`, bound methods, callable objects."""
    return next(filter(None, map(declared, _layers(function))), None)


def as_declared(effects: Mapping[str, Effect | Declared] | None) -> dict[str, Declared]:
    """The operator's word on tools. Raises ConfigurationError for what is no effect."""
    return {
        name: said if isinstance(said, Declared) else Declared(declared_effect(f"tool `{name}`", said))
        for name, said in (effects or {}).items()
    }


def _layers(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    layer: Any = function
    for _ in range(DEEPEST):
        yield layer
        if isinstance(layer, functools.partial):
            layer = cast("Callable[..., Any]", layer.func)
        elif hasattr(layer, "__wrapped__"):
            layer = layer.__wrapped__
        elif not isinstance(layer, type) and not hasattr(layer, "__code__") and not hasattr(layer, "__func__"):
            layer = type(layer).__call__
        else:
            return
