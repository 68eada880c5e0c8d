"""agentrun's tests use the testing kit as its users would."""

from __future__ import annotations

import hypothesis
import pytest

pytest_plugins = ["agentrun.testing.plugin"]

# How long one example takes says how busy the machine is, and nothing else.
hypothesis.settings.register_profile("agentrun", deadline=None)
hypothesis.settings.load_profile("agentrun")


@pytest.fixture(scope="session")
def worker_app() -> str:
    """Workers as the README starts them: `celery -A tasks worker`."""
    return "tasks"
