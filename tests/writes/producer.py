"""A producer that runs one kind, or a function that is none, here and now: `python -m tests.writes.producer KIND`."""

from __future__ import annotations

import asyncio
import sys

from agentrun import Client, Context
from tests.bodies.writes import happen


async def no_kind(ctx: Context, seconds: float) -> str:
    """Nobody else could load this."""
    await ctx.write(happen, "first")
    await ctx.step(asyncio.sleep, seconds)
    return await ctx.write(happen, "second")


def main(kind: str) -> None:
    with Client() as client:
        print("result", client.run(no_kind if kind == "no-kind" else kind, 30.0, tags=["here"]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
