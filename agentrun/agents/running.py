"""An agent's run inside a durable run: its scope, its dependencies, its capability; and `run_agent` for bodies."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.durable_exec import replay_scope
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import UsageLimits

from agentrun.agents.approvals import Approval, Wish, as_approvals
from agentrun.agents.durability import AgentrunDurability
from agentrun.agents.effects import as_declared
from agentrun.agents.inputs import Asked, Input, as_inputs
from agentrun.agents.requests import AgentRequest
from agentrun.agents.scope import SCOPE, Scope, scoped
from agentrun.core.errors import BodyError, ConfigurationError
from agentrun.core.words import Effect
from agentrun.runtime.context import Context
from agentrun.runtime.effects import Declared
from agentrun.runtime.keys import BRANCH, key_for
from agentrun.runtime.synchronous import SyncContext

OutputT = TypeVar("OutputT")

_NO_NAME = "its steps are shown as its model requests (by the agent's name) and its tools: Agent(…, name=…)"
_NO_TIMEOUT = "`timeout=…` of run_agent itself bounds all that the agent does, `tool_timeout=…` of the agent each tool"
_NOT_SYNC = "run_agent needs a context whose verbs are coroutines: `ctx.wait(run_agent(ctx.asynchronous, agent, …))`"

_SAID_OUTSIDE = (
    "inside a tool, run_agent takes no effects, approvals or inputs: those of the agent around it count for the agents "
    "that its tools run, too; say them in its register_agent or run_agent"
)

Deps = Callable[..., Any]
"""Makes an agent's dependencies, anew in every segment: `deps(ctx)` or `deps(ctx, request)`; a value, an awaitable, or
an `async def` that yields the value once and cleans up after it."""


@dataclass(frozen=True, slots=True)
class AgentBody:
    """The body of an agent's kind."""

    agent: AbstractAgent[Any, Any]
    durability: AgentrunDurability[Any]
    effects: Mapping[str, Declared] = field(default_factory=dict[str, Declared])
    deps: Deps | None = None
    usage_limits: UsageLimits | None = None
    approvals: Mapping[str, Approval | None] = field(default_factory=dict[str, Approval | None])
    inputs: Mapping[str, Input] = field(default_factory=dict[str, Input])

    async def run(self, ctx: Context, request: AgentRequest) -> Any:
        """The agent's output."""
        async with _made(self.deps, ctx, request) as deps:
            result = await _journaled(
                Scope(ctx, self.effects, approvals=self.approvals, inputs=self.inputs),
                self.agent,
                self.durability,
                request.prompt,
                message_history=request.message_history or None,
                instructions=request.instructions,
                model_settings=request.model_settings,
                metadata=request.metadata,
                deps=deps,
                usage_limits=self.usage_limits,
            )
        return result.output


def run_agent(
    ctx: Context | RunContext[Any],
    agent: AbstractAgent[Any, OutputT],
    prompt: Any = None,
    *,
    effects: Mapping[str, Effect | Declared] | None = None,
    approvals: Mapping[str, Wish] | None = None,
    inputs: Mapping[str, Asked] | None = None,
    **options: Any,
) -> Coroutine[Any, Any, AgentRunResult[OutputT]]:
    """Run an agent durably inside a `@durable` body, or inside a tool of another agent; `options` are `agent.run`'s.

    In a body its steps stand under the position of this call (or `ctx.options(key=…)`): `#2/model:1`; `retries` of
    `ctx.options` are for each model request and read-only tool. In a tool (hand in the tool's RunContext) they stand
    under the tool's step, where that may be repeated; inside a non-idempotent write, and outside of durable runs, the
    agent runs as `agent.run` would. Nothing of it is asked twice at a replay.

    Raises ConfigurationError for an agent without a name, BodyError for a name or timeout of `ctx.options`, for a
    SyncContext, and for `effects`, `approvals` or `inputs` in a tool (those of the agent around it count there), and
    what `agent.run` raises.
    """
    durability = AgentrunDurability[Any](name=named(agent, None))
    if isinstance(cast("object", ctx), SyncContext):
        raise BodyError(_NOT_SYNC)
    if isinstance(ctx, Context):
        ctx.wishes.without("run_agent", "name", instead=_NO_NAME)
        ctx.wishes.without("run_agent", "timeout", instead=_NO_TIMEOUT)
        scope: Scope | None = Scope(
            ctx,
            as_declared(effects),
            f"{key_for(ctx.wishes.key)}/",
            approvals=as_approvals(approvals),
            inputs=as_inputs(inputs),
        )
    else:
        if effects or approvals or inputs:
            raise BodyError(_SAID_OUTSIDE)
        scope = SCOPE.get()
    return _journaled(scope, agent, durability, prompt, **options)


def named(agent: AbstractAgent[Any, Any], name: str | None) -> str:
    """The agent's name. Raises ConfigurationError where it has none."""
    known = name or agent.name
    if not known:
        raise ConfigurationError(
            "an agent needs a name: it names the kind of its runs and the steps of its journal; "
            'give it one, Agent(…, name="refund-desk"), or register_agent(agent, name="refund-desk")'
        )
    return known


async def _journaled(
    scope: Scope | None,
    agent: AbstractAgent[Any, Any],
    durability: AgentrunDurability[Any],
    prompt: Any,
    **options: Any,
) -> AgentRunResult[Any]:
    if AgentrunDurability.from_agent(agent) is None:
        options["capabilities"] = [*(options.get("capabilities") or ()), durability]
    if scope is None:
        return await agent.run(prompt, infer_name=False, **options)
    with _inside(scope):
        result = await agent.run(prompt, infer_name=False, **options)
    scope.go_on()
    return result


@contextmanager
def _inside(scope: Scope) -> Generator[None]:
    """The agent's surroundings: its journal, no positions of the body's, the engine's threads, quiet replays."""
    token = BRANCH.set(None)
    try:
        with scoped(scope), AbstractAgent.using_thread_executor(scope.context.threads), replay_scope():
            yield
    finally:
        BRANCH.reset(token)


@asynccontextmanager
async def _made(deps: Deps | None, ctx: Context, request: AgentRequest) -> AsyncGenerator[Any]:
    if deps is None:
        yield None
        return
    wanted = (ctx, request)[: _positional(deps)]
    if inspect.isasyncgenfunction(deps):
        async with contextlib.asynccontextmanager(deps)(*wanted) as made:
            yield made
        return
    made = deps(*wanted)
    yield await made if inspect.isawaitable(made) else made


def _positional(function: Deps) -> int:
    """How many of (ctx, request) the function takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return 2
    return sum(1 for each in parameters if each.kind in kinds and each.default is inspect.Parameter.empty)
