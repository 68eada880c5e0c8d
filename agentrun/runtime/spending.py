"""What a run may spend: its own limits, counted over all its segments, and its owner's budgets.

Asked in one place before every model call. A budget is a ceiling, not a counter: what was spent is read from what was
recorded, failed attempts included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from agentrun.core.errors import InvalidRequest
from agentrun.core.outcome import LimitReached
from agentrun.core.words import Reason
from agentrun.runtime.checks import is_whole, shown

LIMITS = ("max_model_calls", "max_tokens", "max_cost")

MOST_COST, MOST_COUNTED = 10**10 - 1, 2**63 - 1
"""US dollars, and what is counted: beyond, the database has no place for it."""


@dataclass(slots=True)
class Spending:
    """One run's counters, as its row had them at the claim and its segment has added since."""

    limits: Mapping[str, Any]
    model_calls: int
    tokens: int
    cost: Decimal

    @classmethod
    def of(cls, claimed: Mapping[str, Any]) -> Spending:
        """From a claimed row."""
        tokens = claimed["input_tokens"] + claimed["output_tokens"]
        return cls(claimed["limits"] or {}, claimed["model_calls"], tokens, claimed["cost"])

    def check(self) -> None:
        """Raises LimitReached where another model call would be beyond a limit of the run."""
        self._below("max_model_calls", self.model_calls, Reason.MAX_ITERATIONS)
        self._below("max_tokens", self.tokens, Reason.BUDGET_EXHAUSTED)
        self._below("max_cost", self.cost, Reason.BUDGET_EXHAUSTED)

    def add(self, tokens: int, cost: Decimal) -> None:
        """One model call has ended."""
        self.model_calls += 1
        self.tokens += tokens
        self.cost += cost

    def _below(self, name: str, spent: int | Decimal, reason: Reason) -> None:
        most = self.limits.get(name)
        if most is not None and spent >= Decimal(str(most)):
            raise LimitReached(reason, f"{name} of the run is {most}, and {spent} are spent")


def checked_limits(limits: object) -> dict[str, Any] | None:
    """Limits as they are stored; None stays None. Raises InvalidRequest for what is no object of names, an unknown
    name, and a value that cannot be a limit."""
    if limits is None:
        return None
    if not isinstance(limits, Mapping):
        raise InvalidRequest(f"limits must be an object with any of {', '.join(LIMITS)}, not {shown(limits)}")
    given = cast("Mapping[object, object]", limits)
    return {_known(name): _limit(f"limits.{name}", value, money=name == "max_cost") for name, value in given.items()}


def checked_cost(what: str, value: object) -> Decimal | None:
    """US dollars, as the database holds them, 0 to MOST_COST; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not 0 <= _finite(value) <= MOST_COST:
        raise InvalidRequest(f"{what} must be US dollars, a number of 0 to {MOST_COST:,}, not {shown(value)}")
    return Decimal(str(value))


def checked_tokens(what: str, value: object) -> int | None:
    """A whole number of tokens, as the database holds it; None stays None."""
    if value is None:
        return None
    if not is_whole(value, 0, MOST_COUNTED):
        raise InvalidRequest(f"{what} must be a whole number of 0 to {MOST_COUNTED:,}, not {shown(value)}")
    return value


def _known(name: object) -> str:
    if not isinstance(name, str) or name not in LIMITS:
        raise InvalidRequest(f"limits has no {shown(name)}; it takes {', '.join(LIMITS)}")
    return name


def _limit(what: str, value: object, *, money: bool) -> int | float:
    most = MOST_COST if money else MOST_COUNTED
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not 0 <= _finite(value) <= most:
        raise InvalidRequest(f"{what} must be a number of 0 to {most:,}, not {shown(value)}")
    return float(value) if isinstance(value, Decimal) else value


def _finite(value: float | Decimal) -> float | Decimal:
    """The number; less than any other for NaN, which compares with nothing and would be a ceiling for nobody."""
    finite = value.is_finite() if isinstance(value, Decimal) else isinstance(value, int) or math.isfinite(value)
    return value if finite else -1
