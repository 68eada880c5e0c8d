"""JSON schemas of what waits ask for: checked themselves when a body asks, and kept to when somebody answers.

They are data from bodies and tools: nothing that they refer to is ever fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from agentrun.core.errors import BodyError, InvalidAnswer


def checked_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema as plain JSON. Raises BodyError where no data could be checked by it: before anything is stored."""
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BodyError(f"the schema of an input cannot be stored as JSON: {error}") from None
    problem = _problem_of(text)
    if problem is not None:
        raise BodyError(f"the schema of an input is no JSON schema: {problem}; correct it where the input is asked for")
    return json.loads(text)


def checked_default(default: Any, schema: Mapping[str, Any]) -> None:
    """Raises BodyError where the answer that stands in for nobody's is none that somebody could give."""
    try:
        fits(default, schema)
    except InvalidAnswer as error:
        raise BodyError(f"the default of an input does not fit its schema: {error}") from None


def fits(data: Any, schema: Mapping[str, Any]) -> None:
    """Raises InvalidAnswer where `data` does not fit the JSON schema: which members, and why, without their values."""
    leading: Any = import_module("jsonschema.exceptions").best_match
    try:
        checking = _validator(schema)
        checking.check_schema(schema)
        problem: Any = leading(checking.iter_errors(data))
    except _broken() as error:
        raise InvalidAnswer(f"the wait's schema is no JSON schema: {_said(error)}; its run has to ask anew") from None
    if problem is not None:
        where = ".".join(str(part) for part in problem.absolute_path) or "it"
        raise InvalidAnswer(f"the data does not fit: {where} breaks `{problem.validator}`; nothing was recorded")


@lru_cache(maxsize=256)
def _problem_of(text: str) -> str | None:
    """What is wrong with a schema; asked again at every replay of its body, hence remembered."""
    schema = json.loads(text)
    try:
        _validator(schema).check_schema(schema)
        _resolve_references(schema)
    except _broken() as error:
        return _said(error)
    return None


def _validator(schema: Mapping[str, Any]) -> Any:
    validators: Any = import_module("jsonschema.validators")
    # A registry of its own: a schema must not make this process fetch what it refers to.
    registry: Any = import_module("referencing").Registry()
    checks = validators.validator_for(schema)
    return checks(schema, format_checker=checks.FORMAT_CHECKER, registry=registry)


def _resolve_references(schema: Any) -> None:
    """Raises Unresolvable where a reference does not lead somewhere within the schema."""
    # Here and above, imported when a schema is there to be checked: together they take 0.2 s, and most runs have none.
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    whole: Any = Resource[Any].from_contents(schema, default_specification=DRAFT202012)
    todo: list[tuple[Any, Any]] = [(whole, Registry[Any]().resolver_with_root(whole))]
    while todo:
        part, resolver = todo.pop()
        contents: Any = part.contents
        for name in ("$ref", "$dynamicRef") if isinstance(contents, dict) else ():
            if name in contents:
                resolver.lookup(contents[name])
        todo += [(each, resolver.in_subresource(each)) for each in part.subresources()]


def _broken() -> tuple[type[Exception], ...]:
    """What says that a schema is none."""
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    return (SchemaError, Unresolvable, re.error)


def _said(error: Exception) -> str:
    # Of a schema that is none, the message alone: the rest repeats the whole of it.
    return str(getattr(error, "message", error))
