"""Tools that wait for a decision: asked once, decided per call, and done exactly as decided, whatever dies."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart

from agentrun import Client, Effect, Run, Status, current_step, effect
from agentrun.agents import Approval, register_agent, run_agent
from agentrun.core.errors import AlreadyDecided, ConfigurationError, Forbidden, InvalidAnswer, InvalidRequest
from agentrun.runtime.kinds import Registry
from tests.agents.conftest import Script, Turn, Ward

BOTH: list[Turn] = [[("look", {"order": 1}), ("pay", {"cents": 100}), ("pay", {"cents": 900})], "done"]
ONE: list[Turn] = [[("pay", {"cents": 100})], "done"]
LOOK, FIRST, SECOND = "call-0-0", "approval:call-0-1", "approval:call-0-2"
ONLY = "approval:call-0-0"


def above_500(cents: int) -> bool:
    return cents > 500


class Shop:
    """Tools that remember what they did."""

    def __init__(self) -> None:
        self.looks: list[int] = []
        self.paid: list[int] = []

    def tools(self, **declared: Any) -> list[Any]:
        @effect(Effect.READ_ONLY)
        async def look(order: int) -> str:
            self.looks.append(order)
            return f"order {order}"

        @effect(Effect.NON_IDEMPOTENT_WRITE, **declared)
        async def pay(cents: int) -> str:
            self.paid.append(cents)
            return f"paid {cents}"

        return [look, pay]


@pytest.fixture
def shop() -> Shop:
    return Shop()


def started(
    client: Client, ward: Ward, turns: list[Turn], tools: list[Any], *, name: str = "desk", **options: Any
) -> tuple[Run, Script]:
    """A run after its first segment."""
    script = Script(turns)
    register_agent(Agent(script.model, name=name, tools=tools), **options)
    return ward.run(client.enqueue(name, "go", owner="ada")), script


def results(messages: list[ModelMessage]) -> list[tuple[str, Any]]:
    """What the last request told the model: per call, its result."""
    last = messages[-1]
    assert isinstance(last, ModelRequest)
    parts = [part for part in last.parts if isinstance(part, ToolReturnPart)]
    return [(part.tool_call_id, part.content) for part in parts]


def asks(client: Client, run_id: UUID) -> dict[str, Any]:
    return {wait["step_key"]: wait["asks"] for wait in client.waits(run_id)}


# ---- a turn


def test_calls_of_one_turn_wait_side_by_side_and_are_asked_with_tool_and_arguments(
    client: Client, ward: Ward, shop: Shop
) -> None:
    run, _ = started(client, ward, BOTH, shop.tools(approval=True))
    assert (run.status, shop.looks, shop.paid) == (Status.WAITING, [1], [])
    asked = asks(client, run.id)
    assert {key: each["payload"] for key, each in asked.items()} == {
        FIRST: {"tool": "pay", "arguments": {"cents": 100}},
        SECOND: {"tool": "pay", "arguments": {"cents": 900}},
    }
    assert asked[FIRST]["question"] == "pay(cents=100)?"


def test_each_call_of_a_turn_ends_exactly_as_decided(client: Client, ward: Ward, shop: Shop) -> None:
    run, script = started(client, ward, BOTH, shop.tools(approval=True))
    client.approve(run.id, by="eve", key=FIRST)
    assert ward.run(run.id).status is Status.WAITING
    client.reject(run.id, by="eve", key=SECOND, comment="too much")
    run = ward.run(run.id)
    assert (run.status, run.result) == (Status.COMPLETED, "done")
    assert (shop.looks, shop.paid, script.calls) == ([1], [100], 2)
    assert results(script.asked[-1]) == [
        ("call-0-0", "order 1"), ("call-0-1", "paid 100"), ("call-0-2", "too much"),
    ]  # fmt: skip


def test_a_crash_after_any_commit_changes_nothing_of_what_was_decided(client: Client, ward: Ward) -> None:
    for commit in range(1, 30):
        if _crashes_after(client, ward, commit):
            # Two answers, a fence, a write, and a model request at the least.
            assert commit > 5
            return
    pytest.fail("the segment never came to its end")


def _crashes_after(client: Client, ward: Ward, commit: int) -> bool:
    """One run that dies after the n-th commit of the segment that goes on. True: it has no such commit."""
    shop = Shop()
    run, script = started(client, ward, BOTH, shop.tools(approval=True), name=f"desk-{commit}")
    client.approve(run.id, by="eve", key=FIRST)
    client.reject(run.id, by="eve", key=SECOND, comment="no")
    before = client.waits(run.id)
    try:
        ward.die_after(run.id, commit)
    except pytest.fail.Exception:
        return True
    run = client.status(run.id)
    if run.status is Status.QUEUED:
        run = ward.run(run.id)
    if run.status is Status.FAILED:
        # It died inside the write: whether money moved is not known, so nothing goes on and nothing is repeated.
        assert run.pending_effect is not None
        client.resolve(run.id, applied=bool(shop.paid), result="paid 100" if shop.paid else None)
        run = ward.run(run.id)
    assert (run.status, before, client.waits(run.id)) == (Status.COMPLETED, [], []), commit
    assert (shop.looks, shop.paid) == ([1], [100]), commit
    told = [("call-0-0", "order 1"), ("call-0-1", "paid 100"), ("call-0-2", "no")]
    assert all(results(asked) == told for asked in script.asked[1:]), commit
    return False


def test_a_crash_before_the_run_parks_asks_nothing_twice(client: Client, ward: Ward, shop: Shop) -> None:
    script = Script(BOTH)
    register_agent(Agent(script.model, name="desk", tools=shop.tools(approval=True)))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 4)
    assert ward.run(run_id).status is Status.WAITING
    assert set(asks(client, run_id)) == {FIRST, SECOND}
    assert (script.calls, shop.paid) == (1, [])


def test_a_tool_that_was_taken_away_meanwhile_is_not_called_although_it_was_approved(
    client: Client, ward: Ward, shop: Shop, kinds: Registry
) -> None:
    """Another deployment goes on from the decision: its agent has no such tool any more."""
    run, _ = started(client, ward, ONE, shop.tools(approval=True))
    client.approve(run.id, by="grace")
    del kinds._kinds["desk"]  # pyright: ignore[reportPrivateUsage]
    script = Script(ONE)
    register_agent(Agent(script.model, name="desk", tools=shop.tools()[:1]))
    run = ward.run(run.id)
    assert shop.paid == []
    assert run.status.final, run


def test_a_write_that_was_approved_and_interrupted_stops_the_run(client: Client, ward: Ward, shop: Shop) -> None:
    @effect(Effect.NON_IDEMPOTENT_WRITE, approval=True)
    async def pay(cents: int) -> str:
        shop.paid.append(cents)
        raise ConnectionError("the line went dead")

    run, _ = started(client, ward, ONE, [pay])
    client.approve(run.id, by="eve")
    run = ward.run(run.id)
    assert (run.status, shop.paid) == (Status.FAILED, [100])
    assert run.pending_effect is not None


# ---- the decision


def test_edited_arguments_are_what_the_tool_gets_and_both_are_on_record(client: Client, ward: Ward, shop: Shop) -> None:
    run, script = started(client, ward, ONE, shop.tools(), approvals={"pay": Approval(editable=True)})
    client.approve(run.id, by="eve", edits={"cents": 50})
    run = ward.run(run.id)
    assert (run.status, shop.paid, results(script.asked[-1])) == (Status.COMPLETED, [50], [("call-0-0", "paid 50")])
    step = next(step for step in client.steps(run.id) if step.key == ONLY)
    assert (step.result["edited"], step.result["by"]) == ({"cents": 50}, "eve")


def test_edits_may_be_the_whole_payload(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, ONE, shop.tools(), approvals={"pay": Approval(editable=True)})
    client.approve(run.id, by="eve", edits={"tool": "pay", "arguments": {"cents": 60}})
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [60])


def test_edits_that_do_not_fit_the_tool_are_refused_and_the_wait_stays_open(
    client: Client, ward: Ward, shop: Shop
) -> None:
    run, _ = started(client, ward, ONE, shop.tools(), approvals={"pay": Approval(editable=True)})
    for edits in ({"cents": "many"}, {"tool": "look", "arguments": {"cents": 1}}, "less"):
        with pytest.raises(InvalidAnswer):
            client.approve(run.id, by="eve", edits=edits)
    assert set(asks(client, run.id)) == {ONLY}


def test_arguments_cannot_be_edited_where_nobody_permits_it(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, ONE, shop.tools(approval=True))
    with pytest.raises(InvalidAnswer):
        client.approve(run.id, by="eve", edits={"cents": 1})
    assert shop.paid == []


def test_who_started_the_run_cannot_approve_its_call_under_four_eyes(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, ONE, shop.tools(approval=Approval(four_eyes=True)))
    with pytest.raises(Forbidden):
        client.approve(run.id, by="ada")
    client.approve(run.id, by="eve")
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [100])


def test_an_agent_may_demand_four_eyes_of_all_its_calls(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, ONE, shop.tools(approval=True), four_eyes=True)
    with pytest.raises(Forbidden, match="somebody else"):
        client.approve(run.id, by="ada")
    client.approve(run.id, by="grace")
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [100])


def test_a_decision_on_other_arguments_is_refused(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, BOTH, shop.tools(approval=True))
    digests = {wait["step_key"]: wait["asks_digest"] for wait in client.waits(run.id)}
    with pytest.raises(AlreadyDecided, match="digest"):
        client.approve(run.id, by="eve", key=SECOND, digest=digests[FIRST])
    client.approve(run.id, by="eve", key=SECOND, digest=digests[SECOND])


def test_of_two_decisions_at_once_one_wins(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, ONE, shop.tools(approval=True))
    together, said = threading.Barrier(2), list[str]()

    def decide(name: str) -> None:
        together.wait(10)
        try:
            client.approve(run.id, by=name, key=ONLY)
        except AlreadyDecided:
            said.append("late")
        else:
            said.append("won")

    threads = [threading.Thread(target=decide, args=[name]) for name in ("eve", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(said) == ["late", "won"]
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [100])


def test_a_denial_is_a_result_for_the_model_and_the_run_goes_on(client: Client, ward: Ward, shop: Shop) -> None:
    run, script = started(client, ward, [*ONE[:1], [("pay", {"cents": 5})], "done"], shop.tools(approval=True))
    client.reject(run.id, by="eve")
    assert ward.run(run.id).status is Status.WAITING
    assert results(script.asked[-1]) == [("call-0-0", "The tool call was denied.")]
    client.approve(run.id, by="eve")
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [5])


def test_the_tool_may_know_who_approved_it(client: Client, ward: Ward) -> None:
    @effect(Effect.NON_IDEMPOTENT_WRITE, approval=True)
    async def pay(ctx: RunContext[None], cents: int) -> Any:
        return ctx.tool_call_metadata

    run, _ = started(client, ward, ONE, [pay])
    client.approve(run.id, by="eve", comment="fine")
    ward.run(run.id)
    step = next(step for step in client.steps(run.id) if step.kind == "tool")
    assert step.result == {"approved_by": "eve", "comment": "fine"}


# ---- which calls


def test_a_rule_on_the_arguments_says_which_calls_wait(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, BOTH, shop.tools(approval=above_500))
    assert (run.status, shop.paid, set(asks(client, run.id))) == (Status.WAITING, [100], {SECOND})
    client.approve(run.id, by="eve")
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [100, 900])


def test_a_rule_that_fails_lets_nothing_through(client: Client, ward: Ward, shop: Shop) -> None:
    def rule(cents: int) -> bool:
        raise LookupError

    run, _ = started(client, ward, ONE, shop.tools(approval=rule))
    assert (run.status, shop.paid) == (Status.WAITING, [])
    assert asks(client, run.id)[ONLY]["why"] == "the rule failed (LookupError)"


def test_a_rule_that_changes_its_mind_neither_skips_a_question_nor_asks_late(
    client: Client, ward: Ward, shop: Shop
) -> None:
    limits = [500, 0]

    async def rule(cents: int) -> bool:
        return cents > limits[0]

    run, _ = started(client, ward, BOTH, shop.tools(approval=rule))
    assert set(asks(client, run.id)) == {SECOND}
    for limit in (10_000, 0):
        limits[0] = limit
        ward.make_engine().run(run.id)
        assert (set(asks(client, run.id)), shop.paid) == ({SECOND}, [100])
    client.reject(run.id, by="eve")
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [100])


def test_the_operator_adds_an_approval_to_a_tool_that_says_nothing(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, BOTH, shop.tools(), approvals={"pay": above_500})
    assert (run.status, shop.paid, set(asks(client, run.id))) == (Status.WAITING, [100], {SECOND})


def test_the_operators_word_replaces_the_tools_own(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, ONE, shop.tools(approval=True), approvals={"pay": False})
    assert (run.status, shop.paid) == (Status.COMPLETED, [100])


def test_what_the_author_marked_for_pydantic_ai_waits_the_same(client: Client, ward: Ward, shop: Shop) -> None:
    look, pay = shop.tools(approval=Approval(role="finance"))
    run, _ = started(client, ward, ONE, [look, Tool(pay, requires_approval=True)])
    assert [wait["role"] for wait in client.waits(run.id)] == ["finance"]
    client.approve(run.id, by="eve")
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [100])


def test_a_tool_that_raises_approval_required_waits_the_same(client: Client, ward: Ward, shop: Shop) -> None:
    async def pay(ctx: RunContext[None], cents: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"left": 7})
        shop.paid.append(cents)
        return "paid"

    run, _ = started(client, ward, ONE, [pay])
    assert (run.status, shop.paid, asks(client, run.id)[ONLY]["metadata"]) == (Status.WAITING, [], {"left": 7})
    client.approve(run.id, by="eve")
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [100])


def test_what_is_no_approval_is_refused_at_registration(shop: Shop) -> None:
    script = Script(ONE)
    with pytest.raises(ConfigurationError, match="approvals"):
        register_agent(Agent(script.model, name="desk"), approvals={"pay": 3})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wish", ["four_eyes", "editable"])
def test_an_approval_whose_yes_or_no_is_neither_is_refused(wish: str) -> None:
    wrong: dict[str, Any] = {wish: "no"}
    with pytest.raises(InvalidRequest, match=f"{wish} must be True or False, not 'no'"):
        Approval(**wrong)


# ---- previews


def test_a_preview_is_made_once_and_as_the_runs_owner(client: Client, ward: Ward, shop: Shop) -> None:
    made: list[int] = []

    def preview(cents: int) -> dict[str, Any]:
        made.append(cents)
        return {"left": 1000 - cents, "as": current_step().owner}

    run, _ = started(client, ward, ONE, shop.tools(), approvals={"pay": Approval(preview=preview)})
    assert asks(client, run.id)[ONLY]["preview"] == {"left": 900, "as": "ada"}
    client.approve(run.id, by="eve")
    assert (ward.run(run.id).status, made) == (Status.COMPLETED, [100])


def test_a_preview_that_fails_says_so_and_breaks_nothing(client: Client, ward: Ward, shop: Shop) -> None:
    def preview() -> None:
        raise LookupError

    run, _ = started(client, ward, ONE, shop.tools(), approvals={"pay": Approval(preview=preview)})
    assert asks(client, run.id)[ONLY]["preview"] == {"failed": "LookupError"}
    client.approve(run.id, by="eve")
    assert (ward.run(run.id).status, shop.paid) == (Status.COMPLETED, [100])


# ---- agents inside tools


def delegating(shop: Shop, effect_of_outer: Effect) -> Any:
    inner = Agent(Script(ONE).model, name="inner", tools=shop.tools(approval=True))

    @effect(effect_of_outer)
    async def ask_colleague(ctx: RunContext[None]) -> str:
        return (await run_agent(ctx, inner, "go")).output

    return ask_colleague


OUTER: list[Turn] = [[("ask_colleague", {})], "all done"]


def test_an_agent_inside_a_tool_that_may_be_repeated_asks_too(client: Client, ward: Ward, shop: Shop) -> None:
    run, _ = started(client, ward, OUTER, [delegating(shop, Effect.READ_ONLY)])
    assert (run.status, shop.paid) == (Status.WAITING, [])
    client.approve(run.id, by="eve")
    run = ward.run(run.id)
    assert (run.status, run.result, shop.paid) == (Status.COMPLETED, "all done", [100])


def test_an_agent_inside_a_non_idempotent_write_does_not_skip_the_question(
    client: Client, ward: Ward, shop: Shop
) -> None:
    run, _ = started(client, ward, OUTER, [delegating(shop, Effect.NON_IDEMPOTENT_WRITE)])
    assert (run.status, shop.paid) == (Status.FAILED, [])


def test_the_operators_question_is_not_skipped_inside_a_non_idempotent_write(
    client: Client, ward: Ward, kinds: Registry
) -> None:
    paid: list[int] = []

    def pay(cents: int) -> None:
        paid.append(cents)

    inner = Agent(Script([[("pay", {"cents": 5})], "paid"]).model, name="inner", tools=[pay])

    async def ask_colleague(ctx: RunContext[Any]) -> str:
        return (await run_agent(ctx, inner, "go")).output

    agent = Agent(Script(OUTER).model, name="desk", tools=[ask_colleague])
    register_agent(agent, approvals={"pay": True})
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.status, paid) == (Status.FAILED, [])


@pytest.mark.parametrize("what", ["effects", "approvals", "inputs"])
def test_what_is_said_of_tools_inside_a_tool_is_refused_and_not_lost(
    client: Client, ward: Ward, kinds: Registry, what: str
) -> None:
    script = Script(["never"])

    @effect(Effect.READ_ONLY)
    async def ask_colleague(ctx: RunContext[Any]) -> str:
        said: Any = {what: {"pay": Effect.READ_ONLY if what == "effects" else True}}
        return (await run_agent(ctx, Agent(script.model, name="inner"), "go", **said)).output

    register_agent(Agent(Script(OUTER).model, name="desk", tools=[ask_colleague]))
    run = ward.run(client.enqueue("desk", "go"))
    assert run.error is not None
    assert (script.calls, "inside a tool, run_agent takes no effects" in run.error["message"]) == (0, True)
