"""What the shop knows, as values: orders, its answers about policy, refunds.

It owns the words that the database, the tools and the agent share. It never does anything.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

Reason = Literal["damaged", "wrong_item", "late", "not_delivered", "changed_mind"]
OrderId = Annotated[str, StringConstraints(strip_whitespace=True, to_upper=True)]


class Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Item(Record):
    sku: str
    title: str
    category: str
    quantity: int
    unit_cents: int

    @property
    def cents(self) -> int:
        return self.quantity * self.unit_cents


class RefundWish(Record):
    """Money that somebody wants back. Without a `sku` it is for the whole order."""

    order_id: OrderId
    sku: str | None = None
    cents: int
    reason: Reason


class Refund(RefundWish):
    """Money that was given back."""

    refund_id: int


class Order(Record):
    order_id: str
    email: str
    ordered_on: date
    promised_on: date
    delivered_on: date | None
    items: list[Item]
    refunds: list[Refund]
    today: date
    """The shop's own date when it looked; every age is counted to it."""


class OrderAnswer(Record):
    """What looking up an order number came to."""

    order: Order | None
    why: str = ""


class CustomerAnswer(Record):
    """The orders that were placed from one address, the latest first."""

    email: str
    orders: list[Order]


class ReasonRule(Record):
    reason: Reason
    percent: int
    min_window_days: int
    days_overdue: int


class CategoryRule(Record):
    category: str
    window_days: int
    returnable: bool


class Policy(Record):
    reasons: dict[str, ReasonRule]
    categories: dict[str, CategoryRule]
    approval_above_cents: int
    max_refund_cents: int


class PolicyAnswer(Record):
    """Whether a refund is due for one order, or one item of it, and how much at most.

    A `needs_approval` refund is due, but not for the agent alone to issue.
    """

    order_id: str
    sku: str | None
    reason: Reason
    due: bool
    max_refund_cents: int = 0
    needs_approval: bool = False
    why: str


class RefundAnswer(Record):
    """How asking for a refund ended. `refused` means that no money moved, and `why` says what for."""

    status: Literal["issued", "refused"]
    refund: Refund | None = None
    why: str = ""
