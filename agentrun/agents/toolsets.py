"""Toolsets whose calls are steps: whatever executes in this process or at a server, and what is made per run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, ExternalToolset, FunctionToolset

DepsT = TypeVar("DepsT")


@dataclass(frozen=True, slots=True)
class Journaling:
    """How single toolsets get their steps: those that execute in this process, and those of an MCP server."""

    functions: Callable[[FunctionToolset[Any]], AbstractToolset[Any]]
    mcp: Callable[[Any], AbstractToolset[Any]]

    def within(self, toolset: AbstractToolset[DepsT]) -> AbstractToolset[DepsT]:
        """The same toolset, every tool call a step, through whatever wraps its parts."""
        return toolset.visit_and_replace(self._part)

    def _part(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        if isinstance(toolset, ExternalToolset):
            # Nothing of it executes here.
            return toolset
        if isinstance(toolset, DynamicToolset):
            return self._unfolding(toolset)
        if _is_mcp(toolset):
            return self.mcp(toolset)
        # Whatever else there is executes here when it is called, as functions do.
        return self.functions(cast("FunctionToolset[Any]", toolset))

    def _unfolding(self, toolset: DynamicToolset[Any]) -> DynamicToolset[Any]:
        """What a dynamic toolset's function makes, journaled. The function itself runs again at every replay."""
        last: tuple[AbstractToolset[Any], AbstractToolset[Any]] | None = None

        async def made(ctx: RunContext[Any]) -> AbstractToolset[Any] | None:
            nonlocal last
            answer = toolset.toolset_func(ctx)
            inner = await answer if inspect.isawaitable(answer) else answer
            if inner is None:
                return None
            if last is None or last[0] is not inner:
                last = (inner, self.within(inner))
            return last[1]

        return DynamicToolset(made, per_run_step=toolset.per_run_step, id=toolset.id)


def _is_mcp(toolset: AbstractToolset[Any]) -> bool:
    try:
        from pydantic_ai.mcp import MCPToolset
    except ImportError:
        # Without MCP's packages there are no such toolsets.
        return False
    return isinstance(toolset, MCPToolset)
