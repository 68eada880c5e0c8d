"""Which deferred calls of an agent's tools people answer with data, and what is asked of them.

It owns the rules. It never asks anybody: that is `forms.py`, by way of `asking.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from agentrun.core.errors import BodyError
from agentrun.runtime.schemas import checked_default, checked_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What is asked where the calls of one tool wait for data: a pydantic model or a JSON schema; any JSON without one.

    `role`, `expires` (seconds or a timedelta), `on_expiry`, `default`, `escalate_to` and `remind` are as for
    `ctx.input`. Raises ValueError where the schema is none, or is not kept by `default` where that is to be the answer.
    """

    schema: type[BaseModel] | Mapping[str, Any] | None = None
    role: str | None = None
    expires: timedelta | float | None = None
    on_expiry: Literal["fail", "default", "escalate"] = "fail"
    default: Any = None
    escalate_to: str | None = None
    remind: timedelta | float | None = None

    def __post_init__(self) -> None:
        try:
            if self.on_expiry == "default":
                checked_default(self.answer_of_nobody, self.asked_schema)
            else:
                checked_schema(self.asked_schema)
        except BodyError as error:
            raise ValueError(str(error)) from None

    @property
    def asked_schema(self) -> Mapping[str, Any]:
        """As JSON."""
        schema = self.schema or {}
        return schema.model_json_schema() if isinstance(schema, type) else schema

    @property
    def answer_of_nobody(self) -> Any:
        """The default as JSON."""
        return to_jsonable_python(self.default)


Asked = Input | type[BaseModel] | Mapping[str, Any] | Literal[True]
"""An Input, its schema alone, or True for any JSON."""


def as_inputs(said: Mapping[str, Asked] | None) -> dict[str, Input]:
    """The operator's word on tools. Raises ValueError naming the tool."""
    found: dict[str, Input] = {}
    for tool, wish in (said or {}).items():
        try:
            found[tool] = _as_input(wish)
        except ValueError as error:
            raise ValueError(f"inputs: `{tool}`: {error}") from None
    return found


def _as_input(wish: object) -> Input:
    if isinstance(wish, Input):
        return wish
    if wish is True:
        return Input()
    if isinstance(wish, Mapping) or (isinstance(wish, type) and issubclass(wish, BaseModel)):
        return Input(schema=cast("type[BaseModel] | Mapping[str, Any]", wish))
    raise ValueError(f"{wish!r} is neither True, nor a pydantic model, nor a JSON schema, nor an Input")
