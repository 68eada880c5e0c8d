"""Results come back from the journal as they were, or are refused before they are recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, computed_field
from typing_extensions import TypedDict

from agentrun import Client, Context, InvalidResult, Reason, Retryable, RunFailed, Status, StepFailed, durable
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Registry, kind_of
from agentrun.runtime.remotesteps import remote_step, remote_steps
from agentrun.store.database import Database

NUMBERS = (math.nan, math.inf, -math.inf, 1.5)


class Measure(BaseModel):
    value: float
    limit: float | None = None
    note: str | None = None
    inner: Measure | None = None


@dataclass
class Line:
    value: float


class Row(TypedDict):
    value: float


class Order(BaseModel):
    cents: int


class Either(BaseModel):
    value: str | float


class Noted(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64")
    note: Any
    raw: bytes = b""


class Sealed(BaseModel):
    """Writes a member that it does not read."""

    model_config = ConfigDict(extra="forbid")
    secret: str

    @computed_field
    @property
    def length(self) -> int:
        return len(self.secret)


def of_model(value: float) -> Measure:
    return Measure(value=value, limit=value, inner=Measure(value=value))


def of_models(value: float) -> list[Measure]:
    return [Measure(value=1.5, note='"NaN" and null'), Measure(value=value)]


def of_maybe(value: float) -> Measure | None:
    return Measure(value=value)


def of_dataclass(value: float) -> Line:
    return Line(value)


def of_typed_dict(value: float) -> Row:
    return {"value": value}


def sealed() -> Sealed:
    return Sealed(secret="s3cr3t")


def alike(one: Any, other: Any) -> bool:
    """The same in every digit: `repr` tells numbers of which none equals itself."""
    return repr(one) == repr(other) and type(one) is type(other)


@pytest.mark.parametrize("function", [of_model, of_models, of_maybe, of_dataclass, of_typed_dict])
def test_numbers_that_json_does_not_know_come_back_inside_of_models_too(
    function: Callable[[float], Any], run: Any
) -> None:
    seen: list[list[Any]] = []

    @durable("k")
    async def body(ctx: Context) -> None:
        seen.append([await ctx.step(function, number) for number in NUMBERS])
        seen[-1].append(await ctx.write(function, math.nan))
        if len(seen) < 2:
            raise Retryable("a second segment, please")

    assert run("k").status is Status.COMPLETED
    expected = [function(number) for number in (*NUMBERS, math.nan)]
    assert [alike(each, expected) for each in seen] == [True, True], "the second time from the journal"


def test_a_result_that_could_not_be_read_back_fails_its_step_and_shows_nothing_of_it(run: Any, client: Client) -> None:
    @durable("k")
    async def body(ctx: Context) -> str:
        with pytest.raises(StepFailed) as failed:
            await ctx.options(key="a").step(sealed)
        return str(failed.value)

    done = run("k")
    assert "returned what cannot be read back from its JSON as what its annotation says: length: Extra" in done.result
    assert "s3cr3t" not in done.result
    assert [(step.status, step.result) for step in client.steps(done.id)] == [("failed", None)]


def test_a_write_whose_result_could_not_be_read_back_has_happened_and_stops_the_run(run: Any, client: Client) -> None:
    written: list[int] = []

    def act() -> Sealed:
        written.append(1)
        return sealed()

    @durable("k")
    async def body(ctx: Context) -> str:
        return (await ctx.write(act)).secret

    stopped = run("k")
    assert (stopped.reason, stopped.pending_effect) == (Reason.NOT_RETRYABLE, "non_idempotent_write")
    assert stopped.error["type"] == "agentrun.core.errors.InvalidResult"
    assert client.resolve(stopped.id, applied=True, result={"secret": "told"}).status is Status.QUEUED
    assert client.steps(stopped.id)[0].status == "completed"
    assert written == [1]


def test_a_transaction_whose_result_could_not_be_read_back_does_not_commit(run: Any, database: Database) -> None:
    with database.connection() as connection:
        connection.execute("CREATE TABLE ledger (entry text)")

    def enter(connection: Any) -> Sealed:
        connection.execute("INSERT INTO ledger VALUES ('once')")
        return sealed()

    @durable("k")
    async def body(ctx: Context) -> None:
        with pytest.raises(StepFailed, match="cannot be read back"):
            await ctx.transaction(enter)

    assert run("k").status is Status.COMPLETED
    with database.connection() as connection:
        assert connection.execute("SELECT entry FROM ledger").fetchall() == []


def _cents(cents: Any) -> Order:
    return Order.model_construct(cents=cents)


SAID: list[tuple[Any, Any, str]] = [
    (int, "s3cr3t", "what its annotation does not allow: expected int, got str"),
    (int | None, "s3cr3t", "what its annotation does not allow: expected int, got str"),
    (int, "[field_name='s3cr3t', input_type=s3cr3t])\n", "what its annotation does not allow: expected int, got str"),
    (list[int], ["s3cr3t", "s3cr3t", 2.5], "what its annotation does not allow: expected int, got str; expected int, "),
    (Order, _cents("s3cr3t"), "what its annotation does not allow: cents: expected int, got str"),
    (Order, {"cents": "s3cr3t"}, "what its annotation does not allow: expected Order, got dict"),
    (tuple[str, str], ("s3cr3t",), "what its annotation does not allow: unexpected too few items present in tuple"),
    (bytes, b"s3cr3t\xff", "bytes that are not UTF-8, which JSON cannot hold"),
    (Decimal, Decimal("NaN"), "cannot be read back from its JSON as what its annotation says: it should be a finite"),
]


@pytest.mark.parametrize(("hint", "value", "said"), SAID)
def test_what_an_annotation_does_not_allow_is_told_without_the_value(
    run: Any, hint: Any, value: Any, said: str
) -> None:
    def act() -> Any:
        return value

    act.__annotations__["return"] = hint

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.step(act)

    done = run("k")
    assert done.status is Status.FAILED
    assert done.error["message"].startswith("step `act` returned ")
    assert said in done.error["message"]
    assert "s3cr3t" not in str(done)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int | str | float, math.nan),
        (list[str | float], [1.5, -math.inf]),
        (Either, Either(value=math.inf)),
        (dict[str, Either], {"a": Either(value=math.nan)}),
    ],
)
def test_a_number_that_would_come_back_as_text_is_refused(run: Any, hint: Any, value: Any) -> None:
    def act() -> Any:
        return value

    act.__annotations__["return"] = hint

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.step(act)

    done = run("k")
    assert done.error["type"] == "agentrun.core.errors.InvalidResult"
    assert "it would come back as text" in done.error["message"]


@pytest.mark.parametrize("hint", [Any, dict, dict[str, Any]])
def test_where_anything_may_stand_a_number_that_json_does_not_know_is_its_word(run: Any, hint: Any) -> None:
    def act() -> Any:
        return {"value": math.nan, "word": "NaN"}

    act.__annotations__["return"] = hint

    @durable("k")
    async def body(ctx: Context) -> Any:
        return await ctx.step(act)

    assert run("k").result == {"value": "NaN", "word": "NaN"}


@pytest.mark.parametrize("hint", [Noted, Noted | None, Any])
def test_a_number_in_a_models_field_of_any_type_is_its_word_and_not_null(run: Any, client: Client, hint: Any) -> None:
    seen: list[Any] = []

    def act() -> Any:
        return Noted(note={"at": [math.nan, None]})

    act.__annotations__["return"] = hint

    @durable("k")
    async def body(ctx: Context) -> None:
        noted = await ctx.step(act)
        seen.append(noted["note"] if hint is Any else noted.note)
        if len(seen) < 2:
            raise Retryable("a second segment, please")

    done = run("k")
    assert done.status is Status.COMPLETED
    assert seen == [{"at": ["NaN", None]}] * 2, "the second time from the journal"
    assert [step.result for step in client.steps(done.id)] == [{"note": {"at": ["NaN", None]}, "raw": ""}]


@pytest.mark.parametrize("hint", [Noted, Any])
def test_a_number_that_would_be_null_fails_its_step(run: Any, hint: Any) -> None:
    """Its bytes are written otherwise than those of other values: then nobody knows how the rest would be."""

    def act() -> Any:
        return Noted(note=math.inf, raw=b"\xfb")

    act.__annotations__["return"] = hint

    @durable("k")
    async def body(ctx: Context) -> None:
        await ctx.step(act)

    done = run("k")
    assert done.error["type"] == "agentrun.core.errors.InvalidResult"
    assert "NaN or an infinity in it would become null" in done.error["message"]


# ---- of runs, of children, of remote steps


@pytest.mark.parametrize("function", [of_model, of_models, of_maybe, of_dataclass, of_typed_dict])
def test_a_childs_result_comes_to_its_parent_as_it_was(
    function: Callable[[float], Any], engine: Engine, client: Client
) -> None:
    seen: list[Any] = []

    async def child(ctx: Context) -> Any:
        return function(math.nan)

    child.__annotations__["return"] = function.__annotations__["return"]
    durable("child")(child)

    @durable("parent")
    async def parent(ctx: Context) -> None:
        seen.append(await ctx.child("child"))

    run_id = client.enqueue("parent")
    engine.run(run_id)
    engine.run(client.list(parent=run_id)[0].id)
    engine.run(run_id)
    assert client.status(run_id).status is Status.COMPLETED
    assert alike(seen, [function(math.nan)])


def test_a_number_that_json_does_not_know_is_the_result_of_a_run(run: Any, client: Client) -> None:
    @durable("k")
    async def body(ctx: Context) -> float:
        return math.inf

    assert run("k").result == "Infinity"
    assert client.run("k") == math.inf


def test_a_run_whose_result_could_not_be_read_back_fails_and_shows_nothing_of_it(run: Any, client: Client) -> None:
    @durable("k")
    async def body(ctx: Context) -> Sealed:
        return sealed()

    done = run("k")
    assert (done.status, done.error["type"]) == (Status.FAILED, "agentrun.core.errors.InvalidResult")
    assert done.error["message"].startswith("kind `k` returned what cannot be read back from its JSON")
    assert "s3cr3t" not in str(done)
    with pytest.raises(RunFailed, match="cannot be read back"):
        client.run("k")


def test_a_remote_steps_result_is_kept_or_refused_as_any_other(kinds: Registry) -> None:
    remote_step("measured")(of_model)
    remote_step("sealed")(sealed)
    measured = remote_steps.require("measured")
    assert alike(measured.result.validate_json(measured.encode_result(of_model(math.nan))), of_model(math.nan))
    with pytest.raises(InvalidResult, match="remote step `sealed` returned what cannot be read back"):
        remote_steps.require("sealed").encode_result(sealed())


def test_a_result_that_can_be_gone_through_once_is_stored_whole() -> None:
    async def body(ctx: Context) -> Any: ...

    body.__annotations__["return"] = Iterable[float | None]
    assert kind_of("k", body).encode_result(iter((1.0, None, math.nan))) == '[1.0,null,"NaN"]'
