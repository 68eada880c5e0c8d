"""Hooks tell people of what waits: after the commit, until it worked, and without harm to a run."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from agentrun import Client, Context, Status, durable
from agentrun.core.alarms import Occasion
from agentrun.core.errors import ConfigurationError
from agentrun.runtime import hooks
from agentrun.runtime.hooks import on_waiting
from agentrun.runtime.tellers import signed_call
from agentrun.store.database import Database
from tests.waits.conftest import Go, Parked, Travel

Data = Mapping[str, Any]


@pytest.fixture(autouse=True)
def no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_hooks", {occasion: {} for occasion in Occasion})


@pytest.fixture(autouse=True)
def asking(client: Client) -> None:
    @durable("ask")
    async def ask(ctx: Context, remind: float | None) -> bool:
        return bool(await ctx.approval("sure?", payload={"secret": "s3cr3t"}, role="boss", remind=remind))


@pytest.fixture
def later(database: Database) -> Callable[[], None]:
    """What was not delivered is due again."""

    def travel() -> None:
        with database.connection() as connection:
            connection.execute("UPDATE agentrun.notices SET due_at = now() WHERE ended_at IS NULL")

    return travel


def test_every_hook_hears_of_a_wait_once(parked: Parked, sweep: Callable[[], Any], later: Callable[[], None]) -> None:
    first: list[Data] = []
    second: list[Data] = []
    on_waiting(first.append, name="first")
    on_waiting(second.append, name="second")
    run_id = parked("ask", None)
    assert first == [], "nothing is called inside the segment"
    assert sweep().told == 2
    later()
    assert sweep().told == 0
    for (told,) in (first, second):
        assert (told["run_id"], told["question"], told["role"], told["round"]) == (str(run_id), "sure?", "boss", 1)
        assert "s3cr3t" not in str(told)


def test_a_hook_that_raises_is_tried_again_and_harms_nothing(
    client: Client, parked: Parked, go: Go, sweep: Callable[[], Any], later: Callable[[], None]
) -> None:
    tried: list[Data] = []
    heard: list[Data] = []

    def fails_twice(data: Data) -> None:
        tried.append(data)
        if len(tried) < 3:
            raise RuntimeError("the mail server is away")

    on_waiting(fails_twice, name="a fails")
    on_waiting(heard.append, name="b hears")
    run_id = parked("ask", None)
    assert sweep().told == 1
    assert [sweep().told, len(tried)] == [0, 1], "not at once: a pause comes first"
    later()
    assert sweep().told == 0
    later()
    assert sweep().told == 1
    later()
    assert [sweep().told, len(tried), len(heard)] == [0, 3, 1]
    client.approve(run_id, by="ann")
    assert go(run_id).result is True


def test_a_hook_that_always_raises_is_given_up(
    client: Client, database: Database, parked: Parked, sweep: Callable[[], Any], later: Callable[[], None]
) -> None:
    tried: list[Data] = []

    def fails(data: Data) -> None:
        tried.append(data)
        raise RuntimeError("s3cr3t")

    on_waiting(fails, name="fails")
    run_id = parked("ask", None)
    for _ in range(hooks.MOST_ATTEMPTS):
        sweep()
        later()
    assert len(tried) == hooks.MOST_ATTEMPTS
    (notice,) = _notices(database)
    assert (notice["attempts"], notice["last_error"], notice["ending"]) == (
        hooks.MOST_ATTEMPTS, "RuntimeError", "given_up",
    )  # fmt: skip
    assert client.status(run_id).status is Status.WAITING


def _notices(database: Database) -> list[dict[str, Any]]:
    with database.connection() as connection:
        return connection.execute("SELECT * FROM agentrun.notices").fetchall()


def test_reminders_come_in_rounds_until_somebody_answers(
    client: Client, parked: Parked, sweep: Callable[[], Any], travel: Travel
) -> None:
    heard: list[int] = []
    on_waiting(lambda data: heard.append(data["round"]), name="hears")
    run_id = parked("ask", 3600)
    sweep()
    sweep()
    assert heard == [1]
    for number in (2, 3):
        travel.to_reminder(run_id)
        sweep()
        sweep()
        assert heard[-1] == number
        assert len(heard) == number
    client.approve(run_id, by="ann")
    travel.to_reminder(run_id)
    sweep()
    assert heard == [1, 2, 3]


def test_who_is_asked_instead_is_told(client: Client, parked: Parked, sweep: Callable[[], Any], travel: Travel) -> None:
    @durable("escalates")
    async def escalates(ctx: Context) -> bool:
        return bool(await ctx.approval("sure?", role="clerk", expires=60, on_expiry="escalate", escalate_to="boss"))

    heard: list[Any] = []
    on_waiting(lambda data: heard.append((data["role"], data["round"])), name="hears")
    run_id = parked("escalates")
    sweep()
    travel.past_due(run_id)
    sweep()
    sweep()
    assert heard == [("clerk", 1), ("boss", 2)]


def test_nobody_is_told_of_what_was_answered_before(
    client: Client, parked: Parked, go: Go, sweep: Callable[[], Any]
) -> None:
    heard: list[Data] = []
    on_waiting(heard.append, name="hears")
    run_id = parked("ask", None)
    client.approve(run_id, by="ann")
    sweep()
    assert heard == []


def test_two_hooks_need_two_names() -> None:
    hook = on_waiting(print, name="same")
    assert on_waiting(hook, name="same") is hook
    with pytest.raises(ConfigurationError, match="same"):
        on_waiting(repr, name="same")
    with pytest.raises(ConfigurationError, match="http"):
        signed_call("ftp://example.org", "key")


class Listener(BaseHTTPRequestHandler):
    got: list[tuple[str, bytes]]
    answers: list[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.headers["X-Agentrun-Signature"], body))
        self.send_response(self.answers.pop(0))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Not on the test's stderr."""


