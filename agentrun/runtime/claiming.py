"""A wake's claim on its run: one statement that takes the lease, or the word why there was none to take."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agentrun.core.wake import Wake
from agentrun.core.words import Status
from agentrun.runtime.settling import Report
from agentrun.store import claims
from agentrun.store.batches import Write
from agentrun.store.reads import CLAIM_LANDED, UNCLAIMED

if TYPE_CHECKING:
    from agentrun.runtime.engine import Engine


async def claim(engine: Engine, run_id: UUID, owner: str, answered: Callable[[], object]) -> Mapping[str, Any] | None:
    """The run with a lease of `owner`'s, or None where it cannot be claimed. `answered` is called once it is known."""
    token = engine.token()
    params = engine.registry.of_claims() | {
        "run_id": run_id,
        "namespace": engine.settings.namespace,
        "lease": engine.settings.lease_seconds,
        "by": owner,
        "data": json.dumps({"claim": token}),
    }
    write = Write(claims.CLAIM_RUN, params, landed=CLAIM_LANDED, landed_params={"claim": token})
    rows = await engine.writer.claim(write, answered=answered)
    return rows[0] if rows else None


async def why_not(engine: Engine, run_id: UUID) -> Report:
    """Why a wake claimed nothing: `unknown`, `early`, `due`, `busy`, `elsewhere`, or a status. It sees to it that what
    is only early is woken in time, and that what this process does not know goes on to another."""
    rows = await engine.writer.write(Write(UNCLAIMED, {"run_id": run_id}))
    if not rows or rows[0]["namespace"] != engine.settings.namespace:
        return Report(run_id, "unknown")
    row = rows[0]
    if row["status"] == Status.WAITING and float(row["early"] or 1) <= 0:
        # A timer of this run is due, and its process kept the time: no need to wait for the sweep.
        await asyncio.to_thread(engine.end_due_waits, run_id)
        return Report(run_id, "due", row["kind"])
    if row["status"] == Status.WAITING and not engine.keeps_time_of(run_id):
        # Whoever kept the time of this run drains, and says so with a wake.
        wake = Wake(run_id, row["queue"], row["kind"], row["priority"], cause="timer")
        engine.wake_later(wake, float(row["early"] or math.inf))
    if row["status"] != Status.QUEUED:
        return Report(run_id, "busy" if row["status"] == Status.RUNNING else row["status"], row["kind"])
    early = float(row["early"])
    if early > 0:
        engine.publisher.soon(Wake(run_id, row["queue"], row["kind"], row["priority"], delay=early, cause="early"))
        return Report(run_id, "early", row["kind"], early=early)
    if engine.registry.get(row["kind"]) is not None:
        return Report(run_id, "busy", row["kind"])
    engine.handing_on.hand_on(Wake(run_id, row["queue"], row["kind"], row["priority"], cause="hand on"))
    return Report(run_id, "elsewhere", row["kind"])
