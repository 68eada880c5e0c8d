"""Signals: kept in order when they come early, taken once; webhooks: a token that answers one wait, once."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from agentrun import Actor, AsyncClient, Client, Context, Scope, Status, durable
from agentrun.core.errors import AlreadyDecided, InvalidRequest, NotAllowed, NotFound, TooLarge, WaitExpired
from agentrun.runtime.engine import Engine
from agentrun.runtime.upkeep import Sweep
from agentrun.settings import Settings
from agentrun.store import signals, waits, writer
from agentrun.store.database import Database
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.crash import CrashSweep, When
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked, Travel


@pytest.fixture(autouse=True)
def listening(client: Client) -> None:
    @durable("listen")
    async def listen(ctx: Context, times: int) -> list[Any]:
        return [await ctx.signal("go") for _ in range(times)]

    @durable("listen-long")
    async def listen_long(ctx: Context, wishes: dict[str, Any]) -> Any:
        try:
            return await ctx.signal("go", timeout=60, **wishes)
        except WaitExpired as error:
            return ["expired", error.name]

    @durable("hook")
    async def hook(ctx: Context, expires: float | None) -> Any:
        call = await ctx.webhook(expires=expires)
        await ctx.step(_show, call.token)
        try:
            return await call.wait()
        except WaitExpired:
            return "expired"


async def _show(token: str) -> str:
    return token


def token_of(client: Client, run_id: Any) -> str:
    (shown,) = [step for step in client.steps(run_id) if step.name.endswith("_show")]
    return shown.result


def test_an_answer_is_recorded_in_one_commit_with_what_follows(client: Client, go: Go, rows: Rows) -> None:
    """The wait itself holds the answer, so nothing has to wait for the journal."""
    run_id = client.enqueue("listen", 2)
    assert go(run_id).status is Status.WAITING
    client.signal(run_id, "go", 1)
    client.signal(run_id, "go", 2)
    assert go(run_id).result == [1, 2]
    with rows.database.connection() as connection:
        steps = connection.execute("SELECT key, xmin FROM agentrun.steps WHERE run_id = %s ORDER BY seq", [run_id])
        recorded = steps.fetchall()
        taken = connection.execute("SELECT xmin FROM agentrun.signals WHERE run_id = %s", [run_id]).fetchall()
        ended = connection.execute("SELECT xmin FROM agentrun.runs WHERE id = %s", [run_id]).fetchall()
    assert [row["key"] for row in recorded] == ["#1", "#2"]
    assert [row["xmin"] for row in recorded] == [taken[0]["xmin"], ended[0]["xmin"]]


def test_a_transaction_after_an_answer_is_recorded_after_it(
    client: Client, go: Go, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "A_MOMENT", 60.0)  # nothing but what follows has the answer recorded

    @durable("listen-and-transact")
    async def listen(ctx: Context, _: None) -> Any:
        answer = await ctx.signal("go")
        return await ctx.transaction(lambda _: answer)

    run_id = client.enqueue("listen-and-transact")
    assert go(run_id).status is Status.WAITING
    client.signal(run_id, "go", 1)
    assert go(run_id).result == 1
    ended = [event.data["key"] for event in client.events(run_id) if event.type == "step_completed"]
    assert ended == ["#1", "#2"]


async def test_signals_sent_at_once_go_together_each_with_its_own_answer(
    client: Client, settings: Settings, parked: Parked, go: Go, rows: Rows
) -> None:
    listening, ended = [parked("listen", 2) for _ in range(12)], parked("listen", 1)
    client.cancel(ended)
    sent = [(run_id, value) for run_id in listening for value in (1, 2)]
    async with AsyncClient(settings=settings) as together:
        refused = asyncio.gather(
            together.signal(ended, "go"), together.signal(UUID(int=7), "go"), return_exceptions=True
        )
        answers = await asyncio.gather(*(together.signal(run_id, "go", value) for run_id, value in sent))
        assert [type(error) for error in await refused] == [NotAllowed, NotFound]
        with pytest.raises(InvalidRequest):
            await together.signal(listening[0], "")
    assert [run.id for run in answers] == [run_id for run_id, _ in sent]
    with rows.database.connection() as connection:
        found = connection.execute(
            "SELECT DISTINCT xmin::text FROM agentrun.waits WHERE status = 'resolved'"
        ).fetchall()
    assert len(found) < len(listening) / 2, "in a few transactions"
    assert [go(run_id).result for run_id in listening] == [[1, 2]] * len(listening), "in order"


def test_signals_that_come_early_are_kept_in_order(client: Client, go: Go) -> None:
    run_id = client.enqueue("listen", 4)
    for value in (1, 2):
        client.signal(run_id, "go", value)
    client.signal(run_id, "stop", "another name")
    assert go(run_id).status is Status.WAITING
    for value in (3, 4):
        client.signal(run_id, "go", value)
    assert go(run_id).result == [1, 2, 3, 4]


def test_signals_keep_their_order_while_the_run_takes_them(client: Client, engine: Engine) -> None:
    """Sent one after the other, some of them just before the body asks, and some just after."""
    for _ in range(5):
        run_id = client.enqueue("listen", 30)
        with ThreadPoolExecutor(1) as sender:
            sending = sender.submit(lambda run_id=run_id: [client.signal(run_id, "go", value) for value in range(30)])
            while not client.status(run_id).status.final:
                engine.run(run_id)
            sending.result()
        assert client.status(run_id).result == list(range(30))


def test_a_signal_answers_one_wait_and_the_next_one_the_next(client: Client, parked: Parked, go: Go) -> None:
    @durable("both")
    async def both(ctx: Context) -> list[Any]:
        return await ctx.gather(ctx.signal("go"), ctx.signal("go"), ctx.signal("halt"))

    run_id = parked("both")
    client.signal(run_id, "halt", "h")
    client.signal(run_id, "go", 1)
    assert go(run_id).status is Status.WAITING
    client.signal(run_id, "go", 2)
    assert go(run_id).result == [1, 2, "h"]


@pytest.mark.parametrize(
    ("wishes", "result"), [({}, ["expired", "go"]), ({"default": 7}, 7), ({"default": None}, None)]
)
def test_a_signal_that_does_not_come_times_out_or_has_a_default(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any], wishes: Any, result: Any
) -> None:
    run_id = parked("listen-long", wishes)
    travel.past_due(run_id)
    assert sweep().answered == 1
    client.signal(run_id, "go", "too late for this wait")
    assert go(run_id).result == result


def test_a_signal_that_has_expired_answers_nobody(client: Client, go: Go, travel: Travel) -> None:
    run_id = client.enqueue("listen", 1)
    client.signal(run_id, "go", "stale", expires=60)
    client.signal(run_id, "go", "fresh", expires=60)
    travel(
        "UPDATE agentrun.signals SET expires_at = now() - interval '1 s' WHERE payload::text = '\"stale\"'"
        " AND run_id = %s",
        run_id,
    )
    assert go(run_id).result == ["fresh"]


def test_signals_that_nobody_waits_for_are_listed_oldest_first_until_somebody_takes_them(
    client: Client, parked: Parked, go: Go, settings: Settings
) -> None:
    run_id, other = parked("listen", 1), parked("listen", 1)
    client.signal(run_id, "stop", {"n": 1}, by="ann")
    client.signal(other, "stop", 2)
    client.signal(run_id, "halt", 3)
    assert [(each["run_id"], each["name"], each["payload"]) for each in client.signals()] == [
        (run_id, "stop", {"n": 1}), (other, "stop", 2), (run_id, "halt", 3),
    ]  # fmt: skip
    (first, second) = client.signals(run_id)
    assert (first["sent_by"], first["run_kind"], second["name"]) == ("ann", "listen", "halt")
    client.signal(run_id, "go", "now")
    assert go(run_id).result == ["now"]
    assert [each["name"] for each in client.signals(run_id)] == ["stop", "halt"], "what was waited for was not kept"
    with Client(settings=settings, namespace="other") as stranger:
        assert stranger.signals() == []


def test_an_actor_sees_the_signals_of_runs_that_it_may_see(client: Client, parked: Parked) -> None:
    mine, other = parked("listen", 1, owner="ann"), parked("listen", 1, owner="bob")
    for run_id in (mine, other):
        client.signal(run_id, "stop")
    ann = client.acting(Actor("ann"))
    assert [each["run_id"] for each in ann.signals()] == [mine]
    with pytest.raises(NotFound):
        ann.signals(other)
    assert len(client.acting(Actor("ann", frozenset({Scope.READ}))).signals()) == 2


PAST = "UPDATE agentrun.signals SET expires_at = now() - interval '1 s' WHERE expires_at IS NOT NULL AND run_id = %s"


def test_the_sweep_forgets_signals_that_have_expired_and_no_others(
    client: Client, parked: Parked, travel: Travel, sweep: Callable[[], Any], rows: Rows
) -> None:
    run_id, fresh = parked("listen", 2), parked("listen", 1)
    client.signal(fresh, "stop", "fresh")
    for payload in (1, 2):
        client.signal(run_id, "stop", payload, expires=60)
    assert sweep().forgotten == 0
    travel(PAST, run_id)
    assert client.signals(run_id) == [], "not listed, though no sweep came yet"
    assert sweep().forgotten == 2
    with rows.database.connection() as connection:
        left = connection.execute("SELECT run_id FROM agentrun.signals").fetchall()
    assert [row["run_id"] for row in left] == [fresh]
    assert sweep().forgotten == 0


def test_signals_that_a_step_has_taken_are_history_and_stay(
    client: Client, go: Go, travel: Travel, sweep: Callable[[], Any], rows: Rows
) -> None:
    run_id = client.enqueue("listen", 1)
    client.signal(run_id, "go", 1, expires=60)
    go(run_id)
    travel(PAST, run_id)
    assert sweep().forgotten == 0


@pytest.mark.parametrize(("seconds", "kept"), [(3600.0, True), (0.0, False)], ids=["an hour", "for ever"])
def test_a_signal_is_kept_as_long_as_the_settings_say(
    settings: Settings, client: Client, parked: Parked, seconds: float, kept: bool
) -> None:
    run_id = parked("listen", 1)
    with Client(settings=settings.model_copy(update={"signal_expires_seconds": seconds})) as sender:
        sender.signal(run_id, "stop")
        sender.signal(run_id, "halt", expires=timedelta(minutes=1))
    stop, halt = client.signals(run_id)
    assert ((stop["expires_at"] - stop["sent_at"]).total_seconds() == seconds) if kept else stop["expires_at"] is None
    assert (halt["expires_at"] - halt["sent_at"]).total_seconds() == 60


def test_a_signal_for_a_run_that_ended_or_is_not_there_is_refused(client: Client, go: Go, rows: Rows) -> None:
    run_id = client.enqueue("listen", 0)
    go(run_id)
    before = rows.stored(run_id)
    with pytest.raises(NotAllowed, match="completed"):
        client.signal(run_id, "go")
    with pytest.raises(NotFound):
        client.signal("00000000-0000-7000-8000-000000000000", "go")
    assert rows.stored(run_id) == before


def test_a_payload_that_cannot_be_stored_is_refused_by_what_it_is_the_payload_of(
    client: Client, settings: Settings, parked: Parked
) -> None:
    run_id = parked("hook")
    token = token_of(client, run_id)
    for bad, error, told in (
        (object(), InvalidRequest, "cannot be stored as JSON"),
        ("x" * settings.max_result_bytes, TooLarge, "bytes of JSON, over the limit"),
    ):
        with pytest.raises(error, match=f"^the signal's payload .*{told}"):
            client.signal(run_id, "go", bad)
        with pytest.raises(error, match=f"^the webhook's payload .*{told}"):
            client.webhook(token, bad)
    assert client.signals(run_id) == []


def test_signals_in_the_buffer_are_taken_once_and_in_order_whatever_commit_their_run_dies_at(
    client: Client, crash_sweep: CrashSweep
) -> None:
    """`lost` matters most: a statement sent twice must not take two signals."""

    def start() -> Any:
        run_id = client.enqueue("listen", 2)
        for value in (1, 2):
            client.signal(run_id, "go", value)
        return run_id

    deaths = dict.fromkeys(When, 0)
    for story in crash_sweep(start):
        assert (story.run.status, story.run.result) == (Status.COMPLETED, [1, 2]), story
        deaths[story.when] += 1
    assert min(deaths.values()) >= 3


def test_a_token_answers_its_wait_once(client: Client, parked: Parked, go: Go, rows: Rows) -> None:
    run_id = parked("hook")
    token = token_of(client, run_id)
    assert token.replace("-", "").replace("_", "").isalnum()
    stored = str(rows.stored(run_id)["runs"]) + str(client.waits(run_id))
    assert token not in stored
    client.signal(run_id, "webhook", "not by its name")
    assert client.status(run_id).status is Status.WAITING
    client.webhook(token, {"paid": True})
    with pytest.raises(AlreadyDecided, match="once"):
        client.webhook(token, {"paid": False})
    assert go(run_id).result == {"paid": True}
    with pytest.raises(AlreadyDecided):
        client.webhook(token, {"paid": False})


def test_an_unknown_token_answers_nothing_and_one_of_another_namespace_is_unknown(
    client: Client, settings: Settings, parked: Parked
) -> None:
    run_id = parked("hook")
    token = token_of(client, run_id)
    for wrong in ("", "x" * 43, token[:-1], token + "A"):
        with pytest.raises(NotFound):
            client.webhook(wrong)
    with Client(settings=settings, namespace="other") as stranger, pytest.raises(NotFound):
        stranger.webhook(token)
    assert client.status(run_id).status is Status.WAITING


def test_a_token_that_has_expired_is_refused(
    client: Client, parked: Parked, go: Go, travel: Travel, sweep: Callable[[], Any]
) -> None:
    run_id = parked("hook", 60)
    token = token_of(client, run_id)
    travel.past_due(run_id)
    sweep()
    with pytest.raises(AlreadyDecided, match="expired"):
        client.webhook(token)
    assert go(run_id).result == "expired"


@pytest.fixture
def chain(client: Client) -> str:
    """A kind whose run takes one signal and goes on as a fresh one, so many times."""

    @durable("chain")
    async def body(ctx: Context, heard: list[Any]) -> list[Any]:
        heard.append(await ctx.signal("go"))
        if len(heard) < 3:
            ctx.continue_as_new(heard)
        return heard

    return "chain"


def continuation(run_id: UUID) -> UUID:
    """The run that goes on from this one."""
    return uuid.uuid5(run_id, "continuation")


def test_signals_that_nobody_took_go_along_with_a_continuation_in_order(
    client: Client, chain: str, parked: Parked, go: Go
) -> None:
    run_id = parked(chain, [])
    for payload in (1, 2, 3):
        client.signal(run_id, "go", payload)
    client.signal(run_id, "other", "kept")
    for _ in range(2):
        assert go(run_id).status is Status.COMPLETED
        run_id = continuation(run_id)
    assert [(kept["run_id"], kept["name"]) for kept in client.signals()] == [(run_id, "go"), (run_id, "other")]
    assert go(run_id).result == [1, 2, 3]


def test_a_signal_that_comes_at_the_moment_of_a_continuation_goes_along(
    client: Client, engine: Engine, go: Go, database: Database
) -> None:
    """It commits when the statement that ends its run has begun, which cannot see it any more."""
    began, go_on = threading.Event(), threading.Event()

    @durable("hasty")
    async def hasty(ctx: Context, left: int) -> Any:
        if left:
            began.set()
            await asyncio.to_thread(go_on.wait, 10)
            ctx.continue_as_new(left - 1)
        return await ctx.signal("go")

    run_id = client.enqueue("hasty", 1)
    ended = engine.begin(run_id)
    assert began.wait(10)
    sent = {"run_id": run_id, "namespace": "default", "name": "go", "payload": '"here"', "by": "me", "data": "{}"}
    with database.transaction() as sending:
        sending.execute(waits.LOCK.sql, {"run_ids": [run_id]})
        go_on.set()
        until(lambda: _waits_for_a_lock(database), 10)
        assert sending.execute(signals.SEND.sql, sent | {"kind": "signal", "expires_in": None}).fetchall()
    assert ended.result(10).outcome == "completed"
    assert go(continuation(run_id)).result == "here"


def _waits_for_a_lock(database: Database) -> bool:
    asked = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with database.connection() as connection:
        return bool(connection.execute(asked).fetchall())


def test_waits_that_a_continuation_leaves_behind_are_closed_and_hold_up_no_timer(
    client: Client, parked: Parked, go: Go, travel: Travel, settings: Settings, publisher: RecordingPublisher,
    database: Database,
) -> None:  # fmt: skip
    """Nobody can answer them any more, and a sweep that looks at the oldest first would come to nothing else."""

    @durable("leaves")
    async def leaves(ctx: Context, left: int) -> None:
        await ctx.webhook(expires=60)
        if left:
            ctx.continue_as_new(left - 1)
        await ctx.sleep(days=1)

    run_id = client.enqueue("leaves", 1)
    assert go(run_id).status is Status.COMPLETED
    assert [wait["status"] for wait in travel.waits(run_id)] == ["closed"]
    last = continuation(run_id)
    assert go(last).status is Status.WAITING
    travel("UPDATE agentrun.waits SET due_at = now() - interval '1 h' WHERE run_id = %s", run_id)
    travel("UPDATE agentrun.waits SET due_at = now() - interval '1 s' WHERE run_id = %s AND kind = 'timer'", last)
    narrow = settings.model_copy(update={"sweep_batch": 1})
    assert Sweep(narrow, database, publisher, by="sweep:test").run().answered == 1
    assert go(last).status is Status.COMPLETED
