"""The ASGI application: external steps listed and taken with the operator's token, answered with the step's own.

It checks who asks and what is sent, and calls the client. No payload and no token is logged.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrun.async_client import AsyncClient
from agentrun.core.errors import InvalidRequest
from agentrun.settings import Settings
from agentrun.web.answers import answered, as_answer
from agentrun.web.reading import Body, bearer, only_operators

log = logging.getLogger("agentrun.web")

Endpoint = Callable[["Desk", Request], Awaitable[Any]]


class Desk:
    """What the endpoints work with: one client, made at the first request, and the settings."""

    def __init__(self, settings: Settings, client: AsyncClient | None) -> None:
        self.settings, self._given, self._made = settings, client, None

    @property
    def client(self) -> AsyncClient:
        """The client that was given, or one of these settings."""
        if self._given is not None:
            return self._given
        if self._made is None:
            self._made = AsyncClient(settings=self.settings)
        return self._made

    async def close(self) -> None:
        """Close what was made here."""
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()


def application(client: AsyncClient | None = None, *, settings: Settings | None = None) -> Starlette:
    """The application, to serve or to mount in another one. Without `client` it makes its own, from the settings.

    AGENTRUN_WEB_TOKEN guards listing and taking; where it is not set, both are refused.
    """
    desk = Desk(settings or Settings(), client)

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncGenerator[None]:
        yield
        await desk.close()

    routes = [
        Route("/steps", _endpoint(desk, list_steps), methods=["GET"]),
        Route("/steps/take", _endpoint(desk, take_step), methods=["POST"]),
        Route("/steps/complete", _endpoint(desk, complete_step), methods=["POST"]),
        Route("/steps/fail", _endpoint(desk, fail_step), methods=["POST"]),
        Route("/steps/heartbeat", _endpoint(desk, heartbeat_step), methods=["POST"]),
        Route("/webhooks/{token}", _endpoint(desk, webhook), methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=life)


# ---- with the operator's token


async def list_steps(desk: Desk, request: Request) -> Any:
    """External steps on offer, oldest first; `?name=…&run=…&taken=true&limit=100`."""
    only_operators(request, desk.settings)
    asked = request.query_params
    limit = asked.get("limit", "100")
    if not limit.isascii() or not limit.isdigit():
        raise InvalidRequest("limit is a number from 1 to 1000")
    rows = await desk.client.external_steps(
        name=asked.get("name"), run_id=asked.get("run"), taken=asked.get("taken") in ("1", "true"), limit=int(limit)
    )
    return {"steps": [dict(row) for row in rows]}


async def take_step(desk: Desk, request: Request) -> Any:
    """`{"run": …, "key": …, "by": …}`: the step with its input, and a token to answer with."""
    only_operators(request, desk.settings)
    body = await Body.of(request, desk.settings)
    by = body.text("by", None) or "http"
    taken = await desk.client.take_step(body.text("run"), body.text("key", None), by=by)
    return asdict(taken)


# ---- with the step's own token


async def complete_step(desk: Desk, request: Request) -> Any:
    """`{"result": …}`."""
    token = bearer(request)
    body = await Body.of(request, desk.settings)
    await desk.client.complete_step(token, body.value("result"))
    return {"outcome": "completed"}


async def fail_step(desk: Desk, request: Request) -> Any:
    """`{"message": …, "type": …, "retryable": …, "retry_after": …, "not_applied": …}`."""
    token = bearer(request)
    body = await Body.of(request, desk.settings)
    outcome = await desk.client.fail_step(
        token,
        body.text("message"),
        error_type=body.text("type", None) or "ExternalStepFailed",
        retryable=body.flag("retryable"),
        retry_after=body.seconds("retry_after"),
        not_applied=body.flag("not_applied"),
    )
    return {"outcome": outcome}


async def heartbeat_step(desk: Desk, request: Request) -> Any:
    """`{"progress": …}`, or nothing. The answer says whether to go on."""
    token = bearer(request)
    body = await Body.of(request, desk.settings, may_be_empty=True)
    return {"go_on": await desk.client.heartbeat_step(token, body.value("progress"))}


async def webhook(desk: Desk, request: Request) -> Any:
    """Resolves the wait that the token belongs to; the body is its payload."""
    body = await Body.of(request, desk.settings, may_be_empty=True, any_json=True)
    await desk.client.webhook(request.path_params["token"], body.whole)
    return {"outcome": "resolved"}


def _endpoint(desk: Desk, answer: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            said = as_answer(await answer(desk, request))
        except Exception as error:
            said = answered(error)
        # The route and not the path: a webhook's path is its secret.
        log.info("%s %s: %d", request.method, answer.__name__, said.status_code)
        return said

    return endpoint
