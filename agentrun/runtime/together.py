"""Calls that come at once, made together: while the first go on, the next are gathered."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

from agentrun.core.errors import ConfigurationError
from agentrun.store.connect import broke

A = TypeVar("A")
R = TypeVar("R")


class Together(Generic[A, R]):
    """`many` takes the arguments of up to `most` calls, and returns the result of each, or its error, in their order.

    A call that comes alone is made at once. Where `many` itself raises, the calls are made one by one; but for a
    connection that broke, or that was not to be had: then nobody knows what was done, and everybody hears so.
    """

    def __init__(self, many: Callable[[Sequence[A]], Sequence[R | Exception]], threads: Executor, *, most: int) -> None:
        self._many, self._threads, self._most = many, threads, most
        self._waiting: deque[tuple[A, Future[R]]] = deque()
        self._serving = threading.Lock()

    def submit(self, asked: A) -> Future[R]:
        """The call's result, or its error."""
        future: Future[R] = Future()
        self._waiting.append((asked, future))
        self._threads.submit(self._serve)
        return future

    def _serve(self) -> None:
        # Who finds somebody serving leaves it to him: he looks again after that.
        while self._waiting and self._serving.acquire(blocking=False):
            try:
                self._make([self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))])
            finally:
                self._serving.release()

    def _make(self, calls: Sequence[tuple[A, Future[R]]]) -> None:
        calls = [call for call in calls if call[1].set_running_or_notify_cancel()]
        answers = self._answers([asked for asked, _ in calls]) if calls else ()
        for (_, future), answer in zip(calls, answers, strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _answers(self, asked: Sequence[A]) -> Sequence[R | Exception]:
        try:
            return self._many(asked)
        except Exception as error:
            if len(asked) == 1 or isinstance(error, ConfigurationError) or broke(error):
                return [error] * len(asked)
            return [self._answers([one])[0] for one in asked]
