"""How many of something, as people say it: for the command line, findings and errors."""

from __future__ import annotations


def counted(number: int, noun: str, several: str | None = None, *, most: int | None = None) -> str:
    """`1 run`, `3 runs`; `several` is the plural of a noun that does not just get an s.

    With `most` nobody counted further than that: `10,000+ runs`.
    """
    more = "+" if most is not None and number >= most else ""
    return f"{number:,}{more} {noun if number == 1 else several or noun + 's'}"


def counted_is(number: int, noun: str, *, most: int | None = None) -> str:
    """`1 run is`, `3 runs are`, `10,000+ runs are`."""
    return f"{counted(number, noun, most=most)} {'is' if number == 1 else 'are'}"
