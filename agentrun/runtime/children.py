"""A child's row, prepared by its parent's segment: checked before anything is stored, as at a producer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrun.core.codec import decode, encode, within
from agentrun.core.errors import InvalidRequest
from agentrun.runtime.kinds import Options, Registry
from agentrun.settings import Settings


def child_row(
    settings: Settings,
    kinds: Registry,
    kind: str,
    request: Any,
    *,
    owner: str | None,
    queue: str | None,
    priority: int,
    tags: tuple[str, ...],
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    """The parameters of the child's birth. Raises InvalidRequest, TooLarge."""
    registered = kinds.get(kind)
    options = registered.options if registered is not None else Options()
    what = f"the request of kind `{kind}`"
    text = registered.encode_request(request) if registered is not None else encode(request, what=what)
    if not 0 <= priority <= 9:
        raise InvalidRequest(f"priority must be 0 (most urgent) to 9, not {priority}")
    return {
        "child_kind": kind,
        "child_request": within(text, settings.max_request_bytes, what=what, setting="AGENTRUN_MAX_REQUEST_BYTES"),
        "child_queue": queue or options.queue or settings.queue,
        "child_priority": priority,
        "child_deadline": options.timeout.total_seconds() if options.timeout is not None else None,
        "child_lease_seconds": options.lease_seconds,
        "child_max_requeues": options.max_requeues,
        "child_tags": list(tags),
        "child_attributes": encode(dict(attributes), what="attributes"),
        "child_owner": owner,
    }


def decoded_result(kinds: Registry, kind: str, text: str) -> Any:
    """A child's result, typed where its kind is registered here."""
    registered = kinds.get(kind)
    return registered.result.validate_json(text) if registered is not None else decode(text)
