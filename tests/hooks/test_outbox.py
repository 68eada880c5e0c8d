"""The outbox: told at least once and under one id, not told when it is no longer true, and no harm by a bad hook."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Client, Context, durable, on_dead, on_stalled, on_waiting
from agentrun.core.alarms import Occasion
from agentrun.core.words import Status
from agentrun.runtime import hooks
from agentrun.settings import Settings
from agentrun.store.database import Database
from agentrun.testing import until
from agentrun.testing.rows import Rows
from tests.hooks.conftest import Data, Past
from tests.waits.conftest import Parked, Travel

Sweep = Callable[[], Any]
Told = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def asking(client: Client) -> None:
    @durable("ask")
    async def ask(ctx: Context, remind: float | None) -> bool:
        return bool(await ctx.approval("sure?", remind=remind))


def test_what_was_answered_meanwhile_is_not_told_again(
    client: Client, parked: Parked, sweep: Sweep, past: Past, told: Told
) -> None:
    def fails(data: Data) -> None:
        tried.append(data)
        raise RuntimeError("the mail server is away")

    tried: list[Data] = []
    on_waiting(fails, name="fails")
    run_id = parked("ask", None)
    sweep()
    client.approve(run_id, by="ann")
    past.notices()
    sweep()
    assert len(tried) == 1
    assert [(notice["ending"], notice["ended_at"] is None) for notice in told()] == [("outdated", False)]


def test_a_later_reminder_takes_the_place_of_one_that_could_not_be_told(
    parked: Parked, sweep: Sweep, past: Past, travel: Travel, told: Told
) -> None:
    heard: list[int] = []

    def fails_first(data: Data) -> None:
        heard.append(data["round"])
        if len(heard) == 1:
            raise RuntimeError

    on_waiting(fails_first, name="hook")
    run_id = parked("ask", 3600)
    sweep()
    travel.to_reminder(run_id)
    past.notices()
    sweep()
    assert heard == [1, 2]
    assert [notice["ending"] for notice in told()] == ["outdated", "delivered"]


def test_no_process_takes_a_reminder_from_another(
    parked: Parked, sweep: Sweep, travel: Travel, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[int] = []
    elsewhere: list[int] = []
    on_waiting(lambda data: here.append(data["round"]), name="here")
    mine = hooks._hooks
    monkeypatch.setattr(hooks, "_hooks", {occasion: {} for occasion in Occasion})
    on_waiting(lambda data: elsewhere.append(data["round"]), name="elsewhere")
    others = hooks._hooks

    def sweep_in(process: Any) -> None:
        monkeypatch.setattr(hooks, "_hooks", process)
        sweep()

    run_id = parked("ask", 3600)
    for process in (mine, others):
        sweep_in(process)
    travel.to_reminder(run_id)
    for process in ({occasion: {} for occasion in Occasion}, others, others, mine, mine):
        sweep_in(process)
    assert (here, elsewhere) == ([1, 2], [1, 2])


def test_every_attempt_has_the_same_id_and_two_hooks_tell_repeats_apart(
    parked: Parked, sweep: Sweep, past: Past
) -> None:
    ids: list[str] = []

    def fails_once(data: Data) -> None:
        ids.append(data["id"])
        if len(ids) == 1:
            raise RuntimeError

    on_waiting(fails_once, name="hook")
    parked("ask", None)
    parked("ask", None)
    sweep()
    past.notices()
    sweep()
    assert (len(ids), len(set(ids))) == (3, 2)


def test_a_process_that_died_while_it_told_leaves_the_notice_to_another(
    parked: Parked, settings: Settings, database: Database, sweep: Sweep, past: Past
) -> None:
    heard: list[Data] = []
    on_waiting(heard.append, name="hook")
    parked("ask", None)
    hooks.announce(database, settings.namespace, limit=100)
    assert hooks._taken(database, settings.namespace, Occasion.WAITING) is not None
    assert sweep().told == 0, "another process tells it just now"
    past.notices()
    assert sweep().told == 1


def test_a_hook_that_hangs_holds_up_neither_the_sweep_nor_other_hooks(
    rows: Rows, sweep: Sweep, past: Past, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr(hooks, "LONGEST_CALL", 0.1)
    go_on = threading.Event()
    calls: list[Data] = []
    heard: list[Data] = []

    def hangs(data: Data) -> None:
        calls.append(data)
        go_on.wait(60)

    on_dead(hangs, name="a hangs")
    on_dead(heard.append, name="b hears")
    for _ in range(2):
        rows.final(Status.FAILED)
    assert sweep().told == 2
    past.notices()
    sweep()
    assert len(calls) == 1, "it is not called again while it hangs"
    assert len(heard) == 2
    assert "TimeoutError" in [notice["last_error"] for notice in told()]
    go_on.set()
    until(lambda: not hooks._hangs(Occasion.DEAD, "a hangs"))
    past.notices()
    assert sweep().told == 2


def test_a_hook_that_ends_its_thread_has_not_told_anything(rows: Rows, sweep: Sweep, told: Told) -> None:
    def leaves(data: Data) -> None:
        raise SystemExit

    on_dead(leaves, name="leaves")
    rows.final(Status.FAILED)
    assert sweep().told == 0
    assert [(notice["last_error"], notice["ending"]) for notice in told()] == [("SystemExit", None)]


def test_two_processes_tell_each_notice_once(rows: Rows, database: Database, settings: Settings) -> None:
    heard: list[str] = []
    on_dead(lambda data: heard.append(data["run_id"]), name="hook")
    died = [str(rows.final(Status.FAILED)) for _ in range(20)]
    other = Database(settings.require_database(), name="another process")
    tell = [
        threading.Thread(target=hooks.notify, args=(each, settings.namespace), kwargs={"limit": 100})
        for each in (database, other)
    ]
    for thread in tell:
        thread.start()
    for thread in tell:
        thread.join()
    other.close()
    assert sorted(heard) == sorted(died)


def test_a_forgotten_hook_is_called_no_more(rows: Rows, sweep: Sweep) -> None:
    heard: list[Data] = []
    hook = on_dead(heard.append, name="dead")
    on_stalled(hook, name="stalled")
    rows.final(Status.FAILED)
    assert sweep().told == 1
    hooks.forget(hook)
    rows.final(Status.FAILED)
    assert sweep().told == 0
    assert not any(hooks.names(occasion) for occasion in Occasion)
