"""Kinds: bodies registered under a name, with types for request and result. Importing a module registers its own."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError, create_model

from agentrun.core.codec import adapter_of, checked_result, encode, explain
from agentrun.core.errors import ConfigurationError, InvalidRequest, UnknownKind
from agentrun.runtime.options import Options, Retries, options_of
from agentrun.runtime.signatures import after_context, registered_name, signature_of

Body = Callable[..., Any]
B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class Kind:
    """A registered body. `spread` bodies take the request's members as arguments, the others the request itself."""

    name: str
    body: Body
    request: TypeAdapter[Any]
    result: TypeAdapter[Any]
    takes: tuple[str, ...]
    spread: bool
    options: Options = field(default_factory=Options)
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_async(self) -> bool:
        """Whether the body is a coroutine function: it runs on the loop, others get a thread."""
        return inspect.iscoroutinefunction(self.body)

    def encode_request(self, request: Any) -> str:
        """JSON text of a request. Raises InvalidRequest where it does not fit the body's types."""
        text = encode(request, what=f"the request of kind `{self.name}`")
        self.decode_request(text)
        return text

    def decode_request(self, text: str) -> Any:
        """The typed request. Raises InvalidRequest, naming the members that do not fit and never their values."""
        try:
            return self.request.validate_json(text)
        except ValidationError as error:
            raise InvalidRequest(
                f"the request does not fit kind `{self.name}`: {explain(error)}; the body takes "
                f"{taken(self.takes, spread=self.spread)}"
            ) from None

    def encode_result(self, result: Any) -> str:
        """JSON text of what the body returned. Raises InvalidResult where that is not what it promised."""
        return checked_result(self.result, result, of=f"kind `{self.name}`")

    def call(self, context: Any, request: Any) -> Any:
        """Call the body: a coroutine for `async def`, the result itself for `def`."""
        if self.spread:
            return self.body(context, **{name: getattr(request, name) for name in self.takes})
        return self.body(context, request) if self.takes else self.body(context)


class Registry:
    """The kinds of one process."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        self._told: tuple[dict[str, Kind], dict[str, Any]] = ({}, {"kinds": [], "options": "{}"})

    def add(self, kind: Kind) -> None:
        """Register. Raises ConfigurationError where another body has the name."""
        there = self._kinds.get(kind.name)
        if there is not None and _source(there.body) != _source(kind.body):
            raise ConfigurationError(
                f"kind `{kind.name}` is registered twice: by {_source(there.body)} and {_source(kind.body)}"
            )
        self._kinds[kind.name] = kind

    def get(self, name: str) -> Kind | None:
        """The kind, or None where this process does not know it."""
        return self._kinds.get(name)

    def require(self, name: str) -> Kind:
        """The kind. Raises UnknownKind, with the near miss."""
        kind = self._kinds.get(name)
        if kind is None:
            raise UnknownKind(unknown(name, self.names(), here=True))
        return kind

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted."""
        return tuple(sorted(self._kinds))

    def of_claims(self) -> dict[str, Any]:
        """Parameters of every claim: which kinds this process knows, and what they override of the settings. The
        producer of a run may not have known its kind."""
        kinds, said = self._told
        if kinds != self._kinds:
            options = {name: of for name, kind in self._kinds.items() if (of := kind.options.overrides())}
            said = {"kinds": list(self.names()), "options": json.dumps(options)}
            self._told = dict(self._kinds), said
        return said

    def load(self, modules: tuple[str, ...]) -> None:
        """Import the modules that register kinds, also out of the folder in which the process was started.

        Raises ConfigurationError naming the one that cannot be.
        """
        if modules:
            _look_here_too()
        for module in modules:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not module.startswith(error.name):
                    raise
                raise ConfigurationError(
                    f"AGENTRUN_IMPORTS names `{module}`, which cannot be imported ({error}); "
                    "run from the folder that holds it, or set PYTHONPATH"
                ) from None


def _look_here_too() -> None:
    # The `celery` command has its folder on the path only until it has found its application.
    with contextlib.suppress(FileNotFoundError):
        here = str(Path.cwd())
        if not {"", here} & set(sys.path):
            # Last, so that nothing in it hides what others import.
            sys.path.append(here)


registry = Registry()
"""This process's kinds."""


def durable(
    name: str,
    *,
    queue: str | None = None,
    max_requeues: int | None = None,
    timeout: timedelta | float | None = None,
    lease_seconds: float | None = None,
    retries: Retries | int | None = None,
    four_eyes: bool = False,
) -> Callable[[B], B]:
    """Register a function as the body of the kind `name`; the function itself stays as it is.

    Its first parameter is the context. With one more, that is the request; with several, the request is an object of
    their names. `timeout` (seconds or timedelta) is the run's deadline from its enqueueing; `retries` is what
    `ctx.step` uses by default; `max_requeues` and `lease_seconds` override the settings. With `four_eyes`, no approval
    of a run is given by the run's owner.

    Raises ConfigurationError where the signature or an option cannot be used, or the name is taken.
    """
    options = options_of(
        registered_name("kind", "durable", name),
        queue=queue,
        max_requeues=max_requeues,
        timeout=timeout,
        lease_seconds=lease_seconds,
        retries=retries,
        four_eyes=four_eyes,
    )

    def register(body: B) -> B:
        registry.add(kind_of(name, body, options))
        return body

    return register


def kind_of(name: str, body: Body, options: Options | None = None) -> Kind:
    """A kind from a function's signature, without registering it."""
    of = f"the body of kind `{registered_name('kind', 'durable', name)}`"
    parameters, hints = signature_of(of, body)
    takes = after_context(of, body, parameters)
    spread = len(takes) > 1
    result = hints.get("return", Any)
    return Kind(
        name=name,
        body=body,
        request=spread_request(name, takes, hints) if spread else plain_request(takes, hints),
        result=adapter_of(Any if result is None else result),
        takes=tuple(parameter.name for parameter in takes),
        spread=spread,
        options=options or Options(),
    )


def taken(names: tuple[str, ...], *, spread: bool) -> str:
    """What a function takes, for the message of what does not fit."""
    if not spread:
        return f"it as `{names[0]}`" if names else "none"
    return f"an object of {', '.join(f'`{name}`' for name in names)}"


def unknown(name: str, known: tuple[str, ...], *, what: str = "kind", here: bool = False) -> str:
    """The message for what nobody has registered under that name, or (`here`) not this process."""
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"registered: {', '.join(known) or 'none'}"
    where = " in this process" if here else ""
    return f"no {what} `{name}` is registered{where}; {hint} (AGENTRUN_IMPORTS names the modules that register {what}s)"


def plain_request(takes: list[inspect.Parameter], hints: Mapping[str, Any]) -> TypeAdapter[Any]:
    """The request is the one argument itself."""
    return TypeAdapter(hints.get(takes[0].name, Any) if takes else Any)


def spread_request(name: str, takes: list[inspect.Parameter], hints: Mapping[str, Any]) -> TypeAdapter[Any]:
    """The request is an object of the arguments' names."""
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is inspect.Parameter.empty else p.default) for p in takes
    }
    return TypeAdapter(create_model(f"Request of {name}", __config__={"extra": "forbid"}, **fields))


def _source(body: Body) -> str:
    return f"{getattr(body, '__module__', '?')}.{getattr(body, '__qualname__', repr(body))}"
