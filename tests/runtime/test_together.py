"""Calls that come at once are made together; each has its own answer, and none makes another one fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from agentrun.core.errors import ConfigurationError
from agentrun.runtime.together import Together

MOST = 4


class Calls:
    """What was asked for together; the first call holds the others up until it is let go."""

    def __init__(self, answers: Callable[[Sequence[int]], Sequence[str | Exception]]) -> None:
        self.made: list[list[int]] = []
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.threads, self._answers = ThreadPoolExecutor(3), answers
        self.together = Together(self.many, self.threads, most=MOST)

    def many(self, asked: Sequence[int]) -> Sequence[str | Exception]:
        self.made.append(list(asked))
        self.begun.set()
        assert self.let_go.wait(10)
        return self._answers(asked)

    def ask(self, *numbers: int) -> list[Future[str]]:
        """The first number alone, and then the others, which come while it is asked for."""
        first = self.together.submit(numbers[0])
        assert self.begun.wait(10)
        return [first, *(self.together.submit(number) for number in numbers[1:])]


@pytest.fixture
def calls() -> Iterator[Callable[..., Calls]]:
    made: list[Calls] = []

    def make(answers: Callable[[Sequence[int]], Sequence[str | Exception]]) -> Calls:
        made.append(Calls(answers))
        return made[-1]

    yield make
    for each in made:
        each.let_go.set()
        each.threads.shutdown()


def said(asked: Sequence[int]) -> list[str | Exception]:
    return [f"said {number}" for number in asked]


def test_what_comes_while_one_is_made_is_made_together(calls: Callable[..., Calls]) -> None:
    made = calls(said)
    futures = made.ask(1, 2, 3, 4, 5, 6, 7)
    made.let_go.set()
    assert [future.result(10) for future in futures] == said([1, 2, 3, 4, 5, 6, 7])
    assert made.made == [[1], [2, 3, 4, 5], [6, 7]]


def test_each_hears_of_its_own_refusal(calls: Callable[..., Calls]) -> None:
    made = calls(lambda asked: [LookupError(str(n)) if n == 2 else f"said {n}" for n in asked])
    made.let_go.set()
    futures = made.ask(1, 2, 3)
    with pytest.raises(LookupError, match="2"):
        futures[1].result(10)
    assert [futures[0].result(10), futures[2].result(10)] == ["said 1", "said 3"]


def test_one_that_spoils_all_is_made_alone(calls: Callable[..., Calls]) -> None:
    def spoilt(asked: Sequence[int]) -> list[str | Exception]:
        if 3 in asked:
            raise psycopg.DataError("spoilt")
        return said(asked)

    made = calls(spoilt)
    futures = made.ask(1, 2, 3, 4)
    made.let_go.set()
    with pytest.raises(psycopg.DataError):
        futures[2].result(10)
    assert [futures[n].result(10) for n in (0, 1, 3)] == ["said 1", "said 2", "said 4"]
    assert made.made == [[1], [2, 3, 4], [2], [3], [4]]


@pytest.mark.parametrize("error", [psycopg.OperationalError("broken"), ConfigurationError("not to be had")])
def test_nobody_presumes_what_a_broken_connection_has_done(calls: Callable[..., Calls], error: Exception) -> None:
    def broken(asked: Sequence[int]) -> list[str | Exception]:
        if asked[0] == 2:
            raise error
        return said(asked)

    made = calls(broken)
    futures = made.ask(1, 2, 3)
    made.let_go.set()
    for future in futures[1:]:
        with pytest.raises(type(error)):
            future.result(10)
    assert made.made == [[1], [2, 3]], "nothing was done twice"


def test_a_call_that_was_given_up_is_not_made(calls: Callable[..., Calls]) -> None:
    made = calls(said)
    futures = made.ask(1, 2, 3)
    assert futures[1].cancel()
    made.let_go.set()
    assert futures[2].result(10) == "said 3"
    assert made.made == [[1], [3]]
