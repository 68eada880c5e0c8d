"""Values to JSON text and back: what comes back is what went in, and what cannot be stored says so."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, field_serializer

from agentrun.core.codec import adapter_of, canonical, decode, digest, dumped, encode, within
from agentrun.core.errors import InvalidRequest, TooLarge

text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


class Order(BaseModel):
    at: datetime
    cents: int


@dataclass
class Line:
    sku: str
    order: Order


@given(values)
def test_json_values_come_back_as_they_went_in(value: Any) -> None:
    assert decode(encode(value, what="it")) == value


def test_nothing_stored_is_none() -> None:
    assert decode(None) is None
    assert decode(encode(None, what="it")) is None


def test_models_and_dataclasses_are_stored_as_their_members() -> None:
    line = Line("a", Order(at=datetime(2026, 11, 29, tzinfo=UTC), cents=5))
    assert decode(encode(line, what="it")) == {"sku": "a", "order": {"at": "2026-11-29T00:00:00Z", "cents": 5}}


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    "value", [object(), {"f": print}, _endless(), "\ud800"], ids=["object", "function", "endless", "surrogate"]
)
def test_what_is_not_json_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="the request of kind `x` cannot be stored as JSON"):
        encode(value, what="the request of kind `x`")


def test_bytes_that_are_no_text_are_refused_as_such() -> None:
    with pytest.raises(InvalidRequest, match=r"^it cannot be stored as JSON: bytes that are not UTF-8; pass JSON"):
        encode({"a": b"\xff"}, what="it")


def test_numbers_that_json_does_not_know_are_stored_as_words() -> None:
    assert encode([float("nan"), float("inf")], what="it") == '["NaN","Infinity"]'


class Anything(BaseModel):
    it: Any


class Emptied(BaseModel):
    value: float | None

    @field_serializer("value")
    def finite(self, value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None


class Measure(BaseModel):
    value: float
    limit: float | None = None


def test_a_models_numbers_are_stored_as_words_too_and_nothing_else_changes() -> None:
    measures = [Measure(value=float("-inf")), '"NaN"', None, Measure(value=1.5)]
    stored = '[{"value":"-Infinity","limit":null},"\\"NaN\\"",null,{"value":1.5,"limit":null}]'
    assert encode(measures, what="it") == stored


class Sheet(BaseModel):
    """Bytes are written otherwise than by themselves."""

    model_config = ConfigDict(ser_json_bytes="base64")

    cell: Any
    note: Any = None
    raw: bytes = b"\xfb"


def test_numbers_in_a_models_fields_of_any_type_are_stored_as_words() -> None:
    orders = {"a": [Anything(it=float("nan")), Anything(it={"b": [1, float("inf"), None]})]}
    assert encode(orders, what="it") == '{"a":[{"it":"NaN"},{"it":{"b":[1,"Infinity",null]}}]}'
    assert dumped(adapter_of(Anything), Anything(it=float("nan")), warnings="error") == '{"it":"NaN"}'


@pytest.mark.parametrize("cell", [float("nan"), [1, float("-inf")], {"a": (float("nan"),)}, Anything(it=float("inf"))])
def test_a_number_that_would_become_null_is_refused(cell: Any) -> None:
    sheet = Sheet(cell=cell)
    with pytest.raises(InvalidRequest, match="it cannot be stored as JSON: NaN or an infinity in it would become null"):
        encode(sheet, what="it")
    with pytest.raises(ValueError, match="NaN or an infinity in it would become null"):
        dumped(adapter_of(Sheet), sheet, warnings=False)


def test_what_is_null_by_itself_or_by_the_models_own_wish_is_stored() -> None:
    assert encode(Sheet(cell=1.5), what="it") == '{"cell":1.5,"note":null,"raw":"-w=="}'
    assert encode(Emptied(value=float("nan")), what="it") == '{"value":null}'
    assert dumped(adapter_of(Emptied), Emptied(value=float("nan")), warnings="error") == '{"value":null}'


def test_what_can_be_gone_through_once_is_stored_whole() -> None:
    assert encode((each for each in (1, None, Measure(value=float("nan")))), what="it") == (
        '[1,null,{"value":null,"limit":null}]'
    )


@given(st.dictionaries(text, values, min_size=2, max_size=5))
def test_the_order_of_members_does_not_change_a_digest(value: dict[str, Any]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert digest(json.dumps(value)) == digest(json.dumps(backwards, indent=3))
    assert canonical(canonical(json.dumps(value))) == canonical(json.dumps(value))


@given(values)
def test_a_canonical_text_is_the_same_however_the_value_was_written(value: Any) -> None:
    written = (encode(value, what="it"), json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False))
    for text in written:
        plain = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert canonical(text) == plain


def test_numbers_have_one_way_to_be_written() -> None:
    assert canonical("[1.50,1E2,-0,[1]]") == "[1.5,100.0,0,[1]]"


@given(values, values)
def test_other_values_have_other_digests(one: Any, other: Any) -> None:
    same = canonical(json.dumps(one)) == canonical(json.dumps(other))
    assert (digest(json.dumps(one)) == digest(json.dumps(other))) == same


def test_limits_count_bytes_not_characters() -> None:
    assert within('"éé"', 6, what="it", setting="S") == '"éé"'
    with pytest.raises(TooLarge, match=r"it has 6 bytes of JSON, over the limit of 5; .* raise AGENTRUN_MAX_X"):
        within('"éé"', 5, what="it", setting="AGENTRUN_MAX_X")
