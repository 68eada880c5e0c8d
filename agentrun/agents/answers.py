"""What tools answer, as it is stored: a plain result as itself, pydantic-ai's control flow under a reserved member.

So the journal reads as what tools returned, and what an operator or a reconcile function says is a tool's result
like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

RESERVED = "$tool"
_FILES = "content_file_digests"
_RETURNED = frozenset({"tool_return", "tool_content_result"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool call came to, in pydantic-ai's own JSON form (`CallToolResult`)."""

    payload: Any

    @property
    def kind(self) -> str:
        """`tool_return`, or the control flow that the tool raised: `model_retry`, `approval_required`, …"""
        return str(self.payload["kind"])

    @property
    def returned(self) -> bool:
        """Whether the tool returned, rather than raised."""
        return self.kind in _RETURNED


def stored(value: Any) -> str:
    """JSON text of an Answer, or of a plain result that somebody gave in its place. Raises ValueError."""
    return to_json(_plain(value.payload) if isinstance(value, Answer) else value, inf_nan_mode="strings").decode()


def says_it_returned(text: str) -> bool:
    """Whether stored text is what a tool returned, rather than what it raised to say that nothing happened."""
    said: Any = json.loads(text)
    return not _is_reserved(said) or Answer(said[RESERVED]).returned


def loader(load: Callable[[object], Any]) -> Callable[[str], Any]:
    """Reads stored text back; `load` is pydantic-ai's codec."""

    def read(text: str) -> Any:
        said: Any = json.loads(text)
        if _is_reserved(said):
            return load(said[RESERVED])
        files = {} if isinstance(said, str | int | float | None) else {_FILES: list[str]()}
        return load({"kind": "tool_return", "result": said, **files})

    return read


def _plain(payload: Any) -> Any:
    """The result alone, where nothing but the result would be lost."""
    bare = payload["kind"] == "tool_return" and payload.keys() <= {"kind", "result", _FILES}
    if not bare or payload.get(_FILES) or _is_reserved(payload["result"]):
        return {RESERVED: payload}
    return payload["result"]


def _is_reserved(result: Any) -> bool:
    return isinstance(result, dict) and RESERVED in result
