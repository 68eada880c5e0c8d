"""A named wait is believed up to a day, never negative, read by the other side's clock, and ignored where garbled."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.client import HTTPMessage
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrun.core.failures import describe
from agentrun.core.retry_after import LONGEST_RETRY_AFTER, retry_after_in

DATE = "Sun, 29 Nov 2026 12:00:00 GMT"

instants = st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
texts = st.text() | st.sampled_from(
    ["nan", "inf", "-1", "+5", "1e9", "0x10", "1_000", "٣", "", " ", "1,5", DATE, "Sun"]
)


@given(texts, texts, texts)
def test_whatever_the_headers_say_the_wait_is_none_or_within_a_day(after: str, milliseconds: str, date: str) -> None:
    wait = retry_after_in({"Retry-After": after, "Retry-After-Ms": milliseconds, "Date": date})
    assert wait is None or 0 <= wait <= LONGEST_RETRY_AFTER


@given(st.integers(0, 10**400))
def test_whole_seconds_are_believed_up_to_a_day(seconds: int) -> None:
    assert retry_after_in({"Retry-After": str(seconds)}) == min(seconds, LONGEST_RETRY_AFTER)


@given(st.floats(0, 1e5).map(lambda seconds: round(seconds, 3)))
def test_fractions_of_seconds_are_read(seconds: float) -> None:
    assert retry_after_in({"retry-after": f"{seconds:.3f}"}) == min(seconds, LONGEST_RETRY_AFTER)


@given(instants, instants)
def test_a_date_is_measured_from_the_date_of_the_same_answer(at: datetime, now: datetime) -> None:
    headers = {"Retry-After": format_datetime(at, usegmt=True), "Date": format_datetime(now, usegmt=True)}
    assert retry_after_in(headers) == min(max((at - now).total_seconds(), 0), LONGEST_RETRY_AFTER)


@pytest.mark.parametrize(
    "at", ["Sun, 29 Nov 2026 12:00:05 GMT", "Sunday, 29-Nov-26 12:00:05 GMT", "Sun Nov 29 12:00:05 2026"]
)
def test_all_three_forms_of_an_http_date_are_read(at: str) -> None:
    assert retry_after_in({"Retry-After": at, "Date": DATE}) == 5


def test_a_date_without_a_now_is_ignored() -> None:
    assert retry_after_in({"Retry-After": DATE}) is None
    assert retry_after_in({"Retry-After": DATE, "Date": "yesterday"}) is None


def test_milliseconds_come_first_and_garbled_ones_leave_it_to_the_seconds() -> None:
    assert retry_after_in({"Retry-After": "7", "Retry-After-Ms": "250"}) == 0.25
    assert retry_after_in({"Retry-After": "7", "Retry-After-Ms": "soon"}) == 7


@pytest.mark.parametrize("garbled", ["-5", "soon", "", "1e3", "nan", "inf", "Infinity", "0x10", "1_000", "7s", "٣"])
def test_a_garbled_wait_is_ignored(garbled: str) -> None:
    assert retry_after_in({"Retry-After": garbled, "Date": DATE}) is None


def test_headers_are_read_whatever_holds_them() -> None:
    message = HTTPMessage()
    message["Retry-After"] = "7"
    for headers in (
        message,
        httpx2.Headers({"Retry-After": "7"}),
        {"RETRY-AFTER": "7"},
        {"retry-after": " 7 ", 1: b"x"},
    ):
        assert retry_after_in(headers) == 7


@pytest.mark.parametrize("headers", [None, "Retry-After: 7", ["Retry-After"], 7, object()], ids=type)
def test_what_is_no_mapping_names_no_wait(headers: Any) -> None:
    assert retry_after_in(headers) is None


# ---- on errors


class _Error(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("slow down")
        self.__dict__.update(attributes)


class _Answer:
    def __init__(self, headers: Any) -> None:
        self.headers = headers


SEVEN = {"Retry-After": "7"}


@pytest.mark.parametrize(
    "error",
    [
        _Error(headers=SEVEN),
        _Error(response=_Answer(SEVEN)),
        _Error(response={"ResponseMetadata": {"HTTPHeaders": {"retry-after": "7"}}}),
        _Error(retry_after=7),
        _Error(retry_after=timedelta(seconds=7)),
        _Error(headers=SEVEN, retry_after=99),
        _Error(headers={}, response=_Answer(SEVEN)),
    ],
    ids=lambda error: ", ".join(error.__dict__),
)
def test_the_wait_is_found_wherever_the_error_carries_it(error: Exception) -> None:
    assert describe(error).retry_after == 7


@pytest.mark.parametrize("wait", [-1, math.nan, math.inf, True, "7", None], ids=repr)
def test_an_attribute_that_is_no_time_is_ignored(wait: Any) -> None:
    assert describe(_Error(retry_after=wait)).retry_after is None


def test_an_attribute_is_believed_up_to_a_day() -> None:
    assert describe(_Error(retry_after=10**9)).retry_after == LONGEST_RETRY_AFTER


def test_at_once_is_a_wait_and_not_its_absence() -> None:
    assert describe(_Error(headers={"Retry-After": "0"}, retry_after=99)).retry_after == 0
