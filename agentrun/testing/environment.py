"""Nothing of the developer's own configuration reaches a test: neither AGENTRUN_ variables nor a `.env` file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from agentrun.settings import PREFIX, Settings

KEPT = f"{PREFIX}TEST_"


def take_away() -> Mapping[str, str]:
    """Remove every AGENTRUN_ variable but AGENTRUN_TEST_*, and stop reading `.env`; returns what was there."""
    taken = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and not name.startswith(KEPT)}
    for name in taken:
        del os.environ[name]
    Settings.model_config["env_file"] = None
    return taken


def give_back(taken: Mapping[str, str]) -> None:
    """Undo `take_away`."""
    os.environ.update(taken)
    Settings.model_config["env_file"] = ".env"


def variables(settings: Settings) -> dict[str, str]:
    """The environment that makes another process's settings equal to these."""
    said: dict[str, str] = {}
    for name, field in Settings.model_fields.items():
        value: Any = getattr(settings, name)
        if value != field.default and value is not None:
            said[f"{PREFIX}{name.upper()}"] = ",".join(value) if name == "imports" else str(value)
    return said
