"""How Flower shows wakes and to whom: its settings, its credentials, and the readable form of a wake.

Flower is a view for people. It never decides anything, and what it shows is only what workers told it while it ran.
"""

from __future__ import annotations

import ast
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from agentrun.broker.names import STEP, WAKE
from agentrun.core.errors import ConfigurationError

PREFIX = "AGENTRUN_FLOWER_"
CONFIG = Path(__file__).with_name("flowerconfig.py")
"""What `celery flower --conf=…` is given where there is no flowerconfig.py in the current folder."""

COLUMNS = "name,args,kwargs,result,state,received,runtime,worker,uuid"
"""Of a wake, `args` is the run, `kwargs` the kind, `result` the outcome; `uuid` is the message's own."""


class FlowerSettings(BaseSettings):
    """AGENTRUN_FLOWER_* from the environment and `.env`. Raises ConfigurationError naming the variable."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", env_file_encoding="utf-8", frozen=True, extra="ignore"
    )

    user: Annotated[str, Field(pattern=r"^[^:\s]+$")] = "agentrun"
    password: str | None = None
    address: str = "127.0.0.1"
    port: Annotated[int, Field(gt=0, lt=65536)] = 5555

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ConfigurationError(f"{PREFIX}{str(first['loc'][0]).upper()}: {first['msg']}") from None

    @field_validator("password", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None


def generated_password() -> str:
    """A password nobody has to remember."""
    return secrets.token_urlsafe(12)


def credentials(settings: FlowerSettings, given: str | None = None) -> list[str]:
    """`user:password` entries: `given` (Flower's own FLOWER_BASIC_AUTH), the settings', or a generated one.

    A generated password is printed on stderr, once, and forgotten with the process.
    """
    if given:
        return given.split(",")
    password = settings.password
    if password is None:
        password = generated_password()
        said = f"Flower asks for user {settings.user} and password {password} (generated; {PREFIX}PASSWORD sets it)"
        print(said, file=sys.stderr, flush=True)
    return [f"{settings.user}:{password}"]


def format_task(task: Any) -> Any:
    """A wake as people read it: run, kind and cause, outcome. For display only; other messages stay as they are."""
    if task.name in (WAKE, STEP):
        task.args = _args(task.args)
        task.kwargs = _said(task.kwargs)
        task.result = _outcome(task.result)
    return task


def _args(text: str | None) -> str | None:
    value = _literal(text)
    return " ".join(str(each) for each in cast("tuple[object, ...]", value)) if isinstance(value, tuple) else text


def _said(text: str | None) -> str | None:
    value = _members(text)
    return f"{value['kind']} ({value.get('cause', '?')})" if "kind" in value else text


def _outcome(text: str | None) -> str | None:
    line = _literal(text)
    parted = [member.partition("=") for member in line.split()] if isinstance(line, str) else []
    value = {name: said for name, _, said in parted}
    if "outcome" not in value:
        return text
    outcome, reason = value["outcome"], value.get("reason")
    told = outcome if reason in (None, outcome) else f"{outcome}: {reason}"
    done, replayed = value.get("executed", "0"), value.get("replayed", "0")
    if (done, replayed) != ("0", "0"):
        told += f" ({done} {'step' if done == '1' else 'steps'} done, {replayed} replayed)"
    return told


def _members(text: str | None) -> dict[str, object]:
    value = _literal(text)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _literal(text: str | None) -> object:
    try:
        return ast.literal_eval(text) if text else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
