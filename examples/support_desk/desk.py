"""The support desk as a kind: what `AGENTRUN_IMPORTS` names, so that workers can run it."""

from __future__ import annotations

from agentrun import register_agent
from examples.support_desk.agent import build_agent
from examples.support_desk.models import choose_model

agent = register_agent(build_agent(choose_model().model))
