"""Decides what the shop owes: pure functions over an order and the policy's rules.

It owns the rules' meaning. It never reads the database, and never moves money.
"""

from __future__ import annotations

from examples.support_desk.records import Item, Order, Policy, PolicyAnswer, Reason, ReasonRule, RefundWish


def decide(order: Order, policy: Policy, reason: Reason, sku: str | None = None) -> PolicyAnswer:
    """What is due for `reason`: for one item, or for the whole order when `sku` is None."""
    items = [item for item in order.items if sku in (None, item.sku)]
    refusal = _refusal(order, policy, reason, items)
    cents = 0 if refusal else _due_cents(order, items, policy.reasons[reason], sku)
    if not refusal and (cents == 0 or already_refunded(order, reason, sku)):
        refusal = "this was refunded already"
    if not refusal and cents > policy.max_refund_cents:
        refusal = f"more than {policy.max_refund_cents} cents is for the management to decide"
    if refusal:
        return PolicyAnswer(order_id=order.order_id, sku=sku, reason=reason, due=False, why=refusal)
    needs_approval = cents > policy.approval_above_cents
    return PolicyAnswer(
        order_id=order.order_id,
        sku=sku,
        reason=reason,
        due=True,
        max_refund_cents=cents,
        needs_approval=needs_approval,
        why=f"above {policy.approval_above_cents} cents a colleague approves" if needs_approval else "covered",
    )


def refusal_of(wish: RefundWish, order: Order | None, policy: Policy, approved_by: str | None = None) -> str | None:
    """Why the till keeps its money for this wish, or None: the last look, whatever anybody decided before."""
    if order is None:
        return f"no order `{wish.order_id}`"
    if wish.sku is not None and wish.sku not in {item.sku for item in order.items}:
        return f"no item `{wish.sku}` in order `{wish.order_id}`"
    if wish.cents <= 0:
        return "a refund is a positive number of cents"
    if wish.cents > policy.max_refund_cents:
        return f"more than {policy.max_refund_cents} cents is for the management to decide"
    if wish.cents > policy.approval_above_cents and not approved_by:
        return f"above {policy.approval_above_cents} cents a colleague approves"
    if already_refunded(order, wish.reason, wish.sku):
        return "this was refunded already"
    if wish.cents > (left := remaining_cents(order, wish.sku)):
        return f"only {left} cents are left to refund"
    return None


def remaining_cents(order: Order, sku: str | None) -> int:
    """What was paid and not given back yet: never more than for the whole order, never more than for the item."""
    whole = sum(item.cents for item in order.items) - sum(refund.cents for refund in order.refunds)
    if sku is None:
        return whole
    paid = sum(item.cents for item in order.items if item.sku == sku)
    return min(whole, paid - sum(refund.cents for refund in order.refunds if refund.sku == sku))


def already_refunded(order: Order, reason: Reason, sku: str | None) -> bool:
    """Was the same complaint paid for before, for the same thing or for the whole order? One late fee, not two."""
    return any(refund.reason == reason and refund.sku in (None, sku) for refund in order.refunds)


def _refusal(order: Order, policy: Policy, reason: Reason, items: list[Item]) -> str | None:
    if not items:
        return "no such item in this order"
    if order.delivered_on is None:
        return _refusal_undelivered(order, policy.reasons[reason])
    if reason == "not_delivered":
        return f"delivered on {order.delivered_on}"
    return _refusal_delivered(order, policy, policy.reasons[reason], items)


def _refusal_undelivered(order: Order, rule: ReasonRule) -> str | None:
    overdue = (order.today - order.promised_on).days
    if rule.reason not in ("late", "not_delivered"):
        return "it is not delivered yet"
    if overdue < rule.days_overdue:
        return f"promised for {order.promised_on}; it counts as {rule.reason} {rule.days_overdue} days after that"
    if overdue > rule.min_window_days:
        return f"claims end {rule.min_window_days} days after the promised day"
    return None


def _refusal_delivered(order: Order, policy: Policy, rule: ReasonRule, items: list[Item]) -> str | None:
    assert order.delivered_on is not None
    rules = [policy.categories[item.category] for item in items]
    age = (order.today - order.delivered_on).days
    window = max(rule.min_window_days, min(category.window_days for category in rules))
    kept = [category.category for category in rules if not category.returnable]
    if rule.reason == "changed_mind" and kept:
        return f"goods of category {kept[0]} do not come back for a change of mind"
    if rule.reason == "late" and (order.delivered_on - order.promised_on).days < rule.days_overdue:
        return f"delivered on {order.delivered_on}, promised for {order.promised_on}"
    if age > window:
        return f"delivered {age} days ago; the window was {window} days"
    return None


def _due_cents(order: Order, items: list[Item], rule: ReasonRule, sku: str | None) -> int:
    return min(sum(item.cents for item in items) * rule.percent // 100, remaining_cents(order, sku))
