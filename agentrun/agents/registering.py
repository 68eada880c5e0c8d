"""`register_agent`: a pydantic-ai agent becomes a kind, and stays as its author wrote it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_ai.exceptions import UserError
from pydantic_ai.usage import UsageLimits

from agentrun.agents.approvals import Wish, as_approvals
from agentrun.agents.durability import AgentrunDurability
from agentrun.agents.effects import as_declared
from agentrun.agents.inputs import Asked, as_inputs
from agentrun.agents.inventory import contradicted, output_writes, tools_of, unknown_tools
from agentrun.agents.requests import REQUEST
from agentrun.agents.running import AgentBody, Deps, named
from agentrun.core.codec import adapter_of
from agentrun.core.errors import ConfigurationError
from agentrun.core.words import Effect
from agentrun.runtime.effects import Declared
from agentrun.runtime.kinds import Kind, Registry, registry
from agentrun.runtime.options import Options, Retries, options_of

log = logging.getLogger("agentrun.agents")

AgentT = TypeVar("AgentT", bound=AbstractAgent[Any, Any])
SaidT = TypeVar("SaidT")
ReadT = TypeVar("ReadT")


def register_agent(
    agent: AgentT,
    *,
    name: str | None = None,
    queue: str | None = None,
    max_requeues: int | None = None,
    timeout: timedelta | float | None = None,
    lease_seconds: float | None = None,
    retries: Retries | int | None = None,
    four_eyes: bool = False,
    effects: Mapping[str, Effect | Declared] | None = None,
    approvals: Mapping[str, Wish] | None = None,
    inputs: Mapping[str, Asked] | None = None,
    deps: Deps | None = None,
    usage_limits: UsageLimits | None = None,
    event_stream_handler: EventStreamHandler[Any] | None = None,
    kinds: Registry = registry,
) -> AgentT:
    """Register an agent as the kind `name` (its own name, if not given); returns the agent, which stays as it is.

    Every model request and tool call of its runs is a step. A run's request is a prompt, or an AgentRequest; its
    result is the agent's output. `queue`, `max_requeues`, `timeout`, `lease_seconds` and `four_eyes` are as for
    `@durable`; `retries` is how often a model request or read-only tool is tried within a segment.

    `effects` says, per tool name, what tools do that declare nothing themselves (`@effect`): an Effect, or a Declared
    with a `reconcile`. What nobody declares is a non-idempotent write, MCP tools included. `approvals` says, per tool
    name, which calls wait for a decision, and replaces what tools declare with `@effect(…, approval=…)`: True, a rule
    on the arguments, an Approval, or False; pydantic-ai's own `requires_approval` stays in force. `inputs` says, per
    tool name, whose deferred calls people answer with data: a schema, an Input, or True. `deps(ctx)` or
    `deps(ctx, request)` makes the agent's dependencies, anew in every segment: a value, an awaitable, or an async
    generator that yields them once and cleans up. `event_stream_handler` gets what happens in the run, each event at
    least once.

    Registering the same agent again replaces its options. Raises ConfigurationError for an agent without a name or
    model, without `deps` where it needs some, with another durability engine, with an output function that declares
    itself a write, where an effect contradicts a tool's own declaration, or where the name is taken. Logs a warning
    where `approvals` or `inputs` name a tool that it does not have.
    """
    kind_name = named(agent, name)
    durability = AgentrunDurability[Any](name=kind_name, event_stream_handler=event_stream_handler)
    _check(agent, kind_name, durability, deps)
    _warn_of_unknown(agent, kind_name, approvals=approvals, inputs=inputs)
    body = AgentBody(
        agent,
        durability,
        _checked_effects(agent, kind_name, effects),
        deps,
        usage_limits,
        _checked(kind_name, as_approvals, approvals),
        _checked(kind_name, as_inputs, inputs),
    )
    options = options_of(
        kind_name,
        queue=queue,
        max_requeues=max_requeues,
        timeout=timeout,
        lease_seconds=lease_seconds,
        retries=retries,
        four_eyes=four_eyes,
    )
    _add(kinds, kind_name, body, options)
    return agent


def _add(kinds: Registry, name: str, body: AgentBody, options: Options) -> None:
    there = kinds.get(name)
    if there is not None and there.about.get("agent") is not body.agent:
        raise ConfigurationError(
            f"kind `{name}` is registered already, by another agent or function; "
            f'name this one: register_agent(agent, name="{name}-2")'
        )
    kind = Kind(
        name=name,
        body=body.run,
        request=REQUEST,
        result=result_of(body.agent),
        takes=("request",),
        spread=False,
        options=options,
        about={"agent": body.agent, "tools": lambda: tools_of(body.agent, body.effects)},
    )
    kinds.add(kind)


def result_of(agent: AbstractAgent[Any, Any]) -> TypeAdapter[Any]:
    """The type of the agent's output, where it is a plain one; else whatever the agent returns, by its own type."""
    declared = cast("object", agent.output_type)
    if isinstance(declared, type):
        try:
            return adapter_of(declared)
        except Exception:
            # No type that pydantic knows: the output is stored as what it is.
            return TypeAdapter(Any)
    return TypeAdapter(Any, config=ConfigDict(ser_json_bytes="base64", ser_json_inf_nan="strings"))


