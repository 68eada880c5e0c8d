"""What a process tells the database of itself with every heartbeat, for `agentrun doctor` and `agentrun workers`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentrun.core.alarms import Occasion
from agentrun.runtime import hooks
from agentrun.runtime.kinds import Registry
from agentrun.runtime.remotesteps import remote_steps
from agentrun.settings import Settings


def presence(
    settings: Settings, registry: Registry, queues: tuple[str, ...], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Namespace, deployment, version, kinds, queues, hooks, configuration, and what time it is here."""
    return {
        "namespace": settings.namespace,
        "stable_id": settings.stable_id,
        "deployment": settings.deployment or ",".join(sorted(settings.imports)) or None,
        "version": own_version(),
        "kinds": list(registry.names()),
        "queues": list(queues),
        "about": json.dumps(
            {
                **about,
                "app": celery_app(),
                "heartbeat": settings.heartbeat_seconds,
                "imports": list(settings.imports),
                "remote_steps": list(remote_steps.names()),
                "longest_countdown": settings.longest_countdown_seconds,
                "hooks": {str(occasion): hooks.names(occasion) for occasion in Occasion},
            }
        ),
        # Compared with the database's, never used: every instant that counts is the database's.
        "host_time": datetime.now(UTC),  # noqa: TID251
    }


def celery_app(arguments: Sequence[str] | None = None) -> str | None:
    """What `celery -A` was told in this process; None where it is no command of Celery's."""
    program, *options = sys.argv if arguments is None else arguments
    if Path(program).parts[-2:] != ("celery", "__main__.py") and Path(program).name != "celery":
        return None
    for option, value in zip(options, [*options[1:], ""], strict=True):
        if option in ("-A", "--app"):
            return value
        if option.startswith(("-A", "--app=")):
            return option.removeprefix("-A").removeprefix("--app=")
    return os.environ.get("APP")


@cache
def own_version() -> str | None:
    """The version of agentrun, where it is installed."""
    try:
        return version("agentrun")
    except PackageNotFoundError:
        return None
