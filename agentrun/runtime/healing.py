"""The commands that heal, as doctor, the pager, the hooks and `agentrun show` name them, and what each needs."""

from __future__ import annotations

from shlex import quote

from agentrun.core.errors import NonDeterminism
from agentrun.core.failures import qualified_name

WORKER = "celery -A {app} worker -P threads -c 100 -Q {queue}"


def of_failed(run_id: object, *, write_in_flight: bool = False, changed: bool = False, unfit: str | None = None) -> str:
    """What helps a failed run, as one command. `changed` says that its code has changed under it.

    Of an interrupted write only a person knows how it ended: the command changes nothing, and says what to answer.

    `unfit` is the key of the step that was resolved as applied, with a result that does not fit its function: a redrive
    would read the same again.
    """
    if write_in_flight:
        return f"agentrun resolve {run_id}"
    if changed:
        return f"agentrun replay {run_id}"
    if unfit is not None:
        return f"agentrun resolve {run_id} --key {quote(unfit)} --applied --result JSON"
    return f"agentrun redrive {run_id}"


def code_changed(error_type: object) -> bool:
    """Whether what ended a run says that its body's code has changed under it."""
    return error_type == qualified_name(NonDeterminism)


_THERE = "in its environment, or in a `.env` there"


def needs(command: str, *, namespace: str) -> str | None:
    """What a command needs beside itself: a worker and its beat their settings, and without its namespace each of
    them would look into another one."""
    named = () if namespace == "default" else (f"AGENTRUN_NAMESPACE={namespace}",)
    if "celery" in command.split():
        *names, last = ("AGENTRUN_DATABASE_URL", "AGENTRUN_BROKER_URL", "AGENTRUN_IMPORTS", *named)
        return f"{', '.join(names)} and {last} {_THERE}"
    return f"{named[0]} {_THERE}" if named and command.startswith("agentrun ") else None
