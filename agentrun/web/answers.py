"""What is answered over HTTP: JSON, and for a refusal its status, its kind, and the words of the error."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from decimal import Decimal
from typing import Any

from starlette.responses import Response

from agentrun.core.errors import (
    AgentrunError,
    AlreadyDecided,
    ConfigurationError,
    Forbidden,
    InvalidRequest,
    NotAllowed,
    NotFound,
    StaleToken,
    TooLarge,
)
from agentrun.store.troubles import explained
from agentrun.web.reading import Unauthorized

log = logging.getLogger("agentrun.web")

STATUSES: dict[type[AgentrunError], int] = {
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    AlreadyDecided: 409,
    StaleToken: 410,
    NotAllowed: 409,
    TooLarge: 413,
    InvalidRequest: 400,
    ConfigurationError: 503,
}
"""The first that an error is an instance of counts."""


def as_answer(value: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(json.dumps(value, default=_plain), status, media_type="application/json")


def answered(error: Exception) -> Response:
    """The response for an error. What nobody foresaw is logged by its type, and says nothing of itself."""
    known = error if isinstance(error, AgentrunError) else explained(error)
    if known is None:
        log.error("a request failed with %s", type(error).__name__)
        return as_answer({"error": {"type": "InternalError", "message": "something went wrong here; try again"}}, 500)
    if isinstance(known, ConfigurationError):
        # What it says is for whoever runs this server: addresses, users, variables.
        log.error("%s", known)
        known = ConfigurationError("this server cannot do its work just now; its log says why")
    status = next((code for kind, code in STATUSES.items() if isinstance(known, kind)), 500)
    said = as_answer({"error": {"type": type(known).__name__, "message": str(known)}}, status)
    if status == 401:
        said.headers["WWW-Authenticate"] = "Bearer"
    return said


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case Decimal():
            return float(value)
        case _:
            return str(value)
