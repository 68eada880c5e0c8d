from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from examples.support_desk import orders, shop
from examples.support_desk.audit import Large, audit
from examples.support_desk.records import RefundAnswer, RefundWish
from examples.support_desk.shop import Connection

HEADPHONES = RefundWish(order_id="SO-10401", cents=8990, reason="damaged")


def at_once(url: str, wish: RefundWish, keys: Sequence[str]) -> list[RefundAnswer]:
    barrier = threading.Barrier(len(keys))

    def ask(key: str) -> RefundAnswer:
        with shop.connect(url) as own:
            barrier.wait(10)
            return orders.issue_refund(own, wish, idempotency_key=key)

    with ThreadPoolExecutor(len(keys)) as pool:
        return list(pool.map(ask, keys))


def test_the_same_key_gets_the_first_refund_again(connection: Connection):
    first = orders.issue_refund(connection, HEADPHONES, idempotency_key="k", asked_by="run-1")
    again = orders.issue_refund(connection, HEADPHONES, idempotency_key="k", asked_by="run-1")

    assert first.status == "issued"
    assert again == first
    books = audit(connection)
    assert (books.refunds, books.attempts, books.keys, books.repeated) == (1, 2, 1, 1)
    assert books.cents_by_run == {"run-1": 8990}
    assert orders.find_refund(connection, "k") == first.refund
    assert orders.find_refund(connection, "other") is None


def test_eight_racers_with_one_key_get_one_refund(shop_url: str, connection: Connection):
    answers = at_once(shop_url, HEADPHONES, ["k"] * 8)

    assert len({answer.refund.refund_id for answer in answers if answer.refund}) == 1
    assert {answer.status for answer in answers} == {"issued"}
    assert audit(connection).refunds == 1


def test_two_runs_with_the_same_complaint_are_paid_once(shop_url: str, connection: Connection):
    answers = at_once(shop_url, HEADPHONES, ["a", "b"])

    assert sorted(answer.status for answer in answers) == ["issued", "refused"]
    assert audit(connection).refunds == 1


def test_a_key_that_stands_for_another_refund_is_refused(connection: Connection):
    orders.issue_refund(connection, HEADPHONES, idempotency_key="k")
    other = RefundWish(order_id="SO-10403", cents=4950, reason="wrong_item")

    with pytest.raises(orders.KeyReused, match=r"`k` stands for refund \d+ of order `SO-10401`"):
        orders.issue_refund(connection, other, idempotency_key="k")
    assert audit(connection).cents == 8990


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (RefundWish(order_id="SO-99999", cents=100, reason="damaged"), "no order"),
        (RefundWish(order_id="SO-10401", sku="XX-1", cents=100, reason="damaged"), "no item"),
        (RefundWish(order_id="SO-10401", cents=0, reason="damaged"), "positive"),
        (RefundWish(order_id="SO-10401", cents=-5, reason="damaged"), "positive"),
        (RefundWish(order_id="SO-10401", cents=8991, reason="damaged"), "only 8990 cents are left"),
        (RefundWish(order_id="SO-10406", sku="CB-005", cents=2401, reason="damaged"), "only 2400 cents are left"),
        (RefundWish(order_id="SO-10407", cents=129900, reason="damaged"), "above 15000 cents a colleague approves"),
    ],
)
def test_what_is_not_owed_is_refused_and_nothing_is_paid(connection: Connection, wish: RefundWish, why: str):
    answer = orders.issue_refund(connection, wish, idempotency_key="k")

    assert answer.status == "refused"
    assert why in answer.why
    books = audit(connection)
    assert (books.refunds, books.attempts, books.refused) == (0, 1, 1)


LAPTOP = RefundWish(order_id="SO-10407", cents=129900, reason="damaged")


def test_what_somebody_approved_is_paid_above_the_limit_with_their_name_on_it(connection: Connection):
    answer = orders.issue_refund(connection, LAPTOP, idempotency_key="k", asked_by="run-1", approved_by="mira")

    assert answer.status == "issued"
    assert audit(connection).large == (Large(order_id="SO-10407", approved_by="mira", asked_by="run-1"),)


