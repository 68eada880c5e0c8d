"""Reads back from the shop what really happened to its money, so that the demo can prove it.

It owns the questions about refunds and attempts. It never changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.support_desk.shop import Connection

ATTEMPTS = """
SELECT count(*)                                      AS attempts,
       count(DISTINCT idempotency_key)               AS keys,
       count(*) FILTER (WHERE outcome = 'repeated')  AS repeated,
       count(*) FILTER (WHERE outcome = 'refused')   AS refused,
       count(*) FILTER (WHERE outcome IS NULL)       AS cut_off
  FROM shop.refund_attempts
"""
# The same complaint about the same thing, or more money than was paid: it must never come to either.
DOUBLED = """
SELECT order_id FROM shop.refunds GROUP BY order_id, sku, reason HAVING count(*) > 1
UNION
SELECT order_id FROM shop.refunds GROUP BY order_id
HAVING sum(cents) > (SELECT sum(quantity * unit_cents) FROM shop.order_items i WHERE i.order_id = refunds.order_id)
"""
# One run, one thing, two keys: the run asked a second time as if it had never asked.
ASKED_AFRESH = """
SELECT asked_by FROM shop.refund_attempts WHERE asked_by IS NOT NULL
 GROUP BY asked_by, order_id, sku, reason HAVING count(DISTINCT idempotency_key) > 1
"""
LARGE = """
SELECT order_id, approved_by, asked_by
  FROM shop.refunds
  JOIN (SELECT DISTINCT idempotency_key, asked_by FROM shop.refund_attempts) AS asked USING (idempotency_key)
 WHERE cents > (SELECT approval_above_cents FROM shop.policy_limits)
 ORDER BY order_id
"""


@dataclass(frozen=True, kw_only=True)
class Large:
    """A refund above the limit: who approved it in the shop's own books, and the run that asked for it."""

    order_id: str
    approved_by: str | None
    asked_by: str | None


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The shop's books after the demo. `cut_off` attempts never heard an answer: their worker died."""

    refunds: int
    cents: int
    attempts: int
    keys: int
    repeated: int
    refused: int
    cut_off: int
    doubled_orders: tuple[str, ...]
    runs_that_asked_afresh: tuple[str, ...]
    cents_by_run: dict[str, int]
    large: tuple[Large, ...] = ()


def audit(connection: Connection) -> Audit:
    """Everything at one moment."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        totals = connection.execute("SELECT count(*) AS refunds, coalesce(sum(cents), 0) AS cents FROM shop.refunds")
        return Audit(
            **(totals.fetchone() or {}),
            **(connection.execute(ATTEMPTS).fetchone() or {}),
            doubled_orders=tuple(row["order_id"] for row in connection.execute(DOUBLED)),
            runs_that_asked_afresh=tuple(row["asked_by"] for row in connection.execute(ASKED_AFRESH)),
            cents_by_run=_cents_by_run(connection),
            large=tuple(Large(**row) for row in connection.execute(LARGE)),
        )


def _cents_by_run(connection: Connection) -> dict[str, int]:
    rows = connection.execute(
        "SELECT asked_by, sum(cents) AS cents FROM shop.refunds JOIN"
        " (SELECT DISTINCT idempotency_key, asked_by FROM shop.refund_attempts WHERE asked_by IS NOT NULL) AS asked"
        " USING (idempotency_key) GROUP BY asked_by"
    )
    return {row["asked_by"]: int(row["cents"]) for row in rows}
