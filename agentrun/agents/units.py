"""The inside of a step: pydantic-ai's handler, in the scope that agents inside it journal into, and its codec."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pydantic_ai.durable_exec import DurableOperation, durable_unit_scope
from pydantic_core import to_json

from agentrun.agents.scope import Scope, scoped

Operation = DurableOperation[Any, Any, Any]


def caller(operation: Operation, params: Any) -> Callable[[], Awaitable[Any]]:
    """Calls the operation's handler; agents that run inside it are one with it."""
    return partial(in_unit, operation, params, None)


async def in_unit(operation: Operation, params: Any, inside: Scope | None) -> Any:
    """Call the handler; agents that run inside it journal into `inside`."""
    with scoped(inside), durable_unit_scope():
        return await operation.handler(params)


def encoder(operation: Operation) -> Callable[[Any], str]:
    """JSON text of the handler's result. Raises ValueError and InvalidResult."""

    def encode(value: Any) -> str:
        return to_json(operation.result_codec.dump(value), inf_nan_mode="strings").decode()

    return encode


def decoder(operation: Operation) -> Callable[[str], Any]:
    """The handler's result from JSON text."""

    def decode(text: str) -> Any:
        return operation.result_codec.load(json.loads(text))

    return decode