def _check(agent: AbstractAgent[Any, Any], name: str, durability: AgentrunDurability[Any], deps: Deps | None) -> None:
    attached = BaseDurabilityCapability[Any].from_agent(agent)
    if attached is not None and not isinstance(attached, AgentrunDurability):
        raise ConfigurationError(
            f"agent `{name}` carries {type(attached).__name__}, another engine's durability; an agent has one engine: "
            "build the agent without it, and attach it where that engine runs it"
        )
    if deps is None and agent.deps_type not in (object, type(None)):
        raise ConfigurationError(
            f"agent `{name}` declares deps_type={getattr(agent.deps_type, '__name__', agent.deps_type)}, and a worker "
            "has to make one for every segment: register_agent(agent, deps=lambda ctx: …)"
        )
    for function in output_writes(agent):
        raise ConfigurationError(
            f"`{function}` is an output function of agent `{name}` and declares itself a write; output functions are "
            "no steps, and run again at a replay: make it a tool, or do it in a body after `run_agent`"
        )
    try:
        durability.for_agent(agent)
    except UserError as error:
        raise ConfigurationError(f"agent `{name}` cannot be registered: {error}") from None


def _warn_of_unknown(agent: AbstractAgent[Any, Any], name: str, **said: Mapping[str, Any] | None) -> None:
    """An approval that guards nothing would be missed when the money is gone. Agents inside its tools may have them."""
    for what, of_tools in said.items():
        unknown = unknown_tools(agent, of_tools or ())
        if unknown:
            log.warning(
                "%s of agent `%s` name %s, and it has no such tool: they count only for agents that its tools run; "
                "give the name by which the model calls it, and register the agent once it has its tools",
                what, name, ", ".join(f"`{tool}`" for tool in unknown),
            )  # fmt: skip


def _checked(name: str, read: Callable[[SaidT], ReadT], said: SaidT) -> ReadT:
    try:
        return read(said)
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"agent `{name}` cannot be registered: {error}") from None


def _checked_effects(
    agent: AbstractAgent[Any, Any], name: str, effects: Mapping[str, Effect | Declared] | None
) -> Mapping[str, Declared]:
    said = _checked(name, as_declared, effects)
    for tool, own in contradicted(agent, said).items():
        raise ConfigurationError(
            f"effects of agent `{name}` say {said[tool].effect} of tool `{tool}`, which declares itself {own.effect}; "
            "its own declaration counts: change it, or leave the tool out of effects"
        )
    return said
