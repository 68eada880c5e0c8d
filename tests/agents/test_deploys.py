"""A deploy while runs are under way: what happened is not done again because today's tools are others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.toolsets import FunctionToolset

from agentrun import Client, Effect, Reason, Run, Status, effect
from agentrun.agents import register_agent
from agentrun.runtime.kinds import Registry
from tests.agents.conftest import Script, Turn, Ward

Deploy = Callable[..., None]


class Till:
    """Pays, and remembers what it paid."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def pay(self, name: str) -> str:
        self.paid.append(name)
        return "paid"

    def pay_cents(self, name: str, cents: int) -> str:
        return self.pay(name)


@pytest.fixture
def deploy(kinds: Registry) -> Deploy:
    """Today's agent in the place of yesterday's."""

    def deployed(script: Script, *tools: Any, **options: Any) -> None:
        kinds._kinds.pop("desk")
        register_agent(Agent(script.model, name="desk", tools=tools), **options)

    return deployed


def started(client: Client, ward: Ward, script: Script, *tools: Any, commit: int = 4, **options: Any) -> UUID:
    """A run of yesterday's agent, whose process died after the payment was recorded."""
    register_agent(Agent(script.model, name="desk", tools=tools), **options)
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, commit)
    return run_id


PAYS: Turn = [("pay", {"name": "ada"})]


@pytest.mark.parametrize("how", ["renamed", "another parameter"])
def test_a_payment_is_not_made_again_because_todays_agent_cannot_call_its_tool(
    client: Client, ward: Ward, deploy: Deploy, how: str
) -> None:
    till = Till()
    name, arguments = ("pay_out", {"name": "ada"}) if how == "renamed" else ("pay", {"name": "ada", "cents": 5})
    script = Script([PAYS, [(name, arguments)], "done"])
    run_id = started(client, ward, script, till.pay)
    deploy(script, Tool(till.pay if how == "renamed" else till.pay_cents, name=name))
    run = ward.run(run_id)
    assert (run.status, run.reason, till.paid, script.calls) == (Status.FAILED, Reason.NOT_RETRYABLE, ["ada"], 1)
    assert run.error is not None
    assert (
        "step tool:call-0-0 is recorded as tool `pay`, but the body now asks for model `desk`" in run.error["message"]
    )
    deploy(script, till.pay)
    script.turns[1] = "done"
    client.redrive(run_id)
    assert (ward.run(run_id).status, till.paid) == (Status.COMPLETED, ["ada"])


def test_a_read_whose_tool_is_gone_holds_nothing_up(client: Client, ward: Ward, deploy: Deploy) -> None:
    @effect(Effect.READ_ONLY)
    def look() -> str:
        return "seen"

    script = Script([[("look", {})], "done"])
    run_id = started(client, ward, script, look, commit=3)
    deploy(script)
    assert ward.run(run_id).status is Status.COMPLETED


def test_a_call_that_was_never_valid_parts_nothing_under_an_id_that_comes_again(client: Client, ward: Ward) -> None:
    from pydantic_ai.messages import ToolCallPart

    till = Till()
    calls = [ToolCallPart("pay", {"name": name}, tool_call_id="same") for name in (7, "ada")]
    script = Script([[calls[0]], [calls[1]], [calls[0]], "done"])
    run_id = started(client, ward, script, till.pay, commit=5)
    assert (ward.run(run_id).status, till.paid) == (Status.COMPLETED, ["ada"])


@pytest.mark.parametrize("whose", ["pydantic-ai's own", "the operator's"])
def test_a_payment_that_happened_before_it_had_to_be_approved_is_neither_asked_about_nor_repeated(
    client: Client, ward: Ward, deploy: Deploy, whose: str
) -> None:
    till, script = Till(), Script([PAYS, "done"])
    run_id = started(client, ward, script, till.pay)
    own = whose == "pydantic-ai's own"
    deploy(script, Tool(till.pay, requires_approval=own), approvals=None if own else {"pay": True})
    run = ward.run(run_id)
    assert (run.status, till.paid, client.waits(run_id)) == (Status.COMPLETED, ["ada"], []), run.error


def decided(client: Client, ward: Ward, script: Script, till: Till, whose: str, approve: bool) -> UUID:
    own = whose == "pydantic-ai's own"
    tool = Tool(till.pay, requires_approval=own)
    register_agent(Agent(script.model, name="desk", tools=[tool]), approvals=None if own else {"pay": True})
    run_id = client.enqueue("desk", "go")
    assert ward.run(run_id).status is Status.WAITING
    (client.approve if approve else client.reject)(run_id, by="grace")
    return run_id


OWNERS = pytest.mark.parametrize("whose", ["pydantic-ai's own", "the operator's"])


@OWNERS
def test_a_denied_payment_is_not_made_because_it_needs_no_approval_any_more(
    client: Client, ward: Ward, deploy: Deploy, whose: str
) -> None:
    till, script = Till(), Script([PAYS, "done"])
    run_id = decided(client, ward, script, till, whose, approve=False)
    deploy(script, till.pay)
    assert (ward.run(run_id).status, till.paid) == (Status.COMPLETED, [])


@OWNERS
def test_an_approved_payment_is_not_made_again_because_it_needs_no_approval_any_more(
    client: Client, ward: Ward, deploy: Deploy, whose: str
) -> None:
    till, script = Till(), Script([PAYS, "done"])
    run_id = decided(client, ward, script, till, whose, approve=True)
    ward.die_after(run_id, 4)
    assert till.paid == ["ada"]
    deploy(script, till.pay)
    run: Run = ward.run(run_id)
    assert (run.status, till.paid) == (Status.COMPLETED, ["ada"]), run.error


# ---- the same name in two toolsets


def test_what_is_said_of_a_tool_does_not_count_for_another_toolsets_prefixed_one(client: Client, ward: Ward) -> None:
    def act() -> str:
        return "acted"

    script = Script([[("act", {}), ("b_act", {})], "done"])
    mine, theirs = FunctionToolset[Any]([act]), FunctionToolset[Any]([Tool(act, name="act")])
    register_agent(
        Agent(script.model, name="desk", toolsets=[mine, theirs.prefixed("b")]),
        effects={"act": Effect.READ_ONLY},
        approvals={"b_act": True},
    )
    run = ward.run(client.enqueue("desk", "go"))
    assert run.status is Status.WAITING, run.error
    assert [wait["step_key"] for wait in client.waits(run.id)] == ["approval:call-0-1"]
    client.approve(run.id, by="grace")
    ward.run(run.id)
    steps = {step.name: step.effect for step in client.steps(run.id) if step.kind == "tool"}
    assert steps == {"act": Effect.READ_ONLY, "b_act": Effect.NON_IDEMPOTENT_WRITE}
