"""Values to JSON text and back, digests, and size limits. Payloads are stored as JSON text, exactly as written."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from agentrun.core.errors import InvalidRequest, TooLarge

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_AMBIGUOUS = re.compile(r"\s|\\|\{[^}]|\d[.eE]|-0")
"""What can be written in more than one way: blanks, escapes, keys, fractions, minus zero."""


def encode(value: Any, *, what: str) -> str:
    """JSON text of `value`. Raises InvalidRequest where it is not JSON; `what` names it in the message."""
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{what} cannot be stored as JSON: {error}; pass JSON values, pydantic models or dataclasses"
        ) from None


def decode(text: str | None) -> Any:
    """The JSON value of a stored text; None for nothing stored."""
    return None if text is None else json.loads(text)


def canonical(text: str) -> str:
    """JSON text with sorted keys and no blanks: equal values have equal texts."""
    return _CANONICAL.encode(json.loads(text)) if _AMBIGUOUS.search(text) else text


def digest(text: str) -> str:
    """Hex SHA-256 of a JSON text's canonical form: names arguments without showing them."""
    return hashlib.sha256(canonical(text).encode("utf-8", "surrogatepass")).hexdigest()


def within(text: str, limit: int, *, what: str, setting: str) -> str:
    """`text` itself. Raises TooLarge where it is over `limit` bytes; `setting` is the variable that says so."""
    if 4 * len(text) <= limit:
        return text  # a character has four bytes at most, and most texts are far from any limit
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise TooLarge(
            f"{what} has {size:,} bytes of JSON, over the limit of {limit:,}; "
            f"store it elsewhere and pass a reference, or raise {setting}"
        )
    return text
