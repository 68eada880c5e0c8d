"""The asynchronous client has every verb of the other one, takes the same of each, and is restricted alike."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from agentrun import Actor, AsyncClient, Client, Forbidden, NotFound, Scope

OTHERWISE = {"close": "aclose"}
ITS_OWN = {"aclose"}


def verbs(face: type) -> dict[str, Any]:
    return {name: each for name, each in inspect.getmembers(face, inspect.isfunction) if name[0] != "_"}


def taken(verb: Any) -> dict[str, tuple[Any, Any]]:
    """What a verb takes by name: whether it must be given, and its type. Options of a TypedDict are those of a verb."""
    hints = get_type_hints(verb)
    said: dict[str, tuple[Any, Any]] = {}
    for name, each in list(inspect.signature(verb).parameters.items()):
        if name == "self":
            continue
        if each.kind is each.VAR_KEYWORD:
            (options,) = hints[name].__args__
            said |= {option: (False, of) for option, of in get_type_hints(options).items()}
        else:
            said[name] = (each.default is each.empty, hints[name])
    return said


def test_it_has_every_verb_of_the_other_one() -> None:
    assert {OTHERWISE.get(name, name) for name in verbs(Client)} == set(verbs(AsyncClient))


@pytest.mark.parametrize("verb", sorted(set(verbs(AsyncClient)) - ITS_OWN))
def test_a_verb_takes_what_the_others_takes(verb: str) -> None:
    assert taken(getattr(AsyncClient, verb)) == taken(getattr(Client, verb))


def test_it_is_made_with_what_the_other_one_is_made_with() -> None:
    assert taken(AsyncClient.__init__) == taken(Client.__init__)


async def test_a_view_for_an_actor_checks_its_scopes(async_client: AsyncClient) -> None:
    run_id = await async_client.enqueue("anything", owner="ann")
    ann, eve = (async_client.acting(Actor(name, frozenset({Scope.CANCEL}))) for name in ("ann", "eve"))
    assert (await ann.status(run_id)).id == run_id
    with pytest.raises(NotFound):
        await eve.status(run_id)
    with pytest.raises(Forbidden, match="`eve` may not enqueue"):
        await eve.enqueue("anything")
    with pytest.raises(NotFound):
        await eve.signal(run_id, "go", by="eve")


async def test_its_own_verbs_answer(async_client: AsyncClient) -> None:
    run_id = await async_client.enqueue("anything", owner="ann")
    assert await async_client.waits(run_id) == []
    assert await async_client.redrivable() == []
    await async_client.set_budget("ann", period="day", max_tokens=7)
    assert [each["max_tokens"] for each in await async_client.budgets("ann")] == [7]
