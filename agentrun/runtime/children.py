"""A child's row, prepared by its parent's segment: checked before anything is stored, as at a producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from agentrun.core.codec import decode, encode, within
from agentrun.runtime.checks import checked_attributes, checked_names, checked_priority, checked_seconds
from agentrun.runtime.kinds import Registry
from agentrun.runtime.options import Options
from agentrun.settings import Settings

NOT_STARTED = "agentrun.NotStarted"

LOOKS = 10
"""How often in a row nobody may be found who knows a child's kind."""


def child_row(
    settings: Settings,
    kinds: Registry,
    kind: str,
    request: Any,
    *,
    owner: str | None,
    queue: str | None,
    priority: int,
    tags: Sequence[str],
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    """The parameters of the child's birth. Raises InvalidRequest, TooLarge."""
    registered = kinds.get(kind)
    options = registered.options if registered is not None else Options()
    what = f"the request of kind `{kind}`"
    text = registered.encode_request(request) if registered is not None else encode(request, what=what)
    return {
        "child_kind": kind,
        "child_request": within(text, settings.max_request_bytes, what=what, setting="AGENTRUN_MAX_REQUEST_BYTES"),
        "child_queue": settings.queue_of(queue, options.queue),
        "child_priority": checked_priority(priority),
        "child_deadline": options.timeout.total_seconds() if options.timeout is not None else None,
        "child_lease_seconds": options.lease_seconds,
        "child_max_requeues": options.max_requeues,
        "child_tags": checked_names("tag", tags),
        "child_attributes": checked_attributes(attributes),
        "child_owner": owner,
    }


def to_start(settings: Settings, kinds: Registry, kind: str, within: timedelta | float | None) -> dict[str, Any]:
    """When to look whether a child was started, and what then; nothing where its kind is known here and no time said.

    Raises InvalidRequest for a time that is none.
    """
    said = checked_seconds("start_within", within)
    if said is not None:
        return {"due_in": said, "on_expiry": {"policy": "start"}}
    if kinds.get(kind) is not None:
        return {}
    each = settings.unknown_kind_seconds / LOOKS
    return {"due_in": each, "on_expiry": {"policy": "unknown", "seconds": each, "left": LOOKS - 1}}


def decoded_result(kinds: Registry, kind: str, text: str) -> Any:
    """A child's result, typed where its kind is registered here."""
    registered = kinds.get(kind)
    return registered.result.validate_json(text) if registered is not None else decode(text)


def not_started(kind: str, *, known: bool) -> dict[str, str]:
    """The error of a child that nobody started in time."""
    if known:
        why = "workers that know its kind were busy, or not reached"
    else:
        why = "no live process knows its kind; start a worker whose AGENTRUN_IMPORTS names its module, then redrive it"
    return {"type": NOT_STARTED, "message": f"a child of kind `{kind}` was not started in time: {why}"}


def why_not_started(error: Mapping[str, Any] | None) -> str:
    """What a parent hears of a child that ended without ever being started; nothing for any other."""
    return f": {error['message']}" if error is not None and error.get("type") == NOT_STARTED else ""
