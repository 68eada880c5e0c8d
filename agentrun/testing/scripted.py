"""A scripted model for agents: what it answers stands in the test, turn by turn, and what it was asked can be read.

A turn belongs to a place in the conversation (how often the model has answered before), not to a moment: a run that
dies and is taken over hears the same answer to the same question. It calls itself `scripted`, also in the journal.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

NAME = "scripted"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the model calls."""

    tool: str
    arguments: Mapping[str, Any]
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """The model's final answer, where the agent's output is no text: the call of its output tool."""

    value: Any


Part = str | Call | Output
Turn = Part | Sequence[Part] | Exception | Callable[[list[ModelMessage], AgentInfo], Part | Sequence[Part]]


def call(tool: str, *, call_id: str | None = None, **arguments: Any) -> Call:
    """The call of a tool, as a turn or as a part of one: `call("refund", order=7)`.

    Raises TypeError for a function in place of its name: the model knows a tool by name only.
    """
    if not isinstance(tool, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        name = getattr(tool, "__name__", "tool")
        raise TypeError(f'call takes the name of a tool, as `call("{name}", …)`, not a {type(tool).__name__}')
    return Call(tool, arguments, call_id)


class ScriptEnded(AssertionError):
    """The model was asked for more turns than its script has."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that reached the model."""

    messages: Sequence[ModelMessage]
    info: AgentInfo

    @property
    def prompt(self) -> str:
        """What the user said last."""
        said = [part.content for part in self._parts() if isinstance(part, UserPromptPart)]
        return str(said[-1]) if said else ""

    @property
    def results(self) -> dict[str, Any]:
        """What tools returned since the model's last answer, by tool."""
        last = self.messages[-1]
        parts = last.parts if isinstance(last, ModelRequest) else ()
        return {part.tool_name: part.content for part in parts if isinstance(part, ToolReturnPart)}

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that it could call."""
        return tuple(tool.name for tool in self.info.function_tools)

    @property
    def instructions(self) -> str | None:
        """The instructions it was given."""
        return self.info.instructions

    def _parts(self) -> list[Any]:
        return [part for message in self.messages for part in message.parts]


_SAYABLE = "a turn is a text, a call(…), an Output(…), a list of these, a function of (messages, info), or an exception"


class ScriptedModel(FunctionModel):
    """Answers from a script. `asked` holds every request, in order; requests that a replay answers are not among them.

    A turn is a text, a `call(…)`, an `Output(…)`, a list of these, a function of (messages, info), or an exception:
    that one is raised once, and the next try gets the turn after it. After the last turn, ScriptEnded is raised.
    """

    def __init__(self, *turns: Turn) -> None:
        for number, turn in enumerate(turns, 1):
            _refuse_unsayable(turn, f"turn {number}")
        super().__init__(self._answer, stream_function=self._stream, model_name=NAME)
        self.asked: list[Asked] = []
        self._turns = [turn for turn in turns if not isinstance(turn, Exception)]
        self._errors = _by_place(turns)
        self._lock = threading.Lock()

    def assert_done(self) -> None:
        """Raises AssertionError where turns of the script are left."""
        answered = {_place(each.messages) for each in self.asked}
        left = [turn for place, turn in enumerate(self._turns) if place not in answered]
        errors = [error for errors in self._errors.values() for error in errors]
        assert not left, f"the scripted model was asked {len(self.asked)} times; not reached: {left}"
        assert not errors, f"the scripted model has errors left to raise: {errors}"

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> list[Part]:
        place = _place(messages)
        with self._lock:
            self.asked.append(Asked(list(messages), info))
            if self._errors.get(place):
                raise self._errors[place].pop(0)
        if place >= len(self._turns):
            raise ScriptEnded(
                f"the scripted model has {len(self._turns)} turns and was asked for another one; "
                f"it last heard {self.asked[-1].results or self.asked[-1].prompt!r}"
            )
        turn: Any = self._turns[place]
        said: Any = turn(messages, info) if callable(turn) else turn
        return [said] if isinstance(said, str | Call | Output) else list(said)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        place = _place(messages)
        parts = [_part(said, info, f"{place + 1}.{n}") for n, said in enumerate(self._next(messages, info), 1)]
        return ModelResponse(parts=parts, model_name=NAME)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        response = await self._answer(messages, info)
        for number, part in enumerate(response.parts):
            if isinstance(part, ToolCallPart):
                said = DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)
                yield {number: said}
            elif isinstance(part, TextPart):
                yield part.content


def scripted(*turns: Turn) -> ScriptedModel:
    """A model that answers with these turns: `Agent(scripted(call("look", what="x"), "done"), name="desk")`."""
    return ScriptedModel(*turns)


def _place(messages: Sequence[ModelMessage]) -> int:
    """How often the model has answered in this conversation."""
    return sum(isinstance(message, ModelResponse) for message in messages)


def _by_place(turns: Sequence[Turn]) -> dict[int, list[Exception]]:
    """The errors that are raised before each turn."""
    place, errors = 0, dict[int, list[Exception]]()
    for turn in turns:
        if isinstance(turn, Exception):
            errors.setdefault(place, []).append(turn)
        else:
            place += 1
    return errors


def _refuse_unsayable(turn: object, where: str) -> None:
    """Raises TypeError for what a model cannot say: heard of here, and not in the run that comes to it."""
    if isinstance(turn, Sequence) and not isinstance(turn, str):
        for part in cast("Sequence[object]", turn):
            if not isinstance(part, str | Call | Output):
                raise TypeError(f"{where} of the script has a part of type {type(part).__name__}; {_SAYABLE}")
    elif isinstance(turn, type) or not (isinstance(turn, str | Call | Output | Exception) or callable(turn)):
        raise TypeError(f"{where} of the script is a {type(turn).__name__}; {_SAYABLE}")


def _part(said: Part, info: AgentInfo, number: str) -> ModelResponsePart:
    match said:
        case str():
            return TextPart(said)
        case Call(tool, arguments, call_id):
            return ToolCallPart(tool, dict(arguments), tool_call_id=call_id or f"{tool}-{number}")
        case Output(value):
            assert info.output_tools, "this agent's output is text: let the script say a text instead of an Output"
            known: Any = json.loads(_json(value))
            arguments = cast("dict[str, Any]", known) if isinstance(known, dict) else {"response": known}
            return ToolCallPart(info.output_tools[0].name, arguments, tool_call_id=f"output-{number}")


def _json(value: Any) -> str:
    dump = getattr(value, "model_dump_json", None)
    return dump() if dump is not None else json.dumps(value)
