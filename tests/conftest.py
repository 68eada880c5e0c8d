"""agentrun's tests use the testing kit as its users would."""

from __future__ import annotations

pytest_plugins = ["agentrun.testing.plugin"]
