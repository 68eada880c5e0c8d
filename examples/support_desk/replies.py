"""The mails that the scripted model writes back.

It owns their wording. It never decides anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from examples.support_desk.reading import Reading
from examples.support_desk.records import Order, Refund


def refunded(mail: Reading, refunds: Sequence[Refund], denied: Sequence[str]) -> str:
    sums = ", ".join(f"{money(refund.cents)} for order {refund.order_id}" for refund in refunds)
    more = f" For the rest a colleague decided: {'; '.join(denied)}." if denied else ""
    return _letter(mail, f"we are sorry about that. You get {sums} back; it takes two to three days to arrive.{more}")


def refused(mail: Reading, order_id: str, why: Sequence[str]) -> str:
    reasons = "; ".join(dict.fromkeys(why))
    return _letter(mail, f"we looked at order {order_id} and cannot give you money back for it: {reasons}.")


def needs_approval(mail: Reading, order_id: str) -> str:
    return _letter(
        mail, f"your claim for order {order_id} is justified. A colleague has to release a sum of this size."
    )


def not_theirs(mail: Reading) -> str:
    return _letter(mail, "this order was placed from another address than yours. A colleague will look into it.")


def tool_failed(mail: Reading) -> str:
    return _letter(mail, "we could not look into your order just now. A colleague will take care of it.")


def which_order(mail: Reading) -> str:
    numbers = ", ".join(mail.order_ids)
    problem = f"we find no order {numbers}" if numbers else "we cannot tell which order you mean"
    return _letter(mail, f"{problem}. Could you send us the order number, as in SO-10401?")


def which_item(mail: Reading, order: Order) -> str:
    titles = ", ".join(item.title for item in order.items)
    return _letter(mail, f"which part of order {order.order_id} do you mean: {titles}?")


def status(mail: Reading, orders: Sequence[Order]) -> str:
    lines = "; ".join(_status(order) for order in orders)
    return _letter(mail, f"thank you for writing to us. {lines}.")


def money(cents: int) -> str:
    return f"{cents / 100:,.2f} EUR"


def _status(order: Order) -> str:
    if order.delivered_on is None:
        return f"Order {order.order_id} is on its way and promised for {order.promised_on:%d %B}"
    return f"Order {order.order_id} was delivered on {order.delivered_on:%d %B}"


def _letter(mail: Reading, text: str) -> str:
    return f"Dear {mail.sender},\n\n{text}\n\nYour support desk"
