"""Waiting for a thing to happen, never for time to pass."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = "AGENTRUN_TEST_PATIENCE"
PAUSE = 0.01
LONGEST_PAUSE = 0.1


def until(
    predicate: Callable[[], T],
    timeout: float = 10.0,
    *,
    tell: Callable[[], object] | None = None,
    tolerate: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """Call `predicate` until what it returns is true, and return that. AssertionError after `timeout` seconds.

    On a machine with much else to do, AGENTRUN_TEST_PATIENCE=3 makes it three times as many.

    `tell` is called at the failure, to say what is there instead. Exceptions of the types in `tolerate` mean "not yet".
    """
    ends = time.monotonic() + timeout * float(os.environ.get(PATIENCE, "1"))
    pause = PAUSE
    while True:
        answer: Any
        try:
            answer = predicate()
            if answer:
                return answer
        except tolerate as error:
            answer = error
        if time.monotonic() >= ends:
            raise AssertionError(_explained(predicate, timeout, answer, tell))
        time.sleep(pause)
        pause = min(pause * 1.3, LONGEST_PAUSE)


def _explained(predicate: Callable[[], Any], timeout: float, answer: Any, tell: Callable[[], object] | None) -> str:
    lines = [f"not within {timeout:g} s: {_source(predicate)}", f"last answer: {answer!r}"]
    if tell is not None:
        lines.append(f"instead: {tell()}")
    return "\n".join(lines)


def _source(predicate: Callable[[], Any]) -> str:
    try:
        lines, first = inspect.getsourcelines(predicate)
        where = inspect.getsourcefile(predicate)
    except (OSError, TypeError):
        return repr(predicate)
    return f"{' '.join(line.strip() for line in lines[:4])}  ({where}:{first})"
