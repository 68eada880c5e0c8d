"""The names of agentrun's tasks, and which brokers are Redis. Imports nothing, so that everybody may."""

from __future__ import annotations

WAKE = "agentrun.wake"
STEP = "agentrun.step"
SWEEP = "agentrun.sweep"
LEAST_URGENT = 9
REDIS_SCHEMES = ("redis", "rediss", "unix://", "valkey")
