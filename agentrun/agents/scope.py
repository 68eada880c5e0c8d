"""The scope of an agent's run: whose context it uses, how its steps are keyed, and what has stopped it.

It owns the keys: equal at every replay, and never shared by two things that may differ. It never touches the journal.
"""

from __future__ import annotations

import contextvars
import hashlib
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentrun.agents.approvals import Approval
from agentrun.agents.inputs import Input
from agentrun.runtime.context import Context
from agentrun.runtime.effects import Declared

LONGEST_CALL_ID = 120
"""Characters of a tool call's id that go into a key; longer ids stand as their digest."""


@dataclass(slots=True, eq=False)
class Scope:
    """Where an agent's steps go. `effects` are what the operator says of tools that declare nothing themselves.

    `approvals` are what the operator says about asking, whatever tools declare; `demanded` has the approvals that
    calls turned out to need, by key. `inputs` are the tools whose deferred calls people answer.

    The first agent that runs in a scope uses it itself; every further one gets a scope of its own inside it, and so
    does whatever runs inside a tool: their keys begin with the tool's.
    """

    context: Context
    effects: Mapping[str, Declared] = field(default_factory=dict[str, Declared])
    prefix: str = ""
    stopped_by: list[BaseException] = field(default_factory=list[BaseException])
    approvals: Mapping[str, Approval | None] = field(default_factory=dict[str, Approval | None])
    inputs: Mapping[str, Input] = field(default_factory=dict[str, Input])
    demanded: dict[str, tuple[Approval, str]] = field(default_factory=dict[str, tuple[Approval, str]])
    _asked: dict[str, str] = field(default_factory=dict[str, str])
    _counts: Counter[str] = field(default_factory=Counter[str])
    _calls: dict[str, str] = field(default_factory=dict[str, str])
    _failures: Counter[str] = field(default_factory=Counter[str])
    _taken: set[str] = field(default_factory=set[str])
    _runs: dict[str, Scope] = field(default_factory=dict[str, "Scope"])

    def next_key(self, what: str) -> str:
        """`model:1`, `model:2`: a position among its like, for what one agent does one after the other."""
        self._counts[what] += 1
        return f"{self.prefix}{what}:{self._counts[what]}"

    def call_key(self, call_id: str | None, identity: str, *, approved: bool = False) -> str:
        """`tool:<call id>`. The same call asked for twice has one key; another call under the same id has its own.

        `identity` says what makes two calls the same. A call that has failed and is asked for again is a new step.
        """
        if call_id is None:
            return self.next_key("tool")
        known = call_id if len(call_id) <= LONGEST_CALL_ID else _digest(call_id)
        key = f"{self.prefix}tool:{known}"
        if self._calls.setdefault(known, identity) != identity:
            key += f"~{_digest(identity)}"
        if approved:
            key += ":approved"
        earlier = self._failures[key]
        key = f"{key}.{earlier + 1}" if earlier else key
        self._taken.add(key)
        return key

    def unclaimed_key(self, call_id: str) -> str | None:
        """The key of the first call under this id; None where this segment has seen one."""
        known = call_id if len(call_id) <= LONGEST_CALL_ID else _digest(call_id)
        return None if known in self._calls else f"{self.prefix}tool:{known}"

    def asked_for(self, key: str) -> bool:
        """Whether a call took this key in this segment, or the key of a call that this one is a part of."""
        return key in self._taken or any(key.startswith(f"{taken}/") for taken in self._taken)

    def approval_key(self, call_id: str, tool: str, turn: int) -> str:
        """`approval:<call id>`. A call of a later turn, or of another tool, is another question."""
        return self._question_key("approval", call_id, tool, turn)

    def input_key(self, call_id: str, tool: str, turn: int) -> str:
        """`input:<call id>`, alike."""
        return self._question_key("input", call_id, tool, turn)

    def _question_key(self, what: str, call_id: str, tool: str, turn: int) -> str:
        known = call_id if len(call_id) <= LONGEST_CALL_ID else _digest(call_id)
        identity = f"{turn}/{tool}"
        same = self._asked.setdefault(known, identity) == identity
        return f"{self.prefix}{what}:{known}" + ("" if same else f"~{_digest(identity)}")

    def failed(self, key: str) -> None:
        """The step under `key` has failed: another attempt in this segment must not find that record."""
        self._failures[key] += 1

    def inside(self, key: str) -> Scope:
        """The scope of what runs inside the step `key`."""
        return Scope(self.context, self.effects, f"{key}/", self.stopped_by, self.approvals, self.inputs)

    def begin_run(self) -> str:
        """The id of the next agent run in this scope: the same at every replay."""
        count = len(self._runs) + 1
        run_id = "/".join(filter(None, [str(self.context.run_id), self.prefix.rstrip("/")]))
        run_id = run_id if count == 1 else f"{run_id}/run:{count}"
        self.of_run(run_id)
        return run_id

    def of_run(self, run_id: str | None) -> Scope:
        """The scope of one agent run."""
        known = run_id or ""
        if known not in self._runs:
            self._runs[known] = self.inside(f"{self.prefix}run:{len(self._runs) + 1}") if self._runs else self
        return self._runs[known]

    def go_on(self) -> None:
        """Raises what has stopped this run before: an agent's hook may have swallowed it, and nothing may follow."""
        if self.stopped_by:
            raise self.stopped_by[0]


SCOPE: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("agentrun_agent_scope", default=None)
"""Where agents journal; None outside of runs, and inside steps that are one with all that happens in them."""


CALLED: contextvars.ContextVar[str | None] = contextvars.ContextVar("agentrun_called_tool", default=None)
"""The tool as the model called it: toolsets on the way to its function may know it by another name."""


AROUND: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("agentrun_scope_around", default=None)
"""The innermost scope, also inside steps that are one with all that happens in them: what the operator says counts."""


@contextmanager
def scoped(scope: Scope | None) -> Generator[None]:
    """Agents that run inside this journal into `scope`."""
    around = AROUND.set(scope or SCOPE.get() or AROUND.get())
    token, called = SCOPE.set(scope), CALLED.set(None)
    try:
        yield
    finally:
        AROUND.reset(around)
        CALLED.reset(called)
        SCOPE.reset(token)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
