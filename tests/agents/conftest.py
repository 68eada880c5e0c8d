"""Scripted models that count what they are asked, and segments that die after a chosen commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from pydantic_ai import models
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from agentrun import Client, Run, Status
from agentrun.runtime.engine import Engine
from agentrun.store.batches import Write
from agentrun.store.database import Database


@pytest.fixture(autouse=True)
def no_real_models() -> Iterator[None]:
    """A test that would ask a real model fails."""
    before, models.ALLOW_MODEL_REQUESTS = models.ALLOW_MODEL_REQUESTS, False
    yield
    models.ALLOW_MODEL_REQUESTS = before


Turn = str | list[tuple[str, dict[str, Any]]] | list[ToolCallPart]


@dataclass
class Script:
    """A model that says what stands in `turns`, one after the other, by the number of its answers so far.

    A turn is a text, or calls: `("tool", {arguments})` with ids of their own, or parts. `asked` has the messages of
    every request that really reached the model.
    """

    turns: list[Turn]
    asked: list[list[ModelMessage]] = field(default_factory=list[list[ModelMessage]])

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self._answer, model_name="scripted")

    @property
    def calls(self) -> int:
        return len(self.asked)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        said = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(
            parts=list(parts(self.turns[said], said)), usage=RequestUsage(input_tokens=10, output_tokens=5)
        )


def parts(turn: Turn, number: int) -> Iterator[TextPart | ToolCallPart]:
    """The parts of one answer."""
    if isinstance(turn, str):
        yield TextPart(turn)
        return
    for index, call in enumerate(turn):
        yield call if isinstance(call, ToolCallPart) else ToolCallPart(*call, tool_call_id=f"call-{number}-{index}")


class Killed(BaseException):
    """The process is gone: nothing it still does reaches the database."""


EXPIRE = """UPDATE agentrun.runs SET lease_expires_at = now() - interval '1 second'
            WHERE id = %s AND lease_expires_at IS NOT NULL"""


@dataclass
class Ward:
    """Runs segments in engines of their own, and lets them die."""

    client: Client
    database: Database
    make_engine: Callable[..., Engine]
    sweep: Callable[[], Any]

    def run(self, run_id: UUID) -> Run:
        """One segment in a fresh engine, to its end."""
        self.make_engine().run(run_id)
        return self.client.status(run_id)

    def commits(self, run_id: UUID) -> int:
        """How many commits a segment makes from its claim to its end."""
        engine = self.make_engine()
        count = self._counting(engine, last=None)
        engine.run(run_id)
        return count[0]

    def die_after(self, run_id: UUID, commit: int) -> None:
        """One segment, whose process dies after its n-th commit; then its lease runs out and the sweep takes it."""
        engine = self.make_engine()
        self._counting(engine, last=commit)
        with pytest.raises(Killed):
            engine.run(run_id)
        self.expire(run_id)

    def expire(self, run_id: UUID) -> None:
        """Let the run's lease run out, and sweep. Again where the dead engine's heartbeat renewed it in between."""
        for _ in range(20):
            with self.database.transaction() as connection:
                connection.execute(EXPIRE, [run_id])
            self.sweep()
            if self.client.status(run_id).status is not Status.RUNNING:
                return

    @staticmethod
    def _counting(engine: Engine, *, last: int | None) -> list[int]:
        write, count = engine.writer.write, [0]

        async def counted(each: Write) -> Any:
            if last is not None and count[0] >= last:
                raise Killed
            # The dead hear of nothing before it has committed.
            each.seen = None
            rows = await write(each)
            # What can be looked for after a lost answer is what is committed; the others are reads.
            count[0] += each.landed is not None
            if count[0] == last:
                raise Killed
            return rows

        engine.writer.write = counted  # pyright: ignore[reportAttributeAccessIssue]
        return count


@pytest.fixture
def ward(client: Client, database: Database, make_engine: Callable[..., Engine], sweep: Callable[[], Any]) -> Ward:
    """Segments that die when they are told to."""
    return Ward(client, database, make_engine, sweep)
