"""Who may answer: the scope says so, and nobody learns of runs that are not theirs to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Client, Context, Status, durable
from agentrun.core.actors import Actor, Scope
from agentrun.core.errors import AlreadyDecided, Forbidden, NamespaceMismatch, NotFound
from agentrun.runtime.kinds import Registry
from agentrun.settings import Settings
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked

Verb = Callable[[Client, Any], Any]

VERBS: dict[str, tuple[Scope, Verb]] = {
    "approve": (Scope.APPROVE, lambda client, run_id: client.approve(run_id, by="x", key="a")),
    "reject": (Scope.APPROVE, lambda client, run_id: client.reject(run_id, by="x", key="a")),
    "input": (Scope.INPUT, lambda client, run_id: client.submit_input(run_id, 1, by="x", key="i")),
    "signal": (Scope.INPUT, lambda client, run_id: client.signal(run_id, "go", 1)),
    "cancel": (Scope.CANCEL, lambda client, run_id: client.cancel(run_id)),
    "waits": (Scope.READ, lambda client, run_id: client.waits(run_id)),
    "status": (Scope.READ, lambda client, run_id: client.status(run_id)),
    "events": (Scope.READ, lambda client, run_id: client.events(run_id)),
    "resume": (Scope.OPERATE, lambda client, run_id: client.resume(run_id)),
    "redrive": (Scope.OPERATE, lambda client, run_id: client.redrive(run_id)),
}


@pytest.fixture(autouse=True)
def desk(client: Client) -> None:
    @durable("desk")
    async def desk(ctx: Context) -> list[Any]:
        async def deciding() -> Any:
            said = await ctx.options(key="a").approval("sure?", role="clerk")
            return [said.approved, said.by]

        return await ctx.gather(
            deciding(), ctx.options(key="i").input("n?", schema={"type": "integer"}), ctx.signal("go")
        )


def actor(*scopes: Scope, name: str = "ann", roles: tuple[str, ...] = ("clerk",)) -> Actor:
    return Actor(name, frozenset(scopes), frozenset(roles))


def test_a_run_that_is_not_to_be_seen_is_not_there_for_any_verb(client: Client, parked: Parked, rows: Rows) -> None:
    """Unknown and forbidden look the same, to the letter."""
    run_id, unknown = parked("desk", owner="somebody"), "00000000-0000-7000-8000-000000000000"
    before = rows.stored(run_id)
    for name, (scope, verb) in VERBS.items():
        others = set(Scope) - {scope, Scope.READ}
        view = client.acting(actor(*others))
        with pytest.raises(NotFound) as forbidden:
            verb(view, run_id)
        with pytest.raises(NotFound) as missing:
            verb(view, unknown)
        assert str(forbidden.value).replace(str(run_id), "") == str(missing.value).replace(unknown, ""), name
        assert type(forbidden.value) is type(missing.value), name
    assert rows.stored(run_id) == before


def test_who_may_only_see_a_run_hears_what_is_missing(client: Client, parked: Parked, rows: Rows) -> None:
    run_id = parked("desk", owner="somebody")
    before = rows.stored(run_id)
    view = client.acting(actor(Scope.READ))
    for scope, verb in VERBS.values():
        if scope is not Scope.READ:
            with pytest.raises(Forbidden, match=scope):
                verb(view, run_id)
    assert rows.stored(run_id) == before


def test_an_owner_may_read_and_cancel_its_run_and_not_decide_it(client: Client, parked: Parked) -> None:
    run_id = parked("desk", owner="ann")
    view = client.acting(actor())
    assert view.status(run_id).id == run_id
    assert len(view.waits(run_id)) == 3
    for name in ("approve", "reject", "input", "signal", "resume"):
        with pytest.raises(Forbidden):
            VERBS[name][1](view, run_id)
    assert view.cancel(run_id).status is Status.CANCELLED


def test_each_scope_permits_its_verb_and_the_actors_id_is_recorded(client: Client, parked: Parked, go: Go) -> None:
    run_id = parked("desk", owner="somebody")
    client.acting(actor(Scope.APPROVE)).approve(run_id, by="ignored", key="a")
    client.acting(actor(Scope.INPUT, name="bob")).submit_input(run_id, 7, by="ignored", key="i")
    client.acting(actor(Scope.INPUT, name="cleo")).signal(run_id, "go", "now")
    assert go(run_id).result == [[True, "ann"], 7, "now"]
    told = {event.data["by"] for event in client.events(run_id) if event.type == "resolved"}
    assert told == {"ann", "bob", "cleo"}


def test_an_actor_may_be_given_to_one_decision(client: Client, parked: Parked) -> None:
    run_id = parked("desk", owner="somebody")
    with pytest.raises(NotFound):
        client.approve(run_id, by=actor(Scope.INPUT), key="a")
    client.approve(run_id, by=actor(Scope.APPROVE), key="a")


def test_the_inbox_shows_an_actor_what_it_may_see(client: Client, parked: Parked) -> None:
    mine, other = parked("desk", owner="ann"), parked("desk", owner="bob")
    assert {row["run_id"] for row in client.acting(actor()).inbox()} == {mine}
    assert {row["run_id"] for row in client.acting(actor(Scope.READ)).inbox()} == {mine, other}
    assert client.acting(actor(name="nobody")).inbox() == []


def test_budgets_are_for_operators(client: Client) -> None:
    stranger = client.acting(actor(*(set(Scope) - {Scope.OPERATE})))
    with pytest.raises(Forbidden, match=Scope.OPERATE):
        stranger.set_budget("ann", period="day", max_tokens=1)
    with pytest.raises(Forbidden, match=Scope.OPERATE):
        stranger.budgets()
    assert client.budgets() == []
    operator = client.acting(actor(Scope.OPERATE))
    operator.set_budget("ann", period="day", max_tokens=1)
    assert len(operator.budgets()) == 1


def test_what_can_be_redriven_is_listed_for_operators(client: Client) -> None:
    with pytest.raises(Forbidden, match=Scope.OPERATE):
        client.acting(actor(Scope.READ)).redrivable()
    assert client.acting(actor(Scope.OPERATE)).redrivable() == []


# ---- roles


@pytest.mark.parametrize("roles", [(), ("boss",)], ids=["none", "another"])
def test_what_is_put_to_a_role_is_decided_by_actors_of_that_role(
    client: Client, parked: Parked, go: Go, rows: Rows, roles: tuple[str, ...]
) -> None:
    @durable("for-clerks")
    async def for_clerks(ctx: Context) -> list[Any]:
        said = await ctx.approval("sure?", role="clerk")
        return [said.by, await ctx.input("n?", schema={"type": "integer"}, role="clerk")]

    run_id = parked("for-clerks", owner="somebody")
    before = rows.stored(run_id)
    other = client.acting(actor(*Scope, roles=roles))
    for verb in (other.approve, other.reject):
        with pytest.raises(Forbidden, match="`clerk`"):
            verb(run_id, by="x")
    with pytest.raises(Forbidden, match="`clerk`"):
        client.approve(run_id, by=actor(*Scope, roles=roles))
    assert rows.stored(run_id) == before
    client.acting(actor(Scope.APPROVE)).approve(run_id, by="x")
    go(run_id)
    with pytest.raises(Forbidden, match="`clerk`"):
        other.submit_input(run_id, 1, by="x")
    client.acting(actor(Scope.INPUT)).submit_input(run_id, 7, by="x")
    assert go(run_id).result == ["ann", 7]


def test_a_plain_name_is_nobodys_role_and_is_not_checked(client: Client, parked: Parked) -> None:
    run_id = parked("desk", owner="somebody")
    client.approve(run_id, by="the local operator", key="a")


def test_a_role_that_changes_between_reading_and_deciding_is_checked_again(
    client: Client, parked: Parked, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait was escalated: whoever read it as a clerk decides nothing that is the boss's by now."""
    run_id = parked("desk", owner="somebody")
    view = client.acting(actor(Scope.APPROVE))
    text = view.answers._text  # pyright: ignore[reportPrivateUsage]

    def meanwhile(value: Any) -> str:
        with rows.database.connection() as connection:
            connection.execute("UPDATE agentrun.waits SET role = 'boss' WHERE kind = 'approval'")
        return text(value)

    monkeypatch.setattr(view.answers, "_text", meanwhile)
    with pytest.raises(AlreadyDecided, match="another role"):
        view.approve(run_id, by="x", key="a")
    assert client.status(run_id).status is Status.WAITING


