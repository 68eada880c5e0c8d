"""The order database's verbs: look up, check against policy, and give money back once per key.

It owns every statement that reads or changes an order. It never decides what is due: that is `policy.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

from examples.support_desk.policy import decide, refusal_of
from examples.support_desk.records import (
    CategoryRule,
    Order,
    Policy,
    PolicyAnswer,
    Reason,
    ReasonRule,
    Refund,
    RefundAnswer,
    RefundWish,
)
from examples.support_desk.shop import Connection

ITEMS = "SELECT sku, title, category, quantity, unit_cents FROM shop.order_items WHERE order_id = %s ORDER BY sku"
REFUNDS = "SELECT refund_id, order_id, sku, cents, reason FROM shop.refunds"
INSERT_REFUND = """
INSERT INTO shop.refunds (order_id, sku, cents, reason, idempotency_key, approved_by)
VALUES (%(order_id)s, %(sku)s, %(cents)s, %(reason)s, %(key)s, %(approved_by)s)
RETURNING refund_id, order_id, sku, cents, reason
"""
INSERT_ATTEMPT = """
INSERT INTO shop.refund_attempts (order_id, sku, cents, reason, idempotency_key, asked_by)
VALUES (%(order_id)s, %(sku)s, %(cents)s, %(reason)s, %(key)s, %(asked_by)s)
RETURNING attempt_id
"""


class KeyReused(ValueError):
    """An idempotency key came back with a wish other than the one it stands for."""

    def __init__(self, key: str, first: Refund) -> None:
        self.key = key
        self.first = first
        super().__init__(
            f"idempotency key `{key}` stands for refund {first.refund_id} of order `{first.order_id}` "
            f"({first.cents} cents, {first.reason}); use a new key for another refund"
        )


def find_order(connection: Connection, order_id: str) -> Order | None:
    """The order with its items and refunds, or None when the shop has no such order."""
    with connection.transaction():
        return _order(connection, order_id)


def orders_of_customer(connection: Connection, email: str) -> list[Order]:
    """Every order of this customer, the latest first. Empty when the shop does not know the address."""
    with connection.transaction():
        ids = connection.execute(
            "SELECT order_id FROM shop.orders WHERE email = lower(%s) ORDER BY ordered_on DESC, order_id",
            [email.strip()],
        ).fetchall()
        return [order for row in ids if (order := _order(connection, row["order_id"]))]


def check_policy(connection: Connection, order_id: str, reason: Reason, sku: str | None = None) -> PolicyAnswer:
    """What the policy says about a refund for `reason`: for one item, or for the whole order without a `sku`."""
    order = find_order(connection, order_id)
    if order is None:
        return PolicyAnswer(order_id=order_id, sku=sku, reason=reason, due=False, why=f"no order `{order_id}`")
    return decide(order, _policy(connection), reason, sku)


def find_refund(connection: Connection, idempotency_key: str) -> Refund | None:
    """The refund that was given under this key, or None when none was."""
    row = connection.execute(f"{REFUNDS} WHERE idempotency_key = %s", [idempotency_key]).fetchone()
    return Refund.model_validate(row) if row else None


def approval_limit(connection: Connection) -> int:
    """Cents: a refund above it needs somebody's approval."""
    return _one(connection, "SELECT approval_above_cents FROM shop.policy_limits")["approval_above_cents"]


def issue_refund(
    connection: Connection,
    wish: RefundWish,
    *,
    idempotency_key: str,
    asked_by: str | None = None,
    approved_by: str | None = None,
) -> RefundAnswer:
    """Give the money back, once per `idempotency_key`: the same key again gets the first refund again.

    Every call is on record in `shop.refund_attempts` before any money moves, with `asked_by` (the run, where there is
    one). `refused`, and nothing is given, when the order or item is unknown, the amount is not positive, more than
    what was paid and not yet given back, above what needs an approval and nobody approved it (`approved_by`), above
    what anybody here may approve, or when the same complaint was paid before.
    Raises `KeyReused` when the key stands for another refund.
    """
    row = {**wish.model_dump(), "key": idempotency_key, "asked_by": asked_by, "approved_by": approved_by}
    attempt = _one(connection, INSERT_ATTEMPT, row)["attempt_id"]
    with connection.transaction():
        # The order's row serialises everybody who wants money back for it, and every repeat of the same key.
        order = _order(connection, wish.order_id, lock="FOR UPDATE")
        first = find_refund(connection, idempotency_key)
        refusal = None if first else refusal_of(wish, order, _policy(connection), approved_by)
        refund = first or (None if refusal else Refund.model_validate(_one(connection, INSERT_REFUND, row)))
        _record_outcome(connection, attempt, wish, first, refund)
    if first and RefundWish(**first.model_dump(exclude={"refund_id"})) != wish:
        raise KeyReused(idempotency_key, first)
    return RefundAnswer(status="issued" if refund else "refused", refund=refund, why=refusal or "")


def _record_outcome(
    connection: Connection, attempt: int, wish: RefundWish, first: Refund | None, refund: Refund | None
) -> None:
    outcome = "repeated" if first else "issued" if refund else "refused"
    connection.execute("UPDATE shop.refund_attempts SET outcome = %s WHERE attempt_id = %s", [outcome, attempt])


def _order(connection: Connection, order_id: str, lock: LiteralString = "") -> Order | None:
    row = connection.execute(
        "SELECT order_id, email, ordered_on, promised_on, delivered_on, current_date AS today"
        f"  FROM shop.orders WHERE order_id = upper(%s) {lock}",
        [order_id.strip()],
    ).fetchone()
    if row is None:
        return None
    found = row["order_id"]
    items = connection.execute(ITEMS, [found]).fetchall()
    refunds = connection.execute(f"{REFUNDS} WHERE order_id = %s ORDER BY refund_id", [found]).fetchall()
    return Order.model_validate({**row, "items": items, "refunds": refunds})


def _policy(connection: Connection) -> Policy:
    limits = _one(connection, "SELECT approval_above_cents, max_refund_cents FROM shop.policy_limits")
    reasons = connection.execute("SELECT reason, percent, min_window_days, days_overdue FROM shop.policy_reasons")
    categories = connection.execute("SELECT category, window_days, returnable FROM shop.policy_categories")
    return Policy(
        reasons={row["reason"]: ReasonRule.model_validate(row) for row in reasons},
        categories={row["category"]: CategoryRule.model_validate(row) for row in categories},
        **limits,
    )


def _one(connection: Connection, statement: LiteralString, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    row = connection.execute(statement, values).fetchone()
    assert row is not None
    return row
