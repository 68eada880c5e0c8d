"""Imported by a worker, this gives it a name that another worker has as well: its process id is 'reused'."""

from __future__ import annotations

from agentrun.runtime.engine import Engine

Engine.owner_suffix = property(lambda self: "host:4242")  # pyright: ignore[reportAttributeAccessIssue]
