"""Step keys: explicit ones, and positions for the rest.

A position is counted in the branch that asks. Every asyncio task that a body starts is a branch of its own, numbered
when it is created, so steps side by side get the same keys at every replay, whatever order they end in.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from agentrun.core.errors import BodyError


class Branch:
    """One line of steps. `#3` is the root's third step, `#2.1` the first step of the root's second branch."""

    __slots__ = ("_forks", "_prefix", "_steps", "tasks")

    def __init__(self, prefix: str = "#", tasks: set[asyncio.Task[Any]] | None = None) -> None:
        self._prefix, self._steps, self._forks = prefix, 0, 0
        self.tasks: set[asyncio.Task[Any]] = set() if tasks is None else tasks
        """The tasks of all branches of the body that have not ended."""

    def next_key(self) -> str:
        self._steps += 1
        return f"{self._prefix}{self._steps}"

    def fork(self) -> Branch:
        self._forks += 1
        return Branch(f"{self._prefix}{self._forks}.", self.tasks)


BRANCH: contextvars.ContextVar[Branch | None] = contextvars.ContextVar("agentrun_branch", default=None)
"""The branch that asks; None inside a step and outside bodies."""


def key_for(explicit: str | None) -> str:
    """The key of the next step. Raises BodyError inside a step: steps do not nest."""
    branch = BRANCH.get()
    if branch is None:
        raise BodyError("a step was asked for inside another step, or outside its body; call it from the body itself")
    return branch.next_key() if explicit is None else checked_key(explicit)


def checked_key(explicit: object) -> str:
    """A key that a body gives. Raises BodyError where it cannot be one, or could be a position."""
    if not isinstance(explicit, str) or not explicit or explicit.startswith("#") or len(explicit) > 200:
        raise BodyError(f"a step's key must be 1 to 200 characters and must not start with '#', not {explicit!r}")
    return explicit


def branching_tasks(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    *,
    context: contextvars.Context | None = None,
    **options: Any,
) -> asyncio.Task[Any]:
    """A task factory: tasks that a body creates get branches of their own, in the order of their creation."""
    current = BRANCH.get() if context is None else context.get(BRANCH)
    if current is not None:
        context = (context or contextvars.copy_context()).copy()
        context.run(BRANCH.set, current.fork())
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context, **options)
    if current is not None:
        current.tasks.add(task)
        task.add_done_callback(current.tasks.discard)
    return task
