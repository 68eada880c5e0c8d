from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai import AgentRunResult, RunContext, models
from pydantic_ai.capabilities import HandleDeferredToolCalls, Hooks
from pydantic_ai.exceptions import ApprovalRequired, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from examples.support_desk.agent import Decision, above_the_limit, build_agent
from examples.support_desk.audit import audit
from examples.support_desk.mails import Mail, read_mails
from examples.support_desk.scripted import scripted_model
from examples.support_desk.shop import URL_VARIABLE, Connection


@pytest.fixture(autouse=True)
def _no_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


pytestmark = pytest.mark.usefixtures("shop_url")

EXPECTED = {
    "mail-02": ("refused", "SO-10402", 0),
    "mail-03": ("refunded", "SO-10403", 4950),
    "mail-04": ("refunded", "SO-10404", 3600),
    "mail-05": ("refunded", "SO-10406", 2400),
    "mail-06": ("escalated", "SO-10407", 0),
    "mail-07": ("refused", "SO-10408", 0),
    "mail-08": ("answered", "SO-10409", 0),
    "mail-09": ("refunded", "SO-10410", 1400),
    "mail-11": ("refunded", "SO-10411", 4200),
    "mail-12": ("escalated", "SO-10412", 0),
    "mail-13": ("refunded", "SO-10413", 13300),
    "mail-14": ("escalated", None, 0),
    "mail-15": ("answered", "SO-10416", 0),
}


async def work(*mails: Mail) -> list[AgentRunResult[Decision]]:
    agent = build_agent(scripted_model())
    return await asyncio.gather(*[agent.run(mail.as_prompt()) for mail in mails])


async def answer(body: str, sender: str = "maja.lindqvist@example.com", subject: str = "") -> Decision:
    (result,) = await work(Mail(id="mail", sender=sender, subject=subject, body=body))
    return result.output


def turns(result: AgentRunResult[Decision]) -> list[list[str]]:
    responses = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    return [[part.tool_name for part in message.parts if isinstance(part, ToolCallPart)] for message in responses]


async def test_every_mail_of_the_demo_is_settled_as_the_policy_says(connection: Connection):
    mails = read_mails()
    outputs = {mail.id: result.output for mail, result in zip(mails, await work(*mails), strict=True)}

    found = {id_: (output.action, output.order_id, output.refund_cents) for id_, output in outputs.items()}
    twins = {found.pop("mail-01"), found.pop("mail-10")}
    assert found == EXPECTED
    # The same complaint twice, side by side: whichever comes first is paid.
    assert twins == {("refunded", "SO-10401", 8990), ("refused", "SO-10401", 0)}
    books = audit(connection)
    assert books.doubled_orders == books.runs_that_asked_afresh == ()
    assert books.cents == sum(output.refund_cents for output in outputs.values()) == 38840


async def test_tools_of_one_turn_are_called_side_by_side():
    (mail,) = [mail for mail in read_mails() if mail.id == "mail-13"]
    (result,) = await work(mail)

    assert turns(result) == [
        ["look_up_order", "look_up_order", "orders_of_customer"],
        ["check_policy", "check_policy"],
        ["issue_refund", "issue_refund"],
        ["final_result"],
    ]


async def test_a_refund_that_was_denied_is_told_with_the_comment_and_pays_nothing(connection: Connection):
    (mail,) = [mail for mail in read_mails() if mail.id == "mail-06"]

    result = await decided(mail, ToolDenied("we have to see it first"))
    assert result.output.action == "refused"
    assert "we have to see it first" in result.output.reply
    assert audit(connection).attempts == 0


async def test_a_refund_that_was_approved_is_paid(connection: Connection):
    (mail,) = [mail for mail in read_mails() if mail.id == "mail-06"]

    result = await decided(mail, ToolApproved(), {"approved_by": "mira"})
    assert (result.output.action, result.output.refund_cents) == ("refunded", 129900)
    assert [refund.approved_by for refund in audit(connection).large] == ["mira"]


