"""An agent's tools and their effects, for `agentrun check`: what can be known without a run or a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

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
