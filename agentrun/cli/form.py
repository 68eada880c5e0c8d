"""A form in the terminal from a JSON schema: one question per member, repeated until the answer fits."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, cast

import typer

from agentrun.core.errors import InvalidAnswer, InvalidRequest
from agentrun.runtime.schemas import fits


def filled(asks: Mapping[str, Any]) -> Any:
    """Ask on the terminal for data that fits the schema. Raises InvalidRequest where there is no terminal."""
    schema: Mapping[str, Any] = asks["schema"]
    if sys.stdin is None or not typer.get_text_stream("stdin").isatty():
        raise InvalidRequest("there is no terminal to ask on; give the data as JSON, or - and send it on stdin")
    typer.echo(asks.get("question", ""), err=True)
    if schema.get("type") != "object":
        return _asked("answer", schema, required=True)
    members = cast("Mapping[str, Mapping[str, Any]]", schema.get("properties", {}))
    required = set(cast("list[str]", schema.get("required", [])))
    found = {
        name: _asked(name, _resolved(member, schema), required=name in required) for name, member in members.items()
    }
    return {name: value for name, value in found.items() if value is not None or name in required}


def _asked(name: str, schema: Mapping[str, Any], *, required: bool) -> Any:
    """One member; asked again until it fits."""
    while True:
        said = typer.prompt(_label(name, schema), default=None if required else "", show_default=False, err=True)
        if said == "" and not required:
            return None
        value = _value(said, schema)
        try:
            fits(value, schema)
        except InvalidAnswer as error:
            typer.echo(str(error).removesuffix("; nothing was recorded"), err=True)
            continue
        return value


def _label(name: str, schema: Mapping[str, Any]) -> str:
    choices = f" ({', '.join(map(str, schema['enum']))})" if "enum" in schema else f" [{schema.get('type', 'JSON')}]"
    return f"{schema.get('description') or schema.get('title') or name}{choices}"


def _value(said: str, schema: Mapping[str, Any]) -> Any:
    """Text where text is asked for, else JSON where it reads as JSON."""
    if schema.get("type") == "string":
        return said
    try:
        return json.loads(said)
    except ValueError:
        return said


def _resolved(member: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = member.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        return schema.get("$defs", {}).get(reference.removeprefix("#/$defs/"), member) | {"$defs": schema["$defs"]}
    return member
