"""What cannot be registered is refused when it is, in words: not in the first run that needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Actor, Client, Context, InvalidRequest, durable, effect, remote_step
from agentrun.core.errors import ConfigurationError
from agentrun.runtime import hooks
from agentrun.runtime.kinds import registry


async def no_context(*, ctx: Context) -> None: ...


async def whatever(*ctx: Context) -> None: ...


async def by_place(ctx: Context, of: int, /) -> None: ...


async def none_at_all() -> None: ...


async def unread(ctx: Context, of: Missing) -> None: ...  # noqa: F821 # type: ignore[name-defined]


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (lambda: durable(none_at_all), r'`@durable` needs the name .*`@durable\("none-at-all"\)`'),
        (lambda: remote_step(none_at_all), r'`@remote_step` needs the name .*`@remote_step\("none-at-all"\)`'),
        (lambda: durable(7), r"the name of a kind must be 1 to 200 characters .* not 7"),
        (lambda: durable(" q"), r"without blanks around it, not ' q'"),
        (lambda: remote_step(""), r"the name of a remote step must be 1 to 200"),
        (lambda: durable("q")(int), r"the body of kind `q` must be a function, not <class 'int'>"),
        (lambda: durable("q")("no"), r"must be a function, not 'no'"),
        (lambda: durable("q")(min), r"must be a function whose signature can be read"),
        (lambda: remote_step("q")(dict), r"remote step `q` must be a function, not <class 'dict'>"),
        (lambda: durable("q")(no_context), r"must take the context first .*: def no_context\(ctx: Context"),
        (lambda: durable("q")(whatever), r"must take the context first"),
        (lambda: durable("q")(by_place), r"must take the context first and then named parameters"),
        (lambda: durable("q")(none_at_all), r"must take the context first"),
        (lambda: remote_step("q")(whatever), r"remote step `q` must take named parameters: def whatever\(doc"),
        (lambda: durable("q")(unread), r"annotation of the body of kind `q` cannot be read: name 'Missing'.*import"),
        (lambda: remote_step("q", reconcile="ask"), r"`reconcile` of remote step `q` must be a function"),
        (lambda: effect("read_only", reconcile=True), r"`reconcile` of an effect must be a function"),
        (lambda: hooks.on_waiting("page me"), r"a hook for `waiting` must be a function, not 'page me'"),
    ],
)  # fmt: skip
def test_what_cannot_be_registered_is_refused_at_once_with_what_to_write(
    register: Callable[[], Any], says: str
) -> None:
    before = registry.names()
    with pytest.raises(ConfigurationError, match=says):
        register()
    assert registry.names() == before


def test_a_request_that_does_not_fit_hears_what_the_body_takes(client: Client) -> None:
    @durable("of-two")
    async def of_two(ctx: Context, name: str, age: int) -> None: ...

    @durable("of-one")
    async def of_one(ctx: Context, number: int) -> None: ...

    with pytest.raises(InvalidRequest, match="the body takes an object of `name`, `age`"):
        client.enqueue("of-two", "ann")
    with pytest.raises(InvalidRequest, match="the body takes it as `number`"):
        client.enqueue("of-one", "ann")


def test_who_acts_has_a_name(client: Client) -> None:
    @durable("any")
    async def any_kind(ctx: Context) -> None: ...

    run_id = client.enqueue("any")
    for verb in (client.cancel, client.redrive, client.approve, client.take_step, client.redispatch):
        for empty in ("", " "):
            with pytest.raises(InvalidRequest, match="by is a name for the record, and this one is empty"):
                verb(run_id, by=empty)


def test_an_actor_has_a_name() -> None:
    for empty in ("", "  ", None):
        with pytest.raises(InvalidRequest, match="an Actor's id is who acts"):
            Actor(empty)  # pyright: ignore[reportArgumentType]