async def test_an_unknown_order_number_is_asked_for_again():
    decision = await answer("SO-77777 is broken, please refund it")

    assert decision.action == "answered"
    assert "we find no order SO-77777" in decision.reply


async def test_a_stranger_without_an_order_is_asked_for_its_number():
    decision = await answer("It broke. Money back!", sender="stranger@example.org")

    assert decision.action == "answered"
    assert "Could you send us the order number" in decision.reply


async def test_a_complaint_that_names_no_item_of_several_is_asked_which():
    decision = await answer("Order 10406 came damaged, refund please.", sender="elif.demir@example.com")

    assert decision.action == "answered"
    assert "Bluetooth speaker" in decision.reply


async def test_everything_broken_is_the_whole_order():
    decision = await answer("Order #10406: everything is broken, refund please.", sender="elif.demir@example.com")

    assert (decision.action, decision.refund_cents) == ("refunded", 8300)


async def test_a_mail_without_header_lines_is_read_too():
    result = await build_agent(scripted_model()).run("my order SO-10401 is broken")

    assert result.output.action == "escalated"  # nobody knows who writes


async def test_a_tool_that_fails_ends_with_a_colleague_and_no_money(connection: Connection):
    calls = [ToolCallPart("check_policy", {"order_id": "SO-10401", "reason": "too pricey"})]
    model = replay([calls], then=scripted_model())
    result = await build_agent(model).run("From: Maja <maja.lindqvist@example.com>\n\nSO-10401 is broken")

    assert result.output.action == "escalated"
    assert audit(connection).attempts == 0


async def test_a_shop_that_is_not_there_fails_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(URL_VARIABLE)
    with pytest.raises(RuntimeError, match="SHOP_DATABASE_URL"):
        await answer("SO-10401 is broken")


async def test_a_model_that_promises_what_was_not_issued_must_think_again(connection: Connection):
    promise = {"action": "refunded", "order_id": "SO-10401", "refund_cents": 8990, "reply": "Here you are."}
    lie = [ToolCallPart("final_result", promise)]
    truth = [ToolCallPart("final_result", {"action": "answered", "reply": "Which order?"})]

    result = await build_agent(replay([lie, truth])).run("refund me")
    assert result.output.action == "answered"
    with pytest.raises(UnexpectedModelBehavior):
        await build_agent(replay([lie] * 5)).run("refund me")
    assert audit(connection).attempts == 0


async def decided(
    mail: Mail, decision: ToolApproved | ToolDenied, told: dict[str, Any] | None = None
) -> AgentRunResult[Decision]:
    """The agent where every refund above the limit is asked for, and decided like this."""

    async def decide(ctx: RunContext[None], requests: DeferredToolRequests) -> DeferredToolResults:
        ids = [call.tool_call_id for call in requests.approvals]
        return DeferredToolResults(approvals=dict.fromkeys(ids, decision), metadata=dict.fromkeys(ids, told or {}))

    asking: Hooks[None] = Hooks()

    @asking.on.before_tool_execute
    async def ask(ctx: RunContext[None], *, call: ToolCallPart, tool_def: Any, args: dict[str, Any]) -> dict[str, Any]:
        if call.tool_name == "issue_refund" and above_the_limit(args["cents"]) and not ctx.tool_call_approved:
            raise ApprovalRequired
        return args

    agent = build_agent(scripted_model())
    return await agent.run(mail.as_prompt(), capabilities=[asking, HandleDeferredToolCalls(handler=decide)])


def replay(turns: Sequence[list[ToolCallPart]], then: FunctionModel | None = None) -> FunctionModel:
    """A model that gives these turns, then asks another one."""
    left = list(turns)

    async def function(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if left:
            return ModelResponse(parts=list(left.pop(0)))
        assert then is not None
        assert then.function is not None
        found = then.function(messages, info)
        return found if isinstance(found, ModelResponse) else await found

    return FunctionModel(function)
