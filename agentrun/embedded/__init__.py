"""PostgreSQL and Redis from pip packages, for one machine without any set-up: `agentrun up`, the demo, tests.

Owns the servers it starts, and stops them when its process ends, however that ends. Never touches a server that
somebody else started. Redis is Valkey, its open-source continuation: the same protocol and commands, in a wheel for
every platform and Python.
"""

from agentrun.embedded.errors import AlreadyRunning, EmbeddedError, EmbeddedMissing
from agentrun.embedded.home import Running, default_state_dir, find_running
from agentrun.embedded.pair import Embedded
from agentrun.embedded.postgres import EmbeddedPostgres, StopMode
from agentrun.embedded.valkey import EmbeddedRedis

__all__ = [
    "AlreadyRunning",
    "Embedded",
    "EmbeddedError",
    "EmbeddedMissing",
    "EmbeddedPostgres",
    "EmbeddedRedis",
    "Running",
    "StopMode",
    "default_state_dir",
    "find_running",
]
