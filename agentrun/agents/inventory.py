"""An agent's tools and their effects, for `agentrun check`: what can be known without a run or a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities.abstract import AbstractCapability, leaf_capabilities
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.toolsets import (
    AbstractToolset,
    CombinedToolset,
    ExternalToolset,
    FunctionToolset,
    PrefixedToolset,
    RenamedToolset,
    WrapperToolset,
)

from agentrun.agents.effects import declared_by
from agentrun.core.words import Effect
from agentrun.runtime.effects import Declared


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """One tool. `effect` is None where nobody declared it: it is then treated as a non-idempotent write."""

    name: str
    effect: Effect | None


def tools_of(agent: AbstractAgent[Any, Any], said: Mapping[str, Declared]) -> list[ToolFacts]:
    """The agent's function tools, and tools of other kinds as far as the operator named them."""
    facts: dict[str, ToolFacts] = {}
    for name, own in _functions(agent):
        found = own or said.get(name)
        facts[name] = ToolFacts(name, found.effect if found else None)
    return [*facts.values(), *(ToolFacts(name, each.effect) for name, each in said.items() if name not in facts)]


def contradicted(agent: AbstractAgent[Any, Any], said: Mapping[str, Declared]) -> dict[str, Declared]:
    """The own declarations of tools of which the operator says something else."""
    return {name: own for name, own in _functions(agent) if own and name in said and said[name].effect != own.effect}


def unknown_tools(agent: AbstractAgent[Any, Any], names: Iterable[str]) -> list[str]:
    """Of these names, those that no tool of the agent has; none where its tools are known only when it runs."""
    holders, wrappers = list[AbstractToolset[Any]](), list[AbstractToolset[Any]]()
    for toolset in agent.toolsets:
        toolset.apply(holders.append)
        _wrappers(toolset, wrappers)
    made_per_run = any(not isinstance(each, FunctionToolset | ExternalToolset) for each in holders)
    renamed = any(isinstance(each, RenamedToolset) for each in wrappers)
    if made_per_run or renamed or any(map(_brings_tools, leaf_capabilities(agent.root_capability))):
        return []
    prefixed = any(isinstance(each, PrefixedToolset) for each in wrappers)
    known = tuple(name for holder in holders for name in _names(holder))
    return [name for name in names if name not in known and not (prefixed and name.endswith(known))]


def output_writes(agent: AbstractAgent[Any, Any]) -> Iterator[str]:
    """The output functions that declare themselves writes, by name."""
    for function in _output_functions(cast("object", agent.output_type)):
        own = declared_by(function)
        if own is not None and own.effect.is_write:
            yield getattr(function, "__name__", repr(function))


def _output_functions(output: object) -> Iterator[Callable[..., Any]]:
    if isinstance(output, ToolOutput | TextOutput | NativeOutput | PromptedOutput):
        for name in ("output", "output_function", "outputs"):
            yield from _output_functions(getattr(cast("object", output), name, None))
    elif isinstance(output, list | tuple):
        for each in cast("Iterable[object]", output):
            yield from _output_functions(each)
    elif callable(output) and not isinstance(output, type):
        yield output


def _wrappers(toolset: AbstractToolset[Any], found: list[AbstractToolset[Any]]) -> None:
    found.append(toolset)
    if isinstance(toolset, WrapperToolset):
        _wrappers(toolset.wrapped, found)
    if isinstance(toolset, CombinedToolset):
        for each in toolset.toolsets:
            _wrappers(each, found)


def _names(holder: AbstractToolset[Any]) -> Iterable[str]:
    if isinstance(holder, ExternalToolset):
        return [tool.name for tool in holder.tool_defs]
    return cast("FunctionToolset[Any]", holder).tools


def _brings_tools(capability: AbstractCapability[Any]) -> bool:
    """Whether it may bring tools of its own, which are known when a run begins."""
    kind, nothing = type(capability), AbstractCapability
    return kind.get_toolset is not nothing.get_toolset or kind.for_run is not nothing.for_run


def _functions(agent: AbstractAgent[Any, Any]) -> Iterator[tuple[str, Declared | None]]:
    holders: list[FunctionToolset[Any]] = []

    def collect(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, FunctionToolset):
            holders.append(toolset)

    for toolset in agent.toolsets:
        toolset.apply(collect)
    for holder in holders:
        for name, tool in holder.tools.items():
            yield name, declared_by(tool.function)