@pytest.fixture
def listener() -> Iterator[tuple[str, type[Listener]]]:
    """An HTTP server of somebody else: fails once, and then takes what comes."""
    kind = type("Fresh", (Listener,), {"got": [], "answers": [500, 204]})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", kind
        server.shutdown()
        thread.join()


def test_a_signed_call_can_be_verified_and_is_repeated_until_it_is_taken(
    listener: tuple[str, type[Listener]], parked: Parked, sweep: Callable[[], Any], later: Callable[[], None]
) -> None:
    url, server = listener
    on_waiting(signed_call(url, "shared secret"), name="call")
    run_id = parked("ask", None)
    assert sweep().told == 0
    later()
    assert sweep().told == 1
    assert len(server.got) == 2
    for signature, body in server.got:
        assert signature == "sha256=" + hmac.new(b"shared secret", body, hashlib.sha256).hexdigest()
        assert json.loads(body)["run_id"] == str(run_id)
    assert b"s3cr3t" not in server.got[0][1]


def test_what_a_redrive_asks_anew_is_told_again(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any]
) -> None:
    """Whoever was told at first has heard since that nothing waits any more, if they have tried."""

    @durable("patient")
    async def patient(ctx: Context) -> Any:
        both = ctx.approval("sure?", expires=60, on_expiry="fail"), ctx.approval("quite sure?")
        return [bool(each) for each in await ctx.gather(*both, on_failure="fail_fast")]

    heard: list[Data] = []
    on_waiting(heard.append, name="hook")
    run_id = parked("patient", None)
    assert sweep().told == 2
    travel.past_due(run_id)
    sweep()
    assert go(run_id).status is Status.FAILED
    assert sweep().told == 0
    client.redrive(run_id)
    assert go(run_id).status is Status.WAITING
    assert [sweep().told, sweep().told] == [2, 0]
    assert sorted((told["question"], told["round"]) for told in heard) == [
        ("quite sure?", 1), ("quite sure?", 2), ("sure?", 1), ("sure?", 2),
    ]  # fmt: skip
