"""From what people type to values: durations, JSON, `name=value`. What cannot be read is wrong usage."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import typer

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "": 1.0}
_PART = r"(\d+(?:\.\d+)?)\s*(min|[smhd]?)"
_DURATION = re.compile(rf"(-?)\s*((?:{_PART}\s*)+)")


def duration(text: str) -> timedelta:
    """`90`, `90s`, `1h30m`, `2d`: a number alone is seconds."""
    matched = _DURATION.fullmatch(text.strip())
    if matched is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 90, 90s, 15m, 1h30m or 2d")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, matched[2]))
    try:
        return timedelta(seconds=-seconds if matched[1] else seconds)
    except OverflowError:
        raise typer.BadParameter(f"{text} is too long a duration") from None


def json_value(text: str) -> Any:
    """A JSON value, or the one on stdin for `-`."""
    if text == "-":
        # A service without one, or `<&-`.
        if sys.stdin is None:
            raise typer.BadParameter("stdin is closed, and - reads it; give the JSON itself, or send it on stdin")
        text = sys.stdin.read()
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(
            f'this is not JSON: {error}. Quote it for the shell, as in \'{{"day": "2026-11-29"}}\', '
            "or give - and send it on stdin"
        ) from None


def attributes(pairs: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs. A value is JSON where it reads as JSON, else text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is no name=value")
        try:
            found[name] = json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            found[name] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
