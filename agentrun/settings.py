"""Settings from the environment (prefix `AGENTRUN_`) and a `.env` file: read once, frozen, validated.

A bad value is answered with the name of its variable; an unknown `AGENTRUN_` variable with the near miss.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from agentrun.core.errors import ConfigurationError

PREFIX = "AGENTRUN_"
_ELSEWHERE = (
    "AGENTRUN_TEST_", "AGENTRUN_DEMO_", "AGENTRUN_BENCH_", "AGENTRUN_FLOWER_", "AGENTRUN_HOOK_", "AGENTRUN_STATE_DIR",
    "AGENTRUN_STEP_TOKEN",
)  # fmt: skip

Seconds = Annotated[float, Field(gt=0)]


class Settings(BaseSettings):
    """Everything that can be set. Durations are seconds, sizes are bytes of JSON."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", env_file_encoding="utf-8", frozen=True, extra="ignore"
    )

    # The URLs may hold passwords, and whoever prints settings wants none of them in a log.
    database_url: str | None = Field(default=None, repr=False)
    direct_database_url: str | None = Field(default=None, repr=False)
    """The server itself, where `database_url` leads to a pooler: for what needs a session of its own."""

    broker_url: str | None = Field(default=None, repr=False)
    namespace: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    imports: Annotated[tuple[str, ...], NoDecode] = ()
    """Modules that register kinds and hooks."""

    deployment: str | None = None
    """The name of these processes' deployment, which `agentrun doctor` tells from others; else the imports."""

    stable_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] | None = None
    """What this process is called after a restart too (the name of its pod): it takes back its own runs at once."""

    lease_seconds: Seconds = 30.0
    heartbeat_seconds: Seconds = 7.0
    max_requeues: Annotated[int, Field(ge=0)] = 3
    backoff_base_seconds: Seconds = 30.0
    backoff_max_seconds: Seconds = 600.0
    sweep_seconds: Seconds = 5.0
    sweep_batch: Annotated[int, Field(gt=0, le=10_000)] = 100
    drain_seconds: Seconds = 10.0
    stalled_after_seconds: Annotated[float, Field(ge=60)] = 900.0
    redispatch_max: Annotated[int, Field(ge=0)] = 10
    publish_timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 1.0
    """How long sending a wake may take before the sweep is left to do it."""

    signal_expires_seconds: Annotated[float, Field(ge=0)] = 2_592_000.0
    """How long a signal is kept for a run that does not wait for it yet (30 days); 0: for as long as the run is."""

    unknown_kind_seconds: Seconds = 900.0
    """How long a child waits for a process that knows its kind, before it fails and its parent hears of it."""

    longest_countdown_seconds: Annotated[float, Field(gt=0, le=900)] = 60.0
    max_request_bytes: Annotated[int, Field(gt=0)] = 1_000_000
    max_result_bytes: Annotated[int, Field(gt=0)] = 1_000_000
    max_connections: Annotated[int, Field(gt=0)] = 8
    worker_threads: Annotated[int, Field(gt=0)] = 1000
    """Threads for plain `def` bodies, steps and tools, per process; made as needed."""

    web_token: SecretStr | None = None
    """What a program sends to `agentrun web` to list and take external steps. Without it, nobody can there."""

    retention_days: Annotated[float, Field(gt=0, le=36_500)] | None = None
    """How long finished runs are kept before the sweep removes them, batch by batch; unset: for ever."""

    trace_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of how many runs there are traces, where a process has OpenTelemetry set up; the run's id decides. 0: of none."""

    record_arguments: bool = False
    """Keep the arguments of writes in full, not only their digest."""

    def __init__(self, **values: Any) -> None:
        _refuse_misspelt(values, type(self).model_fields)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(_explained(error)) from None
        _refuse_unknown()

    @field_validator("imports", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator(
        "database_url", "direct_database_url", "broker_url", "web_token", "stable_id", "retention_days", mode="before"
    )
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None

    @model_validator(mode="after")
    def _heartbeat_fits_lease(self) -> Settings:
        if self.heartbeat_seconds > self.lease_seconds / 4:
            if "heartbeat_seconds" in self.model_fields_set:
                raise ValueError(
                    f"heartbeat_seconds ({self.heartbeat_seconds:g}) must be at most a quarter of "
                    f"lease_seconds ({self.lease_seconds:g})"
                )
            object.__setattr__(self, "heartbeat_seconds", self.lease_seconds / 4)
        return self

    @property
    def queue(self) -> str:
        """The queue of runs without one of their own."""
        return "agentrun" if self.namespace == "default" else f"agentrun.{self.namespace}"

    @property
    def system_queue(self) -> str:
        """The sweep's own queue, so that long segments never starve it."""
        return f"{self.queue}.system" if self.namespace == "default" else f"agentrun.system.{self.namespace}"

    def queue_of(self, *named: str | None) -> str:
        """The queue of the first name that is given, else the usual one, as the broker knows it.

        In another namespace than `default` it ends with the namespace, so that no worker gets another one's messages.
        """
        name = next(filter(None, named), self.queue)
        own = self.namespace == "default" or name == self.queue or name.endswith(f".{self.namespace}")
        return name if own else f"{name}.{self.namespace}"

    def require_database(self) -> str:
        """The database URL. Raises ConfigurationError where none is set."""
        return self._require(self.database_url, "DATABASE_URL", "postgresql://user@localhost:5432/app")

    def require_broker(self) -> str:
        """The broker URL. Raises ConfigurationError where none is set."""
        return self._require(self.broker_url, "BROKER_URL", "redis://localhost:6379/0")

    @staticmethod
    def _require(value: str | None, name: str, example: str) -> str:
        if value is None:
            raise ConfigurationError(
                f"{PREFIX}{name} is not set; set it, for example {PREFIX}{name}={example}, "
                "or try everything on this machine with `agentrun up`"
            )
        return value


def _explained(error: ValidationError) -> str:
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_input=False):
        name = f"{PREFIX}{str(problem['loc'][0]).upper()}" if problem["loc"] else "settings"
        lines.append(f"{name}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)


def _refuse_misspelt(given: Iterable[str], fields: Collection[str]) -> None:
    # Names that begin with `_` are pydantic-settings' own (`_env_file`).
    for name in sorted(name for name in given if not name.startswith("_") and name not in fields):
        near = get_close_matches(name.lower().removeprefix(PREFIX.lower()), fields, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "see docs/reference/settings.md"
        raise ConfigurationError(f"Settings has no `{name}`; {hint}")


def _refuse_unknown() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known and not name.startswith(_ELSEWHERE):
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "see docs/reference/settings.md"
            raise ConfigurationError(f"{name} is not a setting of agentrun; {hint}")
