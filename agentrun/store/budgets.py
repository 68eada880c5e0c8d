"""Owners' budgets per day and month, and what was spent. Days and months are the database's, in UTC."""

from __future__ import annotations

from sqlalchemy import BigInteger, Numeric, Text, and_, case, cast, func, literal_column, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.types import DateTime

from agentrun.store.mover import NAMESPACE
from agentrun.store.sql import Statement, compiled, later, now, number, param, word
from agentrun.store.tables import budgets, spend

OWNER = param("owner", Text)
TODAY = cast(func.date_trunc(word("day"), func.timezone(literal_column("'UTC'"), now())), DateTime)
THIS_MONTH = cast(func.date_trunc(word("month"), func.timezone(literal_column("'UTC'"), now())), DateTime)


def _exceeded() -> Statement:
    """The owner's budgets that are spent, or would be with `planned` cost on top. No row: go on."""
    since = case((budgets.c.period == word("day"), TODAY), else_=THIS_MONTH)
    mine = and_(spend.c.namespace == budgets.c.namespace, spend.c.owner == budgets.c.owner, spend.c.day >= since)
    tokens = func.coalesce(select(func.sum(spend.c.tokens)).where(mine).scalar_subquery(), number(0))
    cost = func.coalesce(select(func.sum(spend.c.cost)).where(mine).scalar_subquery(), number(0))
    planned = func.coalesce(param("planned", Numeric), number(0))
    spent = or_(tokens >= budgets.c.max_tokens, cost >= budgets.c.max_cost, cost + planned > budgets.c.max_cost)
    columns = (budgets.c.period, budgets.c.max_tokens, budgets.c.max_cost, tokens.label("tokens"), cost.label("cost"))
    return compiled(
        "budgets_exceeded", select(*columns).where(budgets.c.namespace == NAMESPACE, budgets.c.owner == OWNER, spent)
    )


def _set() -> Statement:
    given = insert(budgets).values(
        namespace=NAMESPACE,
        owner=OWNER,
        period=param("period", Text),
        max_tokens=param("max_tokens", BigInteger),
        max_cost=param("max_cost", Numeric),
    )
    limits = {"max_tokens": given.excluded.max_tokens, "max_cost": given.excluded.max_cost}
    return compiled(
        "budget_set",
        given.on_conflict_do_update(index_elements=["namespace", "owner", "period"], set_=limits).returning(
            budgets.c.owner
        ),
    )


def _listed() -> Statement:
    since = case((budgets.c.period == word("day"), TODAY), else_=THIS_MONTH)
    mine = and_(spend.c.namespace == budgets.c.namespace, spend.c.owner == budgets.c.owner, spend.c.day >= since)
    tokens = func.coalesce(select(func.sum(spend.c.tokens)).where(mine).scalar_subquery(), number(0)).label("tokens")
    cost = func.coalesce(select(func.sum(spend.c.cost)).where(mine).scalar_subquery(), number(0)).label("cost")
    columns = (budgets.c.owner, budgets.c.period, budgets.c.max_tokens, budgets.c.max_cost, tokens, cost)
    everyone = or_(OWNER.is_(None), budgets.c.owner == OWNER)
    listing = select(*columns).where(budgets.c.namespace == NAMESPACE, everyone)
    return compiled("budgets_listed", listing.order_by(budgets.c.owner, budgets.c.period))


BUDGETS_EXCEEDED = later(_exceeded)
BUDGET_SET = later(_set)
BUDGETS_LISTED = later(_listed)
