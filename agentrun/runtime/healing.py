"""The commands that heal, as doctor, the pager and the hooks name them: a worker's, and what each needs."""

from __future__ import annotations

WORKER = "celery -A {app} worker -P threads -c 100 -Q {queue}"

_THERE = "in its environment, or in a `.env` there"


def needs(command: str, *, namespace: str) -> str | None:
    """What a command needs beside itself: a worker and its beat their settings, and without its namespace each of
    them would look into another one."""
    named = () if namespace == "default" else (f"AGENTRUN_NAMESPACE={namespace}",)
    if "celery" in command.split():
        *names, last = ("AGENTRUN_DATABASE_URL", "AGENTRUN_BROKER_URL", "AGENTRUN_IMPORTS", *named)
        return f"{', '.join(names)} and {last} {_THERE}"
    return f"{named[0]} {_THERE}" if named and command.startswith("agentrun ") else None
