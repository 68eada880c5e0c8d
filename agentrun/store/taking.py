"""Taking a step that is on offer, exclusively and under an epoch of its own, and holding it: by beats, by a lease."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Text,
    and_,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID
from sqlalchemy.sql.selectable import CTE

from agentrun.core.words import StepKind, StepStatus
from agentrun.store.elsewhere import OFFER_COLUMNS, STARTED, TAKEN_BY_ME, TOKEN, locked_many, locked_run, policy
from agentrun.store.mover import BY, RUN_ID
from agentrun.store.sql import (
    Statement,
    beside_key,
    compiled,
    compiled_many,
    later,
    now,
    number,
    param,
    recordset,
    seconds,
    word,
)
from agentrun.store.tables import event_seq, runs, steps
from agentrun.store.waits import KEY

LEASE = param("lease", Double)
_ON_OFFER = beside_key(steps.c.status) == word(StepStatus.OFFERED)

# What the body said of its effect, and what the process that takes it declares.
_POLICY_EFFECT = steps.c.policy.op("->>")(literal_column("'effect'"))
_DECLARED_HERE = param("effects", JSONB).op("->>")(steps.c.name)

_GOES_ON = (runs.c.finished_at.is_(None), runs.c.cancel_requested_at.is_(None))


def _take_remote() -> Statement:
    """Refuses (no row): not on offer, not due, the run is final or about to be cancelled, or unknown here."""
    taken = _take_known(locked_run(*_GOES_ON), KEY, TOKEN)
    return compiled("take_step", select(taken), _take_many())


def _take_many() -> Statement:
    """As `take_step`, for the messages of a batch. Of two for one step, one takes it."""
    columns = {"run_id": UUID, "key": Text, "token_digest": Text}
    source = locked_many(recordset("mine", columns), *_GOES_ON)
    return compiled_many("take_steps", select(_take_known(source, source.c.key, source.c.token_digest)), columns)


def _take_known(source: CTE, key: ColumnElement[str], token: ColumnElement[str]) -> CTE:
    return _take(
        source,
        key,
        steps.c.kind == word(StepKind.REMOTE),
        steps.c.name == func.any(param("names", ARRAY(Text))),
        lease_expires_at=now() + seconds(LEASE),
        token_digest=token,
        reconcilable=steps.c.name == func.any(param("reconcilable", ARRAY(Text))),
        effect=func.coalesce(_POLICY_EFFECT, _DECLARED_HERE, steps.c.effect),
    )


def _take_external() -> Statement:
    """A program elsewhere takes a step and gets a token for it. Refuses as `take_step`, and a step with a queue."""
    # Without a window nobody's silence is too long. A time in 30 years is one that every driver can read.
    window = now() + seconds(func.coalesce(policy("window"), number(10**9)))
    of_kind = steps.c.kind == word(StepKind.EXTERNAL)
    taken = _take(locked_run(*_GOES_ON), KEY, of_kind, lease_expires_at=window, token_digest=TOKEN)
    return compiled("take_external", select(taken))


def _take(source: CTE, key: ColumnElement[str], *guards: Any, **values: Any) -> CTE:
    """The one place where a step is taken: exclusive, because it has to be on offer."""
    nth = (source.c.nth,) if "nth" in source.c else ()
    return (
        update(steps)
        .where(steps.c.run_id == source.c.id, steps.c.key == key, _ON_OFFER, steps.c.due_at <= now(), *guards)
        .values(
            status=word(StepStatus.STARTED),
            step_epoch=func.coalesce(steps.c.step_epoch, number(0)) + number(1),
            by=BY,
            started_seq=event_seq.next_value(),
            started_at=now(),
            heartbeat_at=null(),
            due_at=now() + seconds(policy("timeout")),
            **values,
        )
        .returning(
            *OFFER_COLUMNS, steps.c.effect, steps.c.args, steps.c.step_epoch, steps.c.policy, steps.c.idempotency_key,
            source.c.owner, source.c.kind.label("run_kind"), source.c.priority, *nth,
        )
        .cte("taken")
    )  # fmt: skip


def _take_landed() -> Statement:
    """After a connection broke: did this take commit? Its token says so."""
    columns = (
        *OFFER_COLUMNS, steps.c.effect, steps.c.args, steps.c.step_epoch, steps.c.policy, steps.c.idempotency_key,
        runs.c.owner, runs.c.kind.label("run_kind"), runs.c.priority,
    )  # fmt: skip
    mine = (steps.c.run_id == RUN_ID, steps.c.key == KEY, STARTED, steps.c.token_digest == TOKEN)
    return compiled("take_landed", select(*columns).join(runs, runs.c.id == steps.c.run_id).where(*mine))


def _beat() -> Statement:
    """An explicit beat, with progress, of `silent_for` seconds ago: the step's silence starts anew then.

    Refuses: not taken by this one any more, or given up. Brings back whether the step's run is over, or about to be.
    """
    source = locked_run()
    spoken = now() - seconds(func.coalesce(param("silent_for", Double), number(0)))
    beat = (
        update(steps)
        .where(steps.c.run_id == source.c.id, steps.c.key == KEY, TAKEN_BY_ME, steps.c.lease_expires_at.is_not(None))
        .values(
            heartbeat_at=spoken,
            progress=func.coalesce(param("progress", JSON), steps.c.progress),
            due_at=spoken + seconds(policy("timeout")),
            # Only an external step has a window; the lease of a remote one is its process's to renew.
            lease_expires_at=func.coalesce(now() + seconds(policy("window")), steps.c.lease_expires_at),
        )
        .returning(steps.c.run_id, source.c.over)
    )
    return compiled("beat_step", select(beat.cte("beat")))


def _renew_steps() -> Statement:
    """One statement for every remote step that a process works on. Rows locked by their own write are passed over."""
    held = func.unnest(param("run_ids", ARRAY(UUID)), param("keys", ARRAY(Text)), param("epochs", ARRAY(BigInteger)))
    mine = held.table_valued("run_id", "key", "epoch", name="mine").render_derived(name="mine")
    still = and_(steps.c.run_id == mine.c.run_id, steps.c.key == mine.c.key)
    held_still = and_(STARTED, steps.c.step_epoch == mine.c.epoch, steps.c.lease_expires_at.is_not(None))
    free = (
        select(steps.c.run_id, steps.c.key)
        .join(mine, and_(still, held_still))
        .order_by(steps.c.run_id, steps.c.key)
        .with_for_update(skip_locked=True, of=steps)
        .cte("free")
    )
    renewed = (
        update(steps)
        .where(steps.c.run_id == free.c.run_id, steps.c.key == free.c.key)
        .values(lease_expires_at=now() + seconds(LEASE))
        .returning(steps.c.run_id, steps.c.key)
        .cte("renewed")
    )
    over = or_(runs.c.finished_at.is_not(None), runs.c.cancel_requested_at.is_not(None))
    seen = (
        select(
            mine.c.run_id,
            mine.c.key,
            held_still.is_(true()).label("held"),
            renewed.c.key.is_not(None).label("renewed"),
            over.is_(true()).label("over"),
        )
        .select_from(mine)
        .outerjoin(steps, still)
        .outerjoin(runs, runs.c.id == mine.c.run_id)
        .outerjoin(renewed, and_(renewed.c.run_id == mine.c.run_id, renewed.c.key == mine.c.key))
    )
    return compiled("renew_steps", seen)


TAKE = later(_take_remote)
TAKE_EXTERNAL = later(_take_external)
TAKE_LANDED = later(_take_landed)
BEAT = later(_beat)
RENEW_STEPS = later(_renew_steps)
