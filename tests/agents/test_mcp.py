"""Tools of an MCP server: undeclared, they are non-idempotent writes; the operator may say otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent

from agentrun import Client, Effect, Reason, Status
from agentrun.agents import register_agent
from tests.agents.conftest import Script, Ward
from tests.agents.test_tools import answers

fastmcp = pytest.importorskip("fastmcp.server", reason="needs pydantic-ai-slim[mcp] and fastmcp-slim[server]")


class Server:
    """A server in this process, whose tools remember their calls."""

    def __init__(self) -> None:
        self.done: list[str] = []
        from pydantic_ai.mcp import MCPToolset

        self.toolset = MCPToolset(self._server())

    def _server(self) -> Any:
        server = fastmcp.FastMCP("orders")

        @server.tool
        def act(name: str) -> str:
            self.done.append(name)
            if name == "broken":
                raise RuntimeError("broken")
            return f"did {name}"

        return server


def test_a_tool_of_a_server_is_a_fenced_non_idempotent_write(client: Client, ward: Ward) -> None:
    server, script = Server(), Script([[("act", {"name": "a"})], "done"])
    register_agent(Agent(script.model, name="desk", toolsets=[server.toolset]))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 5)
    run = ward.run(run_id)
    assert run.status is Status.COMPLETED, run.error
    step = next(step for step in client.steps(run_id) if step.kind == "tool")
    assert (step.effect, step.result, server.done) == (Effect.NON_IDEMPOTENT_WRITE, "did a", ["a"])
    assert answers(script.asked[-1]) == ["did a"]


def test_the_error_of_a_server_does_not_say_that_nothing_happened(client: Client, ward: Ward) -> None:
    server, script = Server(), Script([[("act", {"name": "broken"})], "done"])
    register_agent(Agent(script.model, name="desk", toolsets=[server.toolset]))
    run = ward.run(client.enqueue("desk", "go"))
    assert (run.status, run.reason, run.pending_effect) == (
        Status.FAILED, Reason.NOT_RETRYABLE, Effect.NON_IDEMPOTENT_WRITE,
    )  # fmt: skip


@pytest.mark.parametrize("prefixed", [False, True])
def test_the_operator_says_what_a_tool_of_a_server_does(client: Client, ward: Ward, prefixed: bool) -> None:
    name = "x_act" if prefixed else "act"
    server, script = Server(), Script([[(name, {"name": "broken"})], [(name, {"name": "a"})], "done"])
    toolset = server.toolset.prefixed("x") if prefixed else server.toolset
    register_agent(Agent(script.model, name="desk", toolsets=[toolset]), effects={name: Effect.READ_ONLY})
    run = ward.run(client.enqueue("desk", "go"))
    assert run.status is Status.COMPLETED, run.error
    assert server.done == ["broken", "a"]
    assert "broken" in answers(script.asked[-1])[0]


def test_a_server_made_per_run_is_journaled_too(client: Client, ward: Ward) -> None:
    server, script = Server(), Script([[("act", {"name": "a"})], "done"])
    register_agent(Agent(script.model, name="desk", toolsets=[lambda ctx: server.toolset]))
    run_id = client.enqueue("desk", "go")
    ward.die_after(run_id, 5)
    run = ward.run(run_id)
    assert run.status is Status.COMPLETED, run.error
    assert server.done == ["a"]
