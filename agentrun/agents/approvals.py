"""Which calls of an agent's tools somebody has to approve: said by the operator, else by the tool itself.

It owns the rules and what they are asked. It never asks anybody: that is `asking.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from agentrun.runtime.checks import checked_flag
from agentrun.runtime.stepspec import in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """How the calls of one tool are approved.

    `rule` says which calls: it takes the tool's arguments by name, as many as it wants, and may be a coroutine
    function; without one it is every call. A rule that raises counts as a yes. `role`, `four_eyes`, `expires`
    (seconds or a timedelta), `on_expiry`, `escalate_to` and `remind` are as for `ctx.approval`; with `editable`,
    whoever approves may change the arguments. `preview` takes the arguments as a rule does, and returns what a call
    would come to, for whoever decides; it is made once, as the run's owner (`current_step().owner`).

    Raises InvalidRequest where `four_eyes` or `editable` is neither True nor False.
    """

    rule: Callable[..., Any] | None = None
    role: str | None = None
    four_eyes: bool = False
    editable: bool = False
    expires: timedelta | float | None = None
    on_expiry: Literal["fail", "deny", "escalate"] = "deny"
    escalate_to: str | None = None
    remind: timedelta | float | None = None
    preview: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        checked_flag("four_eyes", self.four_eyes)
        checked_flag("editable", self.editable)

    def __call__(self, **arguments: Any) -> bool:
        """What its rule says, so that `@effect(…, approval=Approval(…))` takes it in a rule's place."""
        return self.rule is None or bool(self.rule(**by_name(self.rule, arguments)))


ALWAYS = Approval()
"""Every call, by anybody who may approve."""

Wish = bool | Callable[..., Any] | Approval
"""True, a rule on the arguments, or an Approval. False takes back what a tool declares with `@effect`."""


def as_approval(wish: Wish) -> Approval | None:
    """What was said as an Approval; None where it is False. Raises ValueError for what is none of it."""
    if isinstance(wish, Approval):
        return wish
    if isinstance(wish, bool):
        return ALWAYS if wish else None
    if callable(wish):
        return Approval(rule=wish)
    raise ValueError(f"{wish!r} is neither True, nor a rule on the arguments, nor an Approval")


def as_approvals(said: Mapping[str, Wish] | None) -> dict[str, Approval | None]:
    """The operator's word on tools. Raises ValueError naming the tool."""
    try:
        return {tool: as_approval(wish) for tool, wish in (said or {}).items()}
    except ValueError as error:
        raise ValueError(f"approvals: {error}") from None


def seconds_of(span: timedelta | float | None) -> float | None:
    """As seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else span


async def applies(approval: Approval, arguments: Mapping[str, Any], threads: Executor) -> str | None:
    """Why these arguments need the approval; None where they do not. A rule that fails lets nothing through."""
    if approval.rule is None:
        return "always"
    try:
        answer = await asked(approval.rule, arguments, threads)
    except Exception as error:
        return f"the rule failed ({type(error).__name__})"
    return "by its rule" if answer else None


async def asked(function: Callable[..., Any], arguments: Mapping[str, Any], threads: Executor) -> Any:
    """What a rule or preview answers; plain functions run in a thread."""
    wanted = by_name(function, arguments)
    if inspect.iscoroutinefunction(function):
        return await function(**wanted)
    answer = await in_thread(threads, function, **wanted)
    return await answer if inspect.isawaitable(answer) else answer


def by_name(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the function takes."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}
