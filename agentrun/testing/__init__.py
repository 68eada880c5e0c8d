"""The kit for tests of runs: real servers, real workers, real rows. Imported by no production module.

`pytest_plugins = ["agentrun.testing.plugin"]` in a conftest.py gives the fixtures; this module the helpers beside them.
"""

from agentrun.testing.broker import LocalBroker, Unregistered
from agentrun.testing.clock import Clock
from agentrun.testing.polling import until
from agentrun.testing.publishing import RecordingPublisher
from agentrun.testing.replay import recorded, replay, replay_file

__all__ = ["Clock", "LocalBroker", "RecordingPublisher", "Unregistered", "recorded", "replay", "replay_file", "until"]
