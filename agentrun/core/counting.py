"""How many of something, as people say it: for the command line, findings and errors."""

from __future__ import annotations


def counted(number: int, noun: str, several: str | None = None) -> str:
    """`1 run`, `3 runs`; `several` is the plural of a noun that does not just get an s."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def counted_is(number: int, noun: str) -> str:
    """`1 run is`, `3 runs are`."""
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"
