"""External steps and webhooks over HTTP: by the operator's token or the step's own; nothing of it in the logs."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Mount

from agentrun import AsyncClient, Context, durable
from agentrun.runtime.kinds import Registry
from agentrun.settings import Settings
from agentrun.web import application
from tests.remote.conftest import Here

pytestmark = pytest.mark.usefixtures("bodies")

OPERATOR = {"Authorization": "Bearer the operator's"}


@pytest.fixture
async def web(settings: Settings, async_client: AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    guarded = settings.model_copy(update={"web_token": SecretStr("the operator's"), "max_result_bytes": 5_000})
    app = Starlette(routes=[Mount("/durable", application(async_client, settings=guarded))])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test/durable") as client:
        yield client


def own(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def taken(web: httpx.AsyncClient, here: Here, **options: Any) -> dict[str, Any]:
    run_id = here.parked("elsewhere", options)
    answer = await web.post("/steps/take", headers=OPERATOR, json={"run": str(run_id), "by": "reviewer"})
    assert answer.status_code == 200
    return answer.json()


async def test_a_program_lists_takes_beats_and_completes(web: httpx.AsyncClient, here: Here) -> None:
    run_id = here.parked("elsewhere", {"input": {"doc": 7}, "window": 600})
    listed = (await web.get("/steps", headers=OPERATOR, params={"name": "review"})).json()["steps"]
    assert [(step["run_id"], step["input"]) for step in listed] == [(str(run_id), {"doc": 7})]
    wanted = {"run": listed[0]["run_id"], "key": listed[0]["key"], "by": "reviewer"}
    step = (await web.post("/steps/take", headers=OPERATOR, json=wanted)).json()
    assert step["input"] == {"doc": 7}
    assert (await web.post("/steps/heartbeat", headers=own(step["token"]))).json() == {"go_on": True}
    answer = await web.post("/steps/complete", headers=own(step["token"]), json={"result": [1]})
    assert (answer.status_code, answer.json()) == (200, {"outcome": "completed"})
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == [1]
    assert here.step(run_id).by == "reviewer"


async def test_a_program_fails_a_step(web: httpx.AsyncClient, here: Here) -> None:
    step = await taken(web, here, retries=2)
    said = {"message": "away", "type": "Away", "retryable": True, "retry_after": 0}
    assert (await web.post("/steps/fail", headers=own(step["token"]), json=said)).json() == {"outcome": "retried"}


async def test_a_webhook_is_resolved_by_its_token_alone(
    web: httpx.AsyncClient, here: Here, kinds: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    hooks: list[str] = []

    @durable("hooked")
    async def hooked(ctx: Context) -> Any:
        hook = await ctx.webhook()
        hooks.append(hook.token)
        return await hook.wait()

    run_id = here.parked("hooked")
    with caplog.at_level(logging.DEBUG, logger="agentrun"):
        answer = await web.post(f"/webhooks/{hooks[0]}", json={"paid": "in full"})
    assert (answer.status_code, answer.json()) == (200, {"outcome": "resolved"})
    assert here.engine.run(run_id).outcome == "completed"
    assert here.client.status(run_id).result == {"paid": "in full"}
    assert (await web.post(f"/webhooks/{hooks[0]}", json=1)).status_code == 409
    assert (await web.post("/webhooks/unknown", json=1)).status_code == 404
    assert hooks[0] not in caplog.text
    assert "in full" not in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"), [({}, 401), (own("another"), 401), ({"Authorization": "Basic x"}, 401)]
)  # fmt: skip
async def test_listing_and_taking_are_the_operators(
    web: httpx.AsyncClient, here: Here, headers: dict[str, str], status: int
) -> None:
    run_id = here.parked("elsewhere", {})
    answer = await web.get("/steps", headers=headers)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (status, "Bearer")
    answer = await web.post("/steps/take", headers=headers, json={"run": str(run_id)})
    assert answer.status_code == status
    assert here.step(run_id).status == "offered"


async def test_without_a_token_of_the_operators_nobody_lists_or_takes(
    settings: Settings, async_client: AsyncClient
) -> None:
    transport = httpx.ASGITransport(app=application(async_client, settings=settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:
        assert (await web.get("/steps", headers=OPERATOR)).status_code == 403
        assert (await web.get("/steps")).status_code == 403


async def test_the_operators_token_ends_no_step(web: httpx.AsyncClient, here: Here) -> None:
    step = await taken(web, here)
    for verb in ("complete", "fail", "heartbeat"):
        assert (await web.post(f"/steps/{verb}", headers=OPERATOR, json={"message": "x"})).status_code == 404
        assert (await web.post(f"/steps/{verb}", json={"message": "x"})).status_code == 401
    assert (await web.post("/steps/complete", headers=own(step["token"]), json={})).status_code == 200


async def test_each_refusal_has_a_status_and_says_why(web: httpx.AsyncClient, here: Here) -> None:
    step = await taken(web, here)
    here.client.redispatch(step["run_id"], by="ops")
    stale = await web.post("/steps/complete", headers=own(step["token"]), json={"result": 1})
    assert (stale.status_code, stale.json()["error"]["type"]) == (410, "StaleToken")
    again = here.client.take_step(step["run_id"], by="reviewer")
    await web.post("/steps/complete", headers=own(again.token), json={"result": 1})
    ended = await web.post("/steps/complete", headers=own(again.token), json={"result": 2})
    assert (ended.status_code, ended.json()["error"]["type"]) == (409, "AlreadyDecided")
    for run in ("no uuid", "01a22970-b889-7233-a5f3-1e412351115f"):
        answer = await web.post("/steps/take", headers=OPERATOR, json={"run": run})
        assert answer.status_code in (400, 404)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b'{"result": NaN}', b"[" * 100_000])
async def test_what_is_no_json_object_is_refused(web: httpx.AsyncClient, here: Here, body: bytes) -> None:
    step = await taken(web, here)
    answer = await web.post("/steps/complete", headers=own(step["token"]), content=body)
    assert answer.status_code in (400, 413)
    assert here.client.status(step["run_id"]).status == "waiting"


@pytest.mark.parametrize(
    "said", [{"message": 1}, {}, {"message": "m", "retryable": "yes"}, {"message": "m", "retry_after": -1}]
)
async def test_members_of_the_wrong_type_are_refused(web: httpx.AsyncClient, here: Here, said: dict[str, Any]) -> None:
    step = await taken(web, here)
    answer = await web.post("/steps/fail", headers=own(step["token"]), json=said)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "InvalidRequest")


async def test_a_body_is_read_no_further_than_its_limit(web: httpx.AsyncClient, here: Here) -> None:
    step = await taken(web, here)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 10_000_000:
            sent += 10_000
            yield b" " * 10_000

    answer = await web.post("/steps/complete", headers=own(step["token"]), content=endless())
    assert answer.status_code == 413
    large = json.dumps({"result": "x" * 30_000})
    assert (await web.post("/steps/complete", headers=own(step["token"]), content=large)).status_code == 413
    assert here.client.status(step["run_id"]).status == "waiting"


async def test_other_paths_and_methods_are_refused(web: httpx.AsyncClient) -> None:
    assert (await web.get("/steps/complete")).status_code == 405
    assert (await web.get("/runs")).status_code == 404
