"""Bodies that share a client with their module, which has used it before any worker's child was forked."""

from __future__ import annotations

from agentrun import Client, Context, durable

client = Client()
client.list()
client.enqueue("noted", "much later", delay=3600)


@durable("enqueuing")
async def enqueuing(ctx: Context, number: int) -> int:
    """A run that enqueues another one."""
    await ctx.step(_enqueue, number)
    return number


def _enqueue(number: int) -> str:
    return str(client.enqueue("noted", f"by {number}", idempotency_key=str(number)))
