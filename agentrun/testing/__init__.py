"""The kit for tests of runs: real servers, real workers, real rows. Imported by no production module.

`pytest_plugins = ["agentrun.testing.plugin"]` in a conftest.py gives the fixtures; this module the helpers beside them.
"""

from agentrun.testing.broker import LocalBroker, Unregistered
from agentrun.testing.clock import Clock
from agentrun.testing.crash import When
from agentrun.testing.failing import fail_times
from agentrun.testing.polling import until
from agentrun.testing.publishing import RecordingPublisher
from agentrun.testing.replay import recorded, replay, replay_file
from agentrun.testing.stories import Story, story

__all__ = [
    "Clock",
    "LocalBroker",
    "RecordingPublisher",
    "Story",
    "Unregistered",
    "When",
    "fail_times",
    "recorded",
    "replay",
    "replay_file",
    "story",
    "until",
]