# ---- what is not to be seen


def test_another_namespaces_run_is_not_there_for_an_actor_and_elsewhere_for_the_operator(
    client: Client, settings: Settings, kinds: Registry, parked: Parked, rows: Rows
) -> None:
    run_id, unknown = parked("desk", owner="ann"), "00000000-0000-7000-8000-000000000000"
    before = rows.stored(run_id)
    with Client(settings=settings, namespace="other", kinds=kinds) as there:
        for _, verb in VERBS.values():
            with pytest.raises(NotFound) as elsewhere:
                verb(there.acting(actor(*Scope)), run_id)
            with pytest.raises(NotFound) as missing:
                verb(there.acting(actor(*Scope)), unknown)
            assert type(elsewhere.value) is type(missing.value) is NotFound
            assert str(elsewhere.value).replace(str(run_id), "") == str(missing.value).replace(unknown, "")
        with pytest.raises(NotFound) as elsewhere:
            there.approve(run_id, by=actor(*Scope), key="a")
        assert type(elsewhere.value) is NotFound, "the actor of one decision, too"
        with pytest.raises(NamespaceMismatch, match="AGENTRUN_NAMESPACE"):
            there.approve(run_id, by="the local operator", key="a")
        with pytest.raises(NamespaceMismatch):
            there.status(run_id)
    assert rows.stored(run_id) == before


def test_who_may_decide_and_not_read_hears_nothing_of_what_was_asked_or_found(client: Client, parked: Parked) -> None:
    run_id = parked("desk", owner="somebody", attributes={"customer": 7}, tags=["secret"])
    run = client.acting(actor(Scope.APPROVE)).approve(run_id, by="x", key="a")
    assert run.status is Status.QUEUED
    assert (run.request, run.result, run.error, run.attributes, run.tags) == (None, None, None, {}, ())
    run = client.acting(actor(Scope.CANCEL)).cancel(parked("desk", owner="somebody", attributes={"customer": 7}))
    assert (run.status, run.attributes) == (Status.CANCELLED, {})
    reader = client.acting(actor(Scope.INPUT, Scope.READ))
    assert reader.signal(run_id, "go", 1).attributes == {"customer": 7}


def test_going_on_here_needs_read_beside_the_scope_of_the_decision(client: Client, parked: Parked, rows: Rows) -> None:
    """It comes back with what the run came to. Nothing is recorded where that is not permitted."""

    @durable("secret")
    async def secret(ctx: Context) -> str:
        return f"a secret for {(await ctx.approval('sure?')).by}"

    run_id = parked("secret", owner="somebody")
    before = rows.stored(run_id)
    for verb in (client.acting(actor(Scope.APPROVE)).approve, client.acting(actor(Scope.APPROVE)).reject):
        with pytest.raises(Forbidden, match=Scope.READ):
            verb(run_id, by="x", here=True)
    assert rows.stored(run_id) == before
    both = client.acting(actor(Scope.APPROVE, Scope.READ))
    assert both.approve(run_id, by="x", here=True).result == "a secret for ann"
