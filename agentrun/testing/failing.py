"""Functions that fail as often as a test says, and then work."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Failing(Generic[P, T]):
    """Counts its calls. `calls` is how often it was called so far."""

    def __init__(self, times: int, error: Exception | type[Exception], function: Callable[P, T]) -> None:
        self._times, self._error, self._function = times, error, function
        self._lock = threading.Lock()
        self.calls = 0

    def call(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Fail, or do what the function does."""
        with self._lock:
            self.calls += 1
            if self.calls <= self._times:
                raise self._error
        return self._function(*args, **kwargs)


def fail_times(
    times: int, error: Exception | type[Exception] = ConnectionError, function: Callable[..., Any] | None = None
) -> Any:
    """A function that raises `error` the first `times` times it is called, and then does what `function` does.

    It has the function's name, types and declared effect, so that it is the same step; `.failing.calls` is how often
    it was called. Without a function it returns None. For tools, steps, writes and remote steps alike.
    """
    works: Callable[..., Any] = function or _works
    failing = Failing(times, error, works)

    if inspect.iscoroutinefunction(works):

        @functools.wraps(works)
        async def flaky_async(*args: Any, **kwargs: Any) -> Any:
            return await failing.call(*args, **kwargs)

        flaky: Any = flaky_async
    else:

        @functools.wraps(works)
        def flaky_plain(*args: Any, **kwargs: Any) -> Any:
            return failing.call(*args, **kwargs)

        flaky = flaky_plain
    flaky.failing = failing
    return flaky


def _works(*args: object, **kwargs: object) -> None:
    """Nothing."""


_works.__name__ = "flaky"
