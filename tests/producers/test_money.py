"""Costs, limits and budgets: what cannot be one is refused before anything is stored, whichever way it comes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from agentrun import Client
from agentrun.core.actors import Actor, Scope
from agentrun.core.errors import InvalidRequest
from agentrun.store.database import Database
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

NAN, ENDLESS = float("nan"), float("inf")
NO_COSTS = ("x", ENDLESS, NAN, -100, Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), 1e30, 10**10, True, [1])
NO_TOKENS = ("x", -1, 2**70, NAN, 1.5, True)
NO_LIMITS = (
    3, [1], "x", {"max_cost": NAN}, {"max_cost": ENDLESS}, {"max_cost": "1"}, {"max_cost": Decimal("1e400")},
    {"max_cost": True}, {"max_tokens": Decimal("NaN")}, {"max_tokens": 10**5000}, {"max_model_calls": -1}, {1: 2},
)  # fmt: skip


@pytest.mark.parametrize("cost", NO_COSTS)
def test_what_can_be_no_cost_is_refused(client: Client, cost: Any) -> None:
    with pytest.raises(InvalidRequest, match="planned_cost must be US dollars"):
        client.enqueue("digest", planned_cost=cost)
    for operator in (client, client.acting(Actor("ada", frozenset(Scope)))):
        with pytest.raises(InvalidRequest, match="max_cost must be US dollars"):
            operator.set_budget("joe", period="day", max_cost=cost)
    assert (client.list(), client.budgets()) == ([], [])


@pytest.mark.parametrize("tokens", NO_TOKENS)
def test_what_can_be_no_number_of_tokens_is_refused(client: Client, tokens: Any) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens must be a whole number"):
        client.set_budget("joe", period="month", max_tokens=tokens)
    assert client.budgets() == []


@pytest.mark.parametrize("limits", NO_LIMITS)
def test_what_can_be_no_limits_is_refused(client: Client, limits: Any) -> None:
    for verb in (lambda: client.enqueue("digest", limits=limits), lambda: client.run(_body, limits=limits)):
        with pytest.raises(InvalidRequest, match=r"^limits"):
            verb()
    assert client.list() == []


@pytest.mark.parametrize("cost", ["1e30", "inf"])
def test_the_command_line_says_what_a_ceiling_can_be(cli: Cli, client: Client, cost: str) -> None:
    refused = cli("budget", "joe", "--period", "day", "--max-cost", cost, "--json")
    assert (refused.code, refused.out) == (5, "")
    assert "max_cost must be US dollars" in refused.err
    assert client.budgets() == []


def test_the_largest_and_the_least_are_kept_as_they_were_said(client: Client, database: Database) -> None:
    client.set_budget("joe", period="day", max_cost=Decimal(9999999999), max_tokens=2**63 - 1)
    client.set_budget("joe", period="month", max_cost=Decimal(0), max_tokens=0)
    ceilings = [(row["max_cost"], row["max_tokens"]) for row in client.budgets("joe")]
    assert ceilings == [(Decimal(9999999999), 2**63 - 1), (0, 0)]
    client.enqueue("digest", planned_cost=Decimal("0.1"), limits={"max_cost": Decimal("1.5"), "max_tokens": 1e6})
    with database.connection() as connection:
        (row,) = connection.execute("SELECT planned_cost, limits FROM agentrun.runs").fetchall()
    assert row["planned_cost"] == Decimal("0.1")
    assert row["limits"] == {"max_cost": 1.5, "max_tokens": 1e6}


@pytest.mark.parametrize("owner", ["", "\x00", 7])
def test_a_budget_is_somebodys(client: Client, owner: Any) -> None:
    with pytest.raises(InvalidRequest, match="owner must be 1 to 200"):
        client.set_budget(owner, period="day", max_tokens=1)


async def _body(ctx: Any, request: Any) -> None: ...
