"""The scripted model: it works through a mail by rules, with the agent's own tools, where no real model is configured.

It owns what the next turn is, given the mail and the tool results so far. It never touches the shop but by tool calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from examples.support_desk import replies
from examples.support_desk.agent import Decision
from examples.support_desk.reading import Reading, read
from examples.support_desk.records import CustomerAnswer, Order, OrderAnswer, PolicyAnswer, Reason, RefundAnswer

NAME = "scripted model"
WHOLE_ORDER_REASONS = ("late", "not_delivered")


@dataclass
class Seen:
    """What the tools have answered so far. A tool that was not asked yet has None."""

    looked_up: list[OrderAnswer] | None = None
    customers: list[Order] | None = None
    policy: list[PolicyAnswer] | None = None
    refunds: list[RefundAnswer] | None = None
    denied: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Claim:
    order_id: str
    reason: Reason
    sku: str | None


Turn = list[ToolCallPart] | Decision


def scripted_model(delay_seconds: float = 0.0) -> FunctionModel:
    """A model that thinks for `delay_seconds` before each answer, so that a run takes as long as a real one would."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(delay_seconds)
        turn = next_turn(read(_prompt(messages)), _seen(messages))
        if isinstance(turn, Decision):
            turn = [ToolCallPart(info.output_tools[0].name, turn.model_dump())]
        return ModelResponse(parts=turn)

    return FunctionModel(answer, model_name=NAME)


def next_turn(mail: Reading, seen: Seen) -> Turn:
    """Tool calls to make side by side, or the decision that ends the mail."""
    if seen.failed:
        return Decision(action="escalated", reply=replies.tool_failed(mail))
    if seen.customers is None:
        return _search(mail)
    found = _orders(mail, seen.looked_up or [], seen.customers)
    if not found:
        return Decision(action="answered", reply=replies.which_order(mail))
    if any(order.email != mail.address for order in found):
        return Decision(action="escalated", reply=replies.not_theirs(mail))
    claims = [claim for order in found for claim in _claims(mail, order)]
    if not any(mail.reason(order.order_id) for order in found):
        return Decision(action="answered", order_id=found[0].order_id, reply=replies.status(mail, found))
    if not claims:
        return Decision(action="answered", order_id=found[0].order_id, reply=replies.which_item(mail, found[0]))
    if seen.policy is None:
        return [ToolCallPart("check_policy", vars(claim)) for claim in claims]
    return _settle(mail, seen.policy, seen.refunds, seen.denied)


def _search(mail: Reading) -> Turn:
    by_number = [ToolCallPart("look_up_order", {"order_id": order_id}) for order_id in mail.order_ids]
    return [*by_number, ToolCallPart("orders_of_customer", {"email": mail.address})]


def _orders(mail: Reading, looked_up: Sequence[OrderAnswer], customers: Sequence[Order]) -> list[Order]:
    """The orders that the mail is about: by number, else by an item it names, else the only one there is."""
    if mail.order_ids:
        return [answer.order for answer in looked_up if answer.order]
    named = [order for order in customers if mail.items(order.items, mail.reason())]
    fitting = named or list(customers)
    return fitting if len(fitting) == 1 else []


def _claims(mail: Reading, order: Order) -> list[Claim]:
    reason = mail.reason(order.order_id)
    if reason is None:
        return []
    if reason in WHOLE_ORDER_REASONS or len(order.items) == 1 or mail.means_everything:
        return [Claim(order.order_id, reason, None)]
    return [Claim(order.order_id, reason, item.sku) for item in mail.items(order.items, reason)]


def _settle(mail: Reading, policy: list[PolicyAnswer], refunds: list[RefundAnswer] | None, denied: list[str]) -> Turn:
    due = [answer for answer in policy if answer.due]
    order_id = policy[0].order_id
    if due and refunds is None and not denied:
        return [_refund_call(answer) for answer in due]
    issued = [answer.refund for answer in refunds or [] if answer.refund]
    if issued:
        total = sum(refund.cents for refund in issued)
        reply = replies.refunded(mail, issued, denied)
        return Decision(action="refunded", order_id=issued[0].order_id, refund_cents=total, reply=reply)
    if denied:
        return Decision(action="refused", order_id=order_id, reply=replies.refused(mail, order_id, denied))
    if any(answer.needs_approval for answer in policy):
        return Decision(action="escalated", order_id=order_id, reply=replies.needs_approval(mail, order_id))
    why = [answer.why for answer in refunds or policy]
    return Decision(action="refused", order_id=order_id, reply=replies.refused(mail, order_id, why))


def _refund_call(answer: PolicyAnswer) -> ToolCallPart:
    wish = {"order_id": answer.order_id, "sku": answer.sku, "cents": answer.max_refund_cents, "reason": answer.reason}
    return ToolCallPart("issue_refund", wish)


def _prompt(messages: Sequence[ModelMessage]) -> str:
    prompts = [part.content for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    return next((content for content in prompts if isinstance(content, str)), "")


def _seen(messages: Sequence[ModelMessage]) -> Seen:
    returns = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    good = [part for part in returns if part.outcome == "success"]
    customers = _answers(good, "orders_of_customer", CustomerAnswer)
    return Seen(
        looked_up=_answers(good, "look_up_order", OrderAnswer),
        customers=customers[0].orders if customers else None,
        policy=_answers(good, "check_policy", PolicyAnswer),
        refunds=_answers(good, "issue_refund", RefundAnswer),
        denied=[str(part.content) for part in returns if part.outcome == "denied"],
        failed=[part.tool_name for part in returns if part.outcome not in ("success", "denied")],
    )


def _answers(returns: Sequence[ToolReturnPart], tool: str, shape: Any) -> list[Any] | None:
    adapter = TypeAdapter[Any](shape)
    return [adapter.validate_json(part.model_response_str()) for part in returns if part.tool_name == tool] or None
