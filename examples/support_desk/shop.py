"""Opens the shop's database, and fills a new one from the files in `data/`.

It owns where the database is and what a fresh one holds. It never reads or changes an order: that is `orders.py`.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

URL_VARIABLE = "SHOP_DATABASE_URL"
HERE = Path(__file__).parent
DATA = HERE / "data"

Connection = psycopg.Connection[DictRow]
Row = dict[str, Any]

INSERT = """
INSERT INTO shop.customers         SELECT * FROM jsonb_populate_recordset(NULL::shop.customers,         %(customers)s);
INSERT INTO shop.policy_categories SELECT * FROM jsonb_populate_recordset(NULL::shop.policy_categories, %(categories)s);
INSERT INTO shop.policy_reasons    SELECT * FROM jsonb_populate_recordset(NULL::shop.policy_reasons,    %(reasons)s);
INSERT INTO shop.policy_limits     SELECT * FROM jsonb_populate_recordset(NULL::shop.policy_limits,     %(limits)s);
-- The files hold ages, not dates: the orders of a fresh shop are always as old as the mails say.
INSERT INTO shop.orders
SELECT order_id, email, current_date - ordered_days_ago, current_date - promised_days_ago,
       current_date - delivered_days_ago
  FROM jsonb_to_recordset(%(orders)s) AS file (order_id text, email text, ordered_days_ago integer,
                                               promised_days_ago integer, delivered_days_ago integer);
INSERT INTO shop.order_items       SELECT * FROM jsonb_populate_recordset(NULL::shop.order_items,       %(items)s);
"""


class ShopNotConfigured(RuntimeError):
    """No URL was given, and the environment has none."""

    def __init__(self) -> None:
        super().__init__(f"no order database: set `{URL_VARIABLE}` to a postgresql:// URL, or pass one")


def connect(url: str | None = None) -> Connection:
    """A connection in autocommit mode, so that each `transaction()` on it really is one.

    Takes `url`, else the variable `SHOP_DATABASE_URL`. Raises `ShopNotConfigured` when there is neither, and
    `psycopg.OperationalError` when nobody answers there.
    """
    found = url or os.environ.get(URL_VARIABLE)
    if not found:
        raise ShopNotConfigured
    return Connection.connect(found, autocommit=True, row_factory=dict_row)


def create_shop(connection: Connection) -> None:
    """Create the schema `shop` and fill it, in one transaction.

    Raises `psycopg.errors.DuplicateSchema` when the database has a shop already; nothing is changed then.
    """
    rows = _files()
    with connection.transaction(), psycopg.ClientCursor(connection) as cursor:
        cursor.execute((HERE / "schema.sql").read_bytes())
        cursor.execute(INSERT, {name: Jsonb(value) for name, value in rows.items()})


def drop_shop(connection: Connection) -> None:
    """Remove the schema `shop` with everything in it. Nothing happens when there is none."""
    connection.execute("DROP SCHEMA IF EXISTS shop CASCADE")


def _files() -> dict[str, list[Row]]:
    policy = json.loads((DATA / "policy.json").read_text("utf-8"))
    limits = {"only_row": True, **policy["limits"]}
    return {
        "customers": _csv("customers.csv"),
        "categories": policy["categories"],
        "reasons": policy["reasons"],
        "limits": [limits],
        "orders": _csv("orders.csv"),
        "items": _csv("order_items.csv"),
    }


def _csv(name: str) -> list[Row]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return [{column: value or None for column, value in row.items()} for row in csv.DictReader(file)]
