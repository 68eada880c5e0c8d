"""The support desk's agent: a pydantic-ai `Agent` with four tools over the order database.

It owns the agent's instructions, tools and typed answer. It is a plain agent: `register_agent` makes it durable.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models import Model

from agentrun import NOT_APPLIED, Applied, BodyError, Effect, NotAppliedYet, current_step, effect
from examples.support_desk import orders
from examples.support_desk.records import (
    CustomerAnswer,
    OrderAnswer,
    OrderId,
    PolicyAnswer,
    Reason,
    RefundAnswer,
    RefundWish,
)
from examples.support_desk.shop import connect

NAME = "support-desk"
INSTRUCTIONS = """\
You are the support desk of a small shop. You are given one customer mail. Work through it to the end:

1. Find the order: by its number (look_up_order), or by the sender's address (orders_of_customer). An order belongs to
   the address it was placed from; if another address writes, do not tell its content and give nothing back: escalate.
2. If something is to be given back, ask check_policy, for one item (its sku) where the complaint is about one item,
   else for the whole order. Only what it calls due may be refunded, never more than it says.
3. If it is due, call issue_refund, once for each thing. Above a certain sum a colleague is asked first: you need not
   do anything for that. If the call is denied, or answers `refused`, no money moved: tell the customer why.
4. Answer. action: `refunded` (money was given back), `refused` (they wanted money, and none is due), `escalated` (a
   colleague takes it from here), `answered` (everything else, also when you have to ask for an order number).
   refund_cents: what issue_refund really issued, in total. reply: the mail to the customer, short and kind.
"""


class Decision(BaseModel):
    """What became of one mail."""

    action: Literal["refunded", "refused", "escalated", "answered"]
    order_id: str | None = None
    refund_cents: Annotated[int, Field(ge=0)] = 0
    reply: Annotated[str, Field(min_length=1)]


def refund_landed(idempotency_key: str) -> Applied | NotAppliedYet:
    """Asked after a crash in the middle of `issue_refund`: did the shop take that key?"""
    with connect() as shop:
        refund = orders.find_refund(shop, idempotency_key)
    return Applied(RefundAnswer(status="issued", refund=refund)) if refund else NOT_APPLIED


@effect(Effect.READ_ONLY)
def look_up_order(order_id: OrderId) -> OrderAnswer:
    """Look up one order by its number, like SO-10401: its owner, dates, items and refunds so far.

    Args:
        order_id: the order number.
    """
    with connect() as shop:
        order = orders.find_order(shop, order_id)
    return OrderAnswer(order=order, why="" if order else f"no order `{order_id}`")


@effect(Effect.READ_ONLY)
def orders_of_customer(email: str) -> CustomerAnswer:
    """List the orders placed from a mail address, the latest first.

    Args:
        email: the customer's address.
    """
    with connect() as shop:
        return CustomerAnswer(email=email, orders=orders.orders_of_customer(shop, email))


@effect(Effect.READ_ONLY)
def check_policy(order_id: OrderId, reason: Reason, sku: str | None = None) -> PolicyAnswer:
    """Ask whether a refund is due, and how much at most.

    Args:
        order_id: the order number.
        reason: what the customer complains about.
        sku: the item it is about; leave out for the whole order.
    """
    with connect() as shop:
        return orders.check_policy(shop, order_id, reason, sku)


def above_the_limit(cents: int) -> bool:
    """Whether somebody has to approve a refund of this size: the shop's own limit, not ours."""
    with connect() as shop:
        return cents > orders.approval_limit(shop)


@effect(Effect.NON_IDEMPOTENT_WRITE, reconcile=refund_landed, approval=above_the_limit)
def issue_refund(
    ctx: RunContext[None], order_id: OrderId, cents: int, reason: Reason, sku: str | None = None
) -> RefundAnswer:
    """Give money back. It cannot be undone.

    Args:
        order_id: the order number.
        cents: how much, in cents.
        reason: what for.
        sku: the item it is for; leave out for the whole order.
    """
    wish = RefundWish(order_id=order_id, sku=sku, cents=cents, reason=reason)
    key, asked_by = _asked_under(ctx)
    with connect() as shop:
        return orders.issue_refund(shop, wish, idempotency_key=key, asked_by=asked_by, approved_by=_approved_by(ctx))


def _approved_by(ctx: RunContext[None]) -> str | None:
    """Who approved this very call. The model cannot say it: it is no argument of the tool."""
    decision: dict[str, Any] = ctx.tool_call_metadata or {}
    return decision.get("approved_by") if ctx.tool_call_approved else None


def _asked_under(ctx: RunContext[None]) -> tuple[str, str | None]:
    """The idempotency key and who asks: the durable step and run, or, outside of agentrun, pydantic-ai's own ids."""
    try:
        step = current_step()
    except BodyError:
        return f"{ctx.run_id}/{ctx.tool_call_id}", ctx.run_id
    return step.idempotency_key, str(step.run_id)


def build_agent(model: Model | str | None = None) -> Agent[None, Decision]:
    """The agent, on `model`. Its tools open the order database that `SHOP_DATABASE_URL` names."""
    agent = Agent(
        model,
        name=NAME,
        deps_type=type(None),
        instructions=INSTRUCTIONS,
        output_type=Decision,
        tools=[look_up_order, orders_of_customer, check_policy, issue_refund],
        retries=2,
    )
    agent.output_validator(promise_only_what_was_issued)
    return agent


def promise_only_what_was_issued(ctx: RunContext[None], decision: Decision) -> Decision:
    """Send the answer back to the model when it names another sum than its refunds came to."""
    issued = sum(_issued_cents(part) for message in ctx.messages for part in message.parts)
    if decision.refund_cents != issued:
        raise ModelRetry(f"refund_cents is {decision.refund_cents}, but issue_refund issued {issued} cents in total")
    if (decision.action == "refunded") != (issued > 0):
        raise ModelRetry(f"action is `{decision.action}`, but issue_refund issued {issued} cents in total")
    return decision


def _issued_cents(part: object) -> int:
    if not isinstance(part, ToolReturnPart) or part.tool_name != "issue_refund" or part.outcome != "success":
        return 0
    answer = RefundAnswer.model_validate_json(part.model_response_str())
    return answer.refund.cents if answer.refund else 0
