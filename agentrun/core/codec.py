"""Values to JSON text and back, digests, and size limits. Payloads are stored as JSON text, exactly as written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, Literal, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from agentrun.core.errors import InvalidRequest, InvalidResult, TooLarge

PLAIN = (type(None), bool, int, str)
"""Values of these very types are the same JSON whatever declares them, and come back as they were."""

DEEPEST = 200
"""How deep lists and objects may be nested. More than pydantic's reader takes apart, though its writer takes 254."""

_ANYTHING = TypeAdapter[Any](Any)

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_AMBIGUOUS = re.compile(r"\s|\\|\{[^}]|\d[.eE]|-0")
"""What can be written in more than one way: blanks, escapes, keys, fractions, minus zero."""

_WORDS = re.compile(r'"(?:NaN|-?Infinity)"')

_OTHER_TYPE = re.compile(
    r"^  Pydantic\w+UnexpectedValue\((?:(?P<said>Unexpected [a-z ]+)\)$|"
    r"Expected `(?P<expected>[^`\n]+)` - serialized value may not be as expected \[(?:field_name='(?P<field>\w+)', )?"
    r".*?(?:\binput_type=(?P<came>[\w.]+)\])?\)$)",
    re.MULTILINE,
)
"""A line of pydantic's about a value that is no instance of its declaration. What is between holds the value."""


def encode(value: Any, *, what: str) -> str:
    """JSON text of `value`. Raises InvalidRequest where it is not JSON; `what` names it in the message."""
    try:
        return _readable(_text(value))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{what} cannot be stored as JSON: {_unwritable(error)}; pass JSON values, pydantic models or dataclasses"
        ) from None


def decode(text: str | None) -> Any:
    """The JSON value of a stored text; None for nothing stored."""
    return None if text is None else json.loads(text)


def adapter_of(declared: Any) -> TypeAdapter[Any]:
    """What writes values of a declared type and reads them back. Raises pydantic's errors for a type unknown to it."""
    try:
        # JSON knows no NaN and no infinity. As words they come back as they were; null would be another value.
        return TypeAdapter(declared, config=ConfigDict(ser_json_inf_nan="strings"))
    except PydanticUserError:
        # A model says itself how it is stored; `dumped` looks after its numbers.
        return TypeAdapter(declared)


def dumped(adapter: TypeAdapter[Any], value: Any, *, warnings: Literal[False, "error"]) -> str:
    """JSON text of a value of a declared type. Raises ValueError where there is none; pydantic's `warnings` too."""
    text = adapter.dump_json(value, warnings=warnings).decode()
    if "null" not in text:
        return text
    # A model writes null for a NaN, whatever the adapter says. In Python's own values it is still there.
    return _in_words(
        text,
        lambda: adapter.dump_python(value, warnings=False),
        lambda: adapter.dump_python(value, mode="json", warnings=False),
    )


def checked_result(adapter: TypeAdapter[Any], value: Any, *, of: str) -> str:
    """JSON text of what a body or remote step returned. Raises InvalidResult where that is not what it promised, or
    would not come back from its text; `of` says whose it is."""
    try:
        checked = adapter.validate_python(value)
        text = dumped(adapter, checked, warnings=False)
    except ValidationError as error:
        raise InvalidResult(f"{of} returned what its annotation does not allow: {explain(error)}") from None
    except ValueError as error:
        raise InvalidResult(f"{of} returned {unwritable(error)}") from None
    read_back(checked, text, adapter.validate_json, of=of)
    return text


def read_back(value: Any, text: str, decode: Callable[[str], Any], *, of: str) -> Any:
    """What a replay makes of a result's text. Raises InvalidResult where that is not what was returned; `of` says whose
    result it is."""
    if type(value) in PLAIN:
        return value
    try:
        back = decode(text)
    except Exception as error:
        raise InvalidResult(
            f"{of} returned what cannot be read back from its JSON as what its annotation says: {misfit(error)}"
        ) from None
    if _turned_into_words(value, back, text, decode):
        raise InvalidResult(
            f"{of} returned NaN or an infinity where its annotation allows text as well: it would come back as text; "
            "return None or text in its place"
        )
    return back


def unwritable(error: ValueError) -> str:
    """What is wrong with a value that has no JSON text, without the value."""
    told = str(error)
    if told.startswith("Pydantic serializer warnings:"):
        # The same line comes for each alternative of a union and each element of a list.
        why = "; ".join(list(dict.fromkeys(map(_expected, _OTHER_TYPE.finditer(told))))[:5])
        return f"what its annotation does not allow{': ' if why else ''}{why}"
    if "invalid utf-8" in told:
        return f"{_NOT_TEXT}, which JSON cannot hold; return text (base64), or store them elsewhere"
    return f"what cannot be stored as JSON: {told}"