def test_no_approval_reaches_beyond_the_maximum(connection: Connection):
    connection.execute("UPDATE shop.policy_limits SET max_refund_cents = 100000")

    answer = orders.issue_refund(connection, LAPTOP, idempotency_key="k", approved_by="mira")
    assert (answer.status, answer.why) == ("refused", "more than 100000 cents is for the management to decide")


def test_the_database_itself_refuses_a_large_refund_without_a_name(connection: Connection):
    with pytest.raises(psycopg.errors.CheckViolation, match="needs an approval"):
        connection.execute(
            "INSERT INTO shop.refunds (order_id, cents, reason, idempotency_key)"
            " VALUES ('SO-10407', 129900, 'damaged', 'k')"
        )
    assert audit(connection).refunds == 0


def test_an_order_is_never_paid_back_beyond_its_price(connection: Connection):
    part = RefundWish(order_id="SO-10406", sku="SP-061", cents=5900, reason="damaged")
    rest = RefundWish(order_id="SO-10406", cents=2401, reason="wrong_item")
    orders.issue_refund(connection, part, idempotency_key="a")

    assert orders.issue_refund(connection, rest, idempotency_key="b").why == "only 2400 cents are left to refund"


def test_order_numbers_are_read_in_any_case(connection: Connection):
    order = orders.find_order(connection, " so-10401 ")
    wish = RefundWish(order_id=" so-10401 ", cents=8990, reason="damaged")

    assert order is not None
    assert order.order_id == "SO-10401"
    assert orders.issue_refund(connection, wish, idempotency_key="k").status == "issued"


def test_an_attempt_that_was_cut_off_is_on_record_and_its_key_is_still_good(shop_url: str, connection: Connection):
    with shop.connect(shop_url) as till, connection.transaction():
        connection.execute("SELECT 1 FROM shop.orders WHERE order_id = 'SO-10401' FOR UPDATE")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(terminate_when_blocked, shop_url, till.info.backend_pid)
            with pytest.raises(psycopg.OperationalError):
                orders.issue_refund(till, HEADPHONES, idempotency_key="k")

    books = audit(connection)
    assert (books.refunds, books.attempts, books.cut_off) == (0, 1, 1)
    assert orders.issue_refund(connection, HEADPHONES, idempotency_key="k").status == "issued"
    assert audit(connection).refunds == 1


def terminate_when_blocked(url: str, pid: int) -> None:
    deadline = time.monotonic() + 15
    with shop.connect(url) as own:
        while time.monotonic() < deadline:
            if own.execute("SELECT pg_blocking_pids(%s) <> '{}' AS blocked", [pid]).fetchone() == {"blocked": True}:
                own.execute("SELECT pg_terminate_backend(%s)", [pid])
                return


def test_the_audit_finds_a_refund_that_was_paid_twice(connection: Connection):
    """A control: the proof of the demo can fail."""
    for key in ("a", "b"):
        connection.execute(
            "INSERT INTO shop.refunds (idempotency_key, order_id, cents, reason) VALUES (%s, 'SO-10401', 100, 'late')",
            [key],
        )
        connection.execute(
            "INSERT INTO shop.refund_attempts (idempotency_key, asked_by, order_id, cents, reason)"
            " VALUES (%s, 'run-1', 'SO-10401', 100, 'late')",
            [key],
        )

    assert audit(connection).doubled_orders == ("SO-10401",)
    assert audit(connection).runs_that_asked_afresh == ("run-1",)


def test_a_second_shop_is_refused_and_the_first_stays(connection: Connection):
    with pytest.raises(psycopg.errors.DuplicateSchema):
        shop.create_shop(connection)
    assert len(orders.orders_of_customer(connection, "JONAS.weber@example.com")) == 2


def test_without_a_database_the_variable_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(shop.URL_VARIABLE, raising=False)
    with pytest.raises(shop.ShopNotConfigured, match="SHOP_DATABASE_URL"):
        shop.connect()
