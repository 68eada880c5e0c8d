"""What `agentrun doctor` and `agentrun workers` ask. Reads only, but for what nobody needs to know any more."""

from __future__ import annotations

from sqlalchemy import delete, literal_column

from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, now
from agentrun.store.tables import processes


def _forget_gone() -> Statement:
    """Processes that were not seen for an hour have told everything that they will."""
    long_ago = processes.c.seen_at < now() - literal_column("interval '1 hour'")
    gone = delete(processes).where(processes.c.namespace == NAMESPACE, long_ago)
    return compiled("forget_gone", gone.returning(processes.c.id))


FORGET_GONE = _forget_gone()
