"""Model requests as steps: read-only, keyed by their position in the agent's run, with what they used and cost."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ModelResponse

from agentrun.agents.scope import Scope
from agentrun.agents.units import Operation, caller, decoder, encoder
from agentrun.core.words import Effect, StepKind
from agentrun.runtime.stepspec import Spent, StepSpec


def model_step(scope: Scope, operation: Operation, params: Any, *, key: str, name: str) -> StepSpec:
    """One request to a model. Its name is the agent's, so that a run may go on with another model.

    The run's limits and its owner's budgets are checked where every step of this kind passes: `Steps.may_spend`.
    """
    return StepSpec(
        key=key,
        kind=StepKind.MODEL,
        name=name,
        effect=Effect.READ_ONLY,
        call=caller(operation, params),
        encode=encoder(operation),
        decode=decoder(operation),
        retries=scope.context.wishes.retries,
        spent=spent,
    )


def spent(value: Any) -> Spent | None:
    """The tokens and the cost of a response; None for what is none."""
    response = value if isinstance(value, ModelResponse) else getattr(value, "response", None)
    if not isinstance(response, ModelResponse):
        return None
    usage = response.usage
    return Spent(response.model_name or "", usage.input_tokens, usage.output_tokens, _cost(response))


def _cost(response: ModelResponse) -> str | None:
    """US dollars: what a gateway reported, else by the list of prices."""
    if response.usage.cost is not None:
        return str(response.usage.cost)
    try:
        return str(response.cost().total_price)
    except Exception:
        # A model without a known price, or a response without usage: its tokens are counted, and its cost is unknown.
        return None
