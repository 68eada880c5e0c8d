"""LLM agents as one kind of body: pydantic-ai's surface for durable engines, bound to our steps."""

from agentrun.agents.approvals import Approval
from agentrun.agents.durability import AgentrunDurability
from agentrun.agents.inputs import Input
from agentrun.agents.inventory import ToolFacts
from agentrun.agents.registering import register_agent
from agentrun.agents.requests import AgentRequest
from agentrun.agents.running import run_agent

__all__ = ["AgentRequest", "AgentrunDurability", "Approval", "Input", "ToolFacts", "register_agent", "run_agent"]
