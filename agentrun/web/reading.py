"""What is asked over HTTP: whose token it is, and a body that is JSON, of the right shape, and not too large."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from starlette.requests import Request

from agentrun.core.errors import Forbidden, InvalidRequest, TooLarge
from agentrun.settings import Settings

ROOM = 20_000
"""Bytes beside the payload itself."""


class Unauthorized(Forbidden):
    """No token, or not the right one."""


def bearer(request: Request) -> str:
    """The request's bearer token. Raises Unauthorized where it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("send the token as a header: Authorization: Bearer …")
    return token.strip()


def only_operators(request: Request, settings: Settings) -> None:
    """Raises Unauthorized where the token is not AGENTRUN_WEB_TOKEN, Forbidden where that is not set."""
    if settings.web_token is None:
        raise Forbidden("listing and taking need AGENTRUN_WEB_TOKEN, which is not set for this server")
    expected = settings.web_token.get_secret_value()
    if not secrets.compare_digest(bearer(request).encode(), expected.encode()):
        raise Unauthorized("this is not the operator's token (AGENTRUN_WEB_TOKEN of the server)")


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request."""

    whole: Any

    @classmethod
    async def of(
        cls, request: Request, settings: Settings, *, may_be_empty: bool = False, any_json: bool = False
    ) -> Body:
        """Read and check. Raises TooLarge and InvalidRequest."""
        raw = await _read(request, settings.max_result_bytes + ROOM)
        if not raw and may_be_empty:
            return cls(None if any_json else {})
        try:
            whole = json.loads(raw, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from None
        if not any_json and not isinstance(whole, dict):
            raise InvalidRequest("the body is a JSON object")
        return cls(whole)

    def value(self, name: str) -> Any:
        """A member; None where it is missing."""
        return cast("dict[str, Any]", self.whole).get(name)

    def text(self, name: str, *default: None) -> Any:
        """A member that is text. Raises InvalidRequest for any other, and where it is missing without a default."""
        value = self.value(name)
        if value is None and default:
            return None
        if not isinstance(value, str) or not value:
            raise InvalidRequest(f"the body's `{name}` is text")
        return value

    def flag(self, name: str) -> bool:
        """A member that is true or false; false where it is missing."""
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidRequest(f"the body's `{name}` is true or false")
        return bool(value)

    def seconds(self, name: str) -> float | None:
        """A member that is a number of seconds, at most a year."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 31_536_000:
            raise InvalidRequest(f"the body's `{name}` is a number of seconds")
        return float(value)


async def _read(request: Request, limit: int) -> bytes:
    """The body, no further than `limit`: what is announced or sent beyond that is not read."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge(f"the body is larger than {limit:,} bytes; store it elsewhere and send a reference")
        parts.append(part)
    return b"".join(parts)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
