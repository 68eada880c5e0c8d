"""agentrun's tests use the testing kit as its users would."""

from __future__ import annotations

import hypothesis

pytest_plugins = ["agentrun.testing.plugin"]

# How long one example takes says how busy the machine is, and nothing else.
hypothesis.settings.register_profile("agentrun", deadline=None)
hypothesis.settings.load_profile("agentrun")
