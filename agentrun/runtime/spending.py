"""What a run may spend: its own limits, counted over all its segments, and its owner's budgets.

Asked in one place before every model call. A budget is a ceiling, not a counter: what was spent is read from what was
recorded, failed attempts included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agentrun.core.errors import InvalidRequest
from agentrun.core.outcome import LimitReached
from agentrun.core.words import Reason

LIMITS = ("max_model_calls", "max_tokens", "max_cost")


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


def checked_limits(limits: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Limits as they are stored. Raises InvalidRequest for an unknown name or a value that is not positive."""
    if limits is None:
        return None
    for name, value in limits.items():
        if name not in LIMITS:
            raise InvalidRequest(f"limits has no `{name}`; it takes {', '.join(LIMITS)}")
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value < 0:
            raise InvalidRequest(f"limits.{name} must be a number of at least 0, not {value!r}")
    return {name: float(value) if isinstance(value, Decimal) else value for name, value in limits.items()}
