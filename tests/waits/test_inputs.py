"""Input: data that is validated in full before anything is claimed; what does not fit loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentrun import Client, Context, Reason, Status, durable
from agentrun.core.errors import AlreadyDecided, InvalidAnswer, WaitExpired
from agentrun.runtime.schemas import checked_schema, fits
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked, Travel

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": {"enum": ["s", "m"]},
        "count": {"type": "integer", "minimum": 1},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "mail": {"type": "string", "format": "email"},
        "when": {"type": "string", "format": "date"},
        "id": {"type": "string", "format": "uuid"},
    },
    "required": ["size", "count"],
    "additionalProperties": False,
}
GOOD: dict[str, Any] = {
    "size": "s",
    "count": 2,
    "code": "ABC",
    "mail": "a@example.org",
    "when": "2026-02-28",
    "id": "0190b6a2-0000-7000-8000-000000000000",
}


class Address(BaseModel):
    """What a parcel needs."""

    street: str = Field(min_length=1)
    floor: int = Field(ge=0, default=0)
    kind: Literal["home", "work"] = "home"


@pytest.fixture(autouse=True)
def asking(client: Client) -> None:
    @durable("ask")
    async def ask(ctx: Context, wishes: dict[str, Any]) -> Any:
        try:
            return await ctx.input("what?", schema=SCHEMA, **wishes)
        except WaitExpired:
            return "expired"

    @durable("address")
    async def address(ctx: Context) -> list[Any]:
        given = await ctx.input("where?", schema=Address)
        return [type(given).__name__, given.street, given.floor]


def test_data_that_does_not_fit_is_refused_with_its_reason_and_changes_nothing(
    client: Client, parked: Parked, go: Go, rows: Rows
) -> None:
    run_id = parked("ask", {})
    before = rows.stored(run_id)
    wrong: list[tuple[Any, str]] = [
        ({**GOOD, "size": "xl"}, "size breaks `enum`"),
        ({**GOOD, "count": 0}, "count breaks `minimum`"),
        ({**GOOD, "count": "2"}, "count breaks `type`"),
        ({**GOOD, "count": True}, "count breaks `type`"),
        ({**GOOD, "code": "abc"}, "code breaks `pattern`"),
        ({**GOOD, "mail": "nobody"}, "mail breaks `format`"),
        ({**GOOD, "when": "2026-02-30"}, "when breaks `format`"),
        ({**GOOD, "id": "7"}, "id breaks `format`"),
        ({"size": "s"}, "it breaks `required`"),
        ({**GOOD, "more": 1}, "it breaks `additionalProperties`"),
        ("text", "it breaks `type`"),
        (None, "it breaks `type`"),
    ]
    for data, why in wrong:
        with pytest.raises(InvalidAnswer, match=why):
            client.submit_input(run_id, data, by="ann")
    assert rows.stored(run_id) == before
    client.submit_input(run_id, GOOD, by="ann")
    assert go(run_id).result == GOOD


def test_the_refusal_does_not_repeat_what_was_given(client: Client, parked: Parked) -> None:
    run_id = parked("ask", {})
    with pytest.raises(InvalidAnswer) as refused:
        client.submit_input(run_id, {**GOOD, "code": "my-secret"}, by="ann")
    assert "my-secret" not in str(refused.value)


def test_an_answer_for_a_model_arrives_as_one(client: Client, parked: Parked, go: Go) -> None:
    run_id = parked("address")
    for wrong in ({}, {"street": ""}, {"street": "a", "floor": -1}, {"street": "a", "kind": "boat"}):
        with pytest.raises(InvalidAnswer):
            client.submit_input(run_id, wrong, by="ann")
    client.submit_input(run_id, {"street": "Elm", "floor": 3}, by="ann")
    assert go(run_id).result == ["Address", "Elm", 3]


def test_of_two_answers_at_the_same_time_one_wins(client: Client, parked: Parked, go: Go) -> None:
    run_id = parked("ask", {})
    together = threading.Barrier(2)

    def give(count: int) -> int | None:
        together.wait()
        try:
            client.submit_input(run_id, {"size": "s", "count": count}, by="ann")
        except AlreadyDecided:
            return None
        return count

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(give, (1, 2)))
    assert said.count(None) == 1
    assert go(run_id).result["count"] in said


@pytest.mark.parametrize(
    ("policy", "result"),
    [({}, "expired"), ({"on_expiry": "default", "default": {"size": "m", "count": 1}}, {"size": "m", "count": 1})],
)
def test_an_input_that_nobody_gives_fails_or_has_a_default(
    parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any], policy: Any, result: Any
) -> None:
    run_id = parked("ask", {"expires": 60, **policy})
    travel.past_due(run_id)
    assert sweep().answered == 1
    assert go(run_id).result == result


def test_an_input_that_nobody_gives_is_put_to_another_role_and_then_fails(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any]
) -> None:
    run_id = parked("ask", {"expires": 60, "on_expiry": "escalate", "escalate_to": "boss"})
    travel.past_due(run_id)
    sweep()
    assert [row["run_id"] for row in client.inbox(role="boss")] == [run_id]
    travel.past_due(run_id)
    sweep()
    assert go(run_id).result == "expired"


BROKEN: dict[str, dict[str, Any]] = {
    "type": {"type": "no such type"},
    "nowhere": {"$ref": "#/nowhere"},
    "elsewhere": {"$ref": "http://127.0.0.1:9/x"},
    "pattern": {"pattern": "("},
    "within": {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
    "no JSON": {"enum": {1}},
}


@pytest.mark.parametrize("schema", BROKEN.values(), ids=BROKEN)
def test_a_schema_that_is_none_is_refused_when_it_is_asked_with_and_nothing_is_stored(
    client: Client, go: Go, travel: Travel, schema: dict[str, Any]
) -> None:
    @durable("broken")
    async def broken(ctx: Context) -> Any:
        return await ctx.input("what?", schema=schema)

    run = go(client.enqueue("broken"))
    assert (run.status, run.reason) == (Status.FAILED, Reason.NOT_RETRYABLE)
    assert run.error is not None
    assert "schema" in run.error["message"]
    assert travel.waits(run.id) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"$ref": {"type": "string"}}, "examples": [{"$ref": "no reference"}]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/n", "definitions": {"n": True}},
        {"$id": "https://example.org/s", "$ref": "#n", "$defs": {"n": {"$anchor": "n"}}},
    ],
    ids=["named so", "recursive", "draft 7", "anchor"],
)
def test_a_schema_that_is_one_is_not_refused(schema: dict[str, Any]) -> None:
    assert checked_schema(schema) == schema
    fits({}, schema)


def test_a_default_that_nobody_could_give_is_refused_when_it_is_asked_with(
    client: Client, go: Go, travel: Travel
) -> None:
    run = go(client.enqueue("ask", {"expires": 60, "on_expiry": "default", "default": {"size": "xl"}}))
    assert run.status is Status.FAILED
    assert run.error is not None
    assert "default" in run.error["message"]
    assert travel.waits(run.id) == []


@pytest.mark.parametrize("name", ["type", "nowhere", "elsewhere", "pattern"])
def test_a_stored_schema_that_is_none_is_said_to_be_so_and_fetches_nothing(name: str) -> None:
    """Such as one that was stored by hand, or by code that checked less."""
    with pytest.raises(InvalidAnswer, match="no JSON schema"):
        fits("text", BROKEN[name])