def misfit(error: Exception) -> str:
    """Why a text could not be read, without what it says."""
    return explain(error) if isinstance(error, ValidationError) else type(error).__name__


def explain(error: ValidationError) -> str:
    """Which members are wrong and why, without their values."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(_problem(".".join(map(str, p["loc"])), p["msg"]) for p in problems[:5])


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


def _in_words(text: str, plain: Callable[[], Any], jsonable: Callable[[], Any]) -> str:
    """`text`, with words in place of the nulls that stand for numbers that JSON does not know.

    `plain` has all numbers, and JSON may be made of it otherwise than the model has it (bytes, say); `jsonable` is as
    the model has it, and of what a field of `Any` holds, the numbers are null there too. Raises ValueError where one
    stays null.
    """
    numbers = plain()
    said = _same_but_for_words(numbers, text)
    if said is not None:
        return said
    said = _same_but_for_words(jsonable(), text) or text
    if _lost(numbers, json.loads(said)):
        raise ValueError("NaN or an infinity in it would become null")
    return said


def _same_but_for_words(value: Any, text: str) -> str | None:
    try:
        said = to_json(value, inf_nan_mode="strings").decode()
    except PydanticSerializationError:
        return None
    # What can be gone through once (a generator) has nothing left to say the second time.
    return said if said == text or _WORDS.sub("null", said) == _WORDS.sub("null", text) else None


def _lost(value: Any, stored: Any) -> bool:
    """Whether a number that JSON does not know is null in what is stored."""
    match value, stored:
        case float(), None:
            return True
        case dict(), dict():
            members, others = cast("dict[Any, Any]", value), cast("dict[str, Any]", stored)
            return any(_lost(member, others[name]) for name, member in members.items() if name in others)
        case ((list() | tuple()), list()):
            return any(map(_lost, cast("list[Any]", value), cast("list[Any]", stored)))
        case _:
            return False


def _text(value: Any) -> str:
    text = to_json(value, inf_nan_mode="strings").decode()
    if type(value) in PLAIN or "null" not in text:
        return text
    return _in_words(
        text,
        lambda: _ANYTHING.dump_python(value, warnings=False),
        lambda: to_jsonable_python(value, inf_nan_mode="strings"),
    )


def _readable(text: str) -> str:
    """`text` itself. Raises ValueError where it is nested deeper than whoever has to read it can."""
    if text.count("[") + text.count("{") > DEEPEST:
        try:
            from_json(text, cache_strings=False)
        except ValueError as error:
            if "recursion limit" in str(error):
                raise ValueError(_TOO_DEEP) from None
    return text


_TOO_DEEP = f"it is nested more than {DEEPEST} deep, and nobody could read it back"
_NOT_TEXT = "bytes that are not UTF-8"


def _unwritable(error: Exception) -> str:
    if "serialization depth" in str(error):
        return _TOO_DEEP
    return _NOT_TEXT if "invalid utf-8" in str(error) else str(error)


def _expected(found: re.Match[str]) -> str:
    where = f"{found['field']}: " if found["field"] else ""
    if found["expected"] is None:
        return where + found["said"].lower().strip()
    return f"{where}expected {found['expected']}" + (f", got {found['came']}" if found["came"] else "")


def _problem(where: str, told: str) -> str:
    # Of the whole, pydantic says "Input should be a finite number".
    return f"{where}: {told}" if where else re.sub("^Input ", "it ", told)


def _turned_into_words(value: Any, back: Any, text: str, decode: Callable[[str], Any]) -> bool:
    """Whether a number that JSON does not know comes `back` from its `text` as the word for it, as text.

    Where anything may stand (no annotation, `Any`), plain JSON is what is promised, and the word is that.
    """
    if _WORDS.search(text) is None or not _turned(value, back):
        return False
    try:
        decode(_WORDS.sub("[[{}]]", text))
    except ValueError:
        return True
    return False


def _turned(value: Any, back: Any) -> bool:
    """Goes through what may be gone through twice; what is inside of models is in their `__dict__`."""
    match value, back:
        case float(), str():
            return True
        case dict(), dict():
            members, others = cast("dict[Any, Any]", value), cast("dict[Any, Any]", back)
            return any(_turned(member, others.get(name)) for name, member in members.items())
        case ((list() | tuple()), (list() | tuple())):
            return any(map(_turned, cast("list[Any]", value), cast("list[Any]", back)))
        case _ if hasattr(value, "__dict__") and hasattr(back, "__dict__"):
            return _turned(vars(value), vars(back))
        case _:
            return False
