from __future__ import annotations

import pytest

from examples.support_desk import orders
from examples.support_desk.records import Reason, RefundWish
from examples.support_desk.shop import Connection


@pytest.mark.parametrize(
    ("order_id", "reason", "sku", "cents"),
    [
        ("SO-10401", "damaged", None, 8990),
        ("SO-10401", "changed_mind", None, 8990),
        ("SO-10404", "damaged", "MG-004", 3600),
        ("SO-10404", "damaged", None, 14200),
        ("SO-10410", "damaged", "TE-019", 1600),  # food, past its own window, but broken goods have 30 days
        ("SO-10410", "late", None, 1400),
        ("SO-10411", "not_delivered", None, 4200),
        ("SO-10411", "late", None, 840),
    ],
)
def test_what_is_due_is_granted(connection: Connection, order_id: str, reason: Reason, sku: str | None, cents: int):
    answer = orders.check_policy(connection, order_id, reason, sku)

    assert (answer.due, answer.max_refund_cents, answer.needs_approval) == (True, cents, False)


@pytest.mark.parametrize(
    ("order_id", "reason", "sku", "why"),
    [
        ("SO-10402", "changed_mind", None, "delivered 97 days ago; the window was 60 days"),
        ("SO-10402", "damaged", None, "the window was 60 days"),
        ("SO-10408", "changed_mind", None, "hygiene do not come back"),
        ("SO-10401", "late", None, "promised for"),
        ("SO-10401", "not_delivered", None, "delivered on"),
        ("SO-10409", "not_delivered", None, "counts as not_delivered 7 days after"),
        ("SO-10409", "damaged", None, "not delivered yet"),
        ("SO-10401", "damaged", "XX-1", "no such item"),
        ("SO-99999", "damaged", None, "no order"),
    ],
)
def test_what_is_not_due_is_refused_with_its_reason(
    connection: Connection, order_id: str, reason: Reason, sku: str | None, why: str
):
    answer = orders.check_policy(connection, order_id, reason, sku)

    assert (answer.due, answer.max_refund_cents) == (False, 0)
    assert why in answer.why


def test_a_sum_above_the_limit_needs_an_approval(connection: Connection):
    answer = orders.check_policy(connection, "SO-10407", "damaged")

    assert (answer.due, answer.needs_approval, answer.max_refund_cents) == (True, True, 129900)


def test_a_sum_above_the_maximum_is_never_due(connection: Connection):
    connection.execute("UPDATE shop.policy_limits SET max_refund_cents = 100000")

    answer = orders.check_policy(connection, "SO-10407", "damaged")

    assert not answer.due
    assert "more than 100000 cents" in answer.why


def test_the_last_day_of_the_window_still_counts(connection: Connection):
    move = "UPDATE shop.orders SET delivered_on = current_date - %s, ordered_on = current_date - 90,"
    move += " promised_on = current_date - %s WHERE order_id = 'SO-10401'"
    due: list[bool] = []
    for days in (30, 31):
        connection.execute(move, [days, days])
        due.append(orders.check_policy(connection, "SO-10401", "changed_mind").due)

    assert due == [True, False]


def test_a_late_fee_is_paid_once(connection: Connection):
    late = RefundWish(order_id="SO-10410", cents=1400, reason="late")
    orders.issue_refund(connection, late, idempotency_key="a")

    assert orders.check_policy(connection, "SO-10410", "late").why == "this was refunded already"
    assert orders.issue_refund(connection, late, idempotency_key="b").status == "refused"
    assert orders.check_policy(connection, "SO-10410", "damaged").max_refund_cents == 5600
