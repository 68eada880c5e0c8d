"""One signal to each of many runs: in order, with an answer for each, in few transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from agentrun import Actor, AsyncClient, Client, Context, Scope, Status, durable
from agentrun.core.errors import (
    AgentrunError,
    ConfigurationError,
    Forbidden,
    InvalidRequest,
    NamespaceMismatch,
    NotAllowed,
    NotFound,
    TooLarge,
)
from agentrun.core.records import Run
from agentrun.runtime.sending import MOST_TOGETHER
from agentrun.settings import Settings
from agentrun.testing import RecordingPublisher, until
from agentrun.testing.rows import Rows
from tests.waits.conftest import Go, Parked

UNKNOWN = UUID(int=7)


@pytest.fixture(autouse=True)
def listening(client: Client) -> None:
    @durable("listen")
    async def listen(ctx: Context, times: int) -> list[Any]:
        return [await ctx.signal("go") for _ in range(times)]


@pytest.fixture
def sent(client: Client) -> RecordingPublisher:
    """What the client sends, in place of a broker."""
    client.commands.publisher = publisher = RecordingPublisher()
    return publisher


def kept(rows: Rows) -> list[tuple[UUID, Any]]:
    with rows.database.connection() as connection:
        found = connection.execute("SELECT run_id, payload FROM agentrun.signals ORDER BY id").fetchall()
    return [(row["run_id"], row["payload"]) for row in found]


def transactions(rows: Rows) -> int:
    with rows.database.connection() as connection:
        (row,) = connection.execute("SELECT count(DISTINCT xmin::text) FROM agentrun.signals").fetchall()
        return row["count"]


def blocked(rows: Rows) -> int:
    with rows.database.connection() as connection:
        (row,) = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchall()
        return row["count"]


def same(error: Run | AgentrunError, other: AgentrunError) -> bool:
    return (type(error), str(error)) == (type(other), str(other))


def ids(answers: Sequence[Run | AgentrunError]) -> list[UUID | type[AgentrunError]]:
    return [answer.id if isinstance(answer, Run) else type(answer) for answer in answers]


def test_each_run_gets_its_own_payload_and_one_that_is_named_twice_gets_both_in_order(
    client: Client, parked: Parked, go: Go
) -> None:
    first, second = parked("listen", 2), parked("listen", 1)
    answers = client.signal_many([first, str(second), first], "go", payloads=[1, "two", None])
    assert ids(answers) == [first, second, first]
    assert [answer.status for answer in answers if isinstance(answer, Run)] == [Status.QUEUED] * 3
    assert (go(first).result, go(second).result) == ([1, None], ["two"])


def test_all_get_the_same_payload_where_one_is_given(client: Client, rows: Rows) -> None:
    runs = [rows.queued() for _ in range(3)]
    client.signal_many(runs, "go", {"n": 1}, by="ann", expires=60)
    assert [(each["run_id"], each["payload"], each["sent_by"]) for each in client.signals()] == [
        (run_id, {"n": 1}, "ann") for run_id in runs
    ]
    assert {(each["expires_at"] - each["sent_at"]).total_seconds() for each in client.signals()} == {60}


def test_one_that_is_refused_keeps_no_other_from_its_own_and_hears_what_signal_would_raise(
    client: Client, settings: Settings, rows: Rows
) -> None:
    with Client(settings=settings, namespace="other") as other:
        elsewhere = other.enqueue("listen", 1)
    ended = rows.final(Status.FAILED)
    refused = {ended: NotAllowed, UNKNOWN: NotFound, elsewhere: NamespaceMismatch}
    runs = [rows.queued(), ended, UNKNOWN, rows.queued(), elsewhere, rows.queued()]
    answers = client.signal_many(runs, "go", payloads=list(range(6)))
    assert ids(answers) == [refused.get(run_id, run_id) for run_id in runs]
    for run_id, answer in zip(runs, answers, strict=True):
        if run_id in refused:
            with pytest.raises(refused[run_id]) as alone:
                client.signal(run_id, "go")
            assert same(answer, alone.value)
    assert kept(rows) == [(runs[0], "0"), (runs[3], "3"), (runs[5], "5")]


def test_many_go_in_few_transactions_and_their_wakes_follow_each(
    client: Client, sent: RecordingPublisher, parked: Parked, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [rows.queued() for _ in range(2 * MOST_TOGETHER)] + [parked("listen", 1) for _ in range(3)]
    calls: list[list[UUID]] = []
    wake = sent.wake

    def counted(*wakes: Any) -> int:
        calls.append([each.run_id for each in wakes])
        assert {client.status(each.run_id).status for each in wakes} <= {Status.QUEUED}, "after the commit"
        return wake(*wakes)

    monkeypatch.setattr(sent, "wake", counted)
    assert ids(client.signal_many(runs, "go")) == runs
    assert transactions(rows) == 2, "those of runs that do not wait are kept"
    assert calls == [[], [], runs[-3:]], "one pipeline for each transaction"


def test_an_actor_sends_to_the_runs_it_may_send_to_and_hears_of_each_other_one(client: Client, rows: Rows) -> None:
    """Unknown and not to be seen look the same, to the letter."""
    hers, mine = rows.queued(owner="bob"), rows.queued(owner="ann")
    sender, reader = Actor("ann", frozenset({Scope.INPUT})), Actor("ann", frozenset({Scope.READ}))
    assert ids(client.signal_many([hers, mine, UNKNOWN], "go", by=sender)) == [hers, mine, NotFound]
    assert ids(client.acting(reader).signal_many([hers, mine], "go", by="boss")) == [Forbidden, Forbidden]
    strange, owned, unknown = client.acting(Actor("ann")).signal_many([hers, mine, UNKNOWN], "go")
    assert (type(strange), type(owned), type(unknown)) == (NotFound, Forbidden, NotFound)
    assert str(strange).replace(str(hers), "") == str(unknown).replace(str(UNKNOWN), "")
    assert [(run_id, each["sent_by"]) for run_id, each in zip((hers, mine), client.signals(), strict=True)] == [
        (hers, "ann"), (mine, "ann"),
    ]  # fmt: skip


def test_an_actor_learns_of_runs_that_it_may_not_read_where_they_are_and_no_more(client: Client, rows: Rows) -> None:
    run_id = rows.queued(owner="bob", request='{"secret": 1}')
    (answer,) = client.signal_many([run_id], "go", by=Actor("ann", frozenset({Scope.INPUT})))
    assert isinstance(answer, Run)
    assert (answer.id, answer.request) == (run_id, None)


BAD: list[tuple[Callable[[Client, list[UUID]], Any], type[AgentrunError], str]] = [
    (lambda client, runs: client.signal_many(None, "go"), InvalidRequest, "run_ids must be a list"),
    (lambda client, runs: client.signal_many(5, "go"), InvalidRequest, "run_ids must be a list"),
    (lambda client, runs: client.signal_many(str(runs[0]).encode(), "go"), InvalidRequest, "run_ids must be a list"),
    (lambda client, runs: client.signal_many(runs, ""), InvalidRequest, "a signal's name"),
    (lambda client, runs: client.signal_many(runs, "go", object()), InvalidRequest, "the signal's payload"),
    (lambda client, runs: client.signal_many(runs, "go", payloads=[1, object()]), InvalidRequest, "payload"),
    (lambda client, runs: client.signal_many(runs, "go", payloads=[1, "x" * 2_000_000]), TooLarge, "payload"),
    (lambda client, runs: client.signal_many(runs, "go", payloads=[1]), InvalidRequest, "a list of 2"),
    (lambda client, runs: client.signal_many(runs, "go", payloads="ab"), InvalidRequest, "a list of 2"),
    (lambda client, runs: client.signal_many(runs, "go", payloads={1: 2, 3: 4}), InvalidRequest, "a list of 2"),
    (lambda client, runs: client.signal_many(runs, "go", 1, payloads=[1, 2]), InvalidRequest, "not both"),
    (lambda client, runs: client.signal_many(runs, "go", expires=-1), InvalidRequest, "expires"),
    (lambda client, runs: client.signal_many(runs, "go", by=""), InvalidRequest, "by must be"),
    (lambda client, runs: client.signal_many(runs, "go", by=None), InvalidRequest, "by must be"),
    (lambda client, runs: client.signal(runs[0], "go", by=""), InvalidRequest, "by must be"),
    (lambda client, runs: client.signal_many([*runs, "no run"], "go"), InvalidRequest, "a uuid"),
    (lambda client, runs: client.signal_many(str(runs[0]), "go"), InvalidRequest, "a list of run ids"),
    (lambda client, runs: client.signal_many(runs[0], "go"), InvalidRequest, "a list of run ids"),
]


@pytest.mark.parametrize(("call", "error", "told"), BAD, ids=[f"{told} {n}" for n, (_, _, told) in enumerate(BAD)])
def test_bad_input_is_refused_before_anything_is_sent(
    client: Client, rows: Rows, call: Callable[[Client, list[UUID]], Any], error: type[AgentrunError], told: str
) -> None:
    with pytest.raises(error, match=told):
        call(client, [rows.queued(), rows.queued()])
    assert kept(rows) == []


def test_nothing_is_sent_to_nobody(client: Client, sent: RecordingPublisher) -> None:
    assert client.signal_many([], "go") == client.signal_many([], "go", payloads=[]) == []
    assert sent.wakes == []


def test_where_the_database_fails_the_error_says_how_far_it_got(client: Client, rows: Rows) -> None:
    """The session is ended while it waits for a run of the second transaction, which somebody else has locked."""
    runs = sorted(rows.queued() for _ in range(2 * MOST_TOGETHER + 1))
    with ThreadPoolExecutor(1) as threads, rows.database.transaction() as connection:
        connection.execute("SELECT 1 FROM agentrun.runs WHERE id = %s FOR UPDATE", [runs[MOST_TOGETHER]])
        call = threads.submit(client.signal_many, runs, "go")
        until(lambda: ended_sessions(rows))
        with pytest.raises(ConfigurationError, match="cannot be reached") as failed:
            call.result(20)
    (note,) = failed.value.__notes__
    assert f"of {len(runs)} signals, in the order given, the first {MOST_TOGETHER} were sent or refused" in note
    assert f"of the next {MOST_TOGETHER} nobody knows whether they were sent; 1 were not" in note
    assert [run_id for run_id, _ in kept(rows)] == runs[:MOST_TOGETHER]


def ended_sessions(rows: Rows) -> int:
    blocked = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'agentrun client%' AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(rows.database.url, autocommit=True) as connection:
        (count,) = connection.execute(blocked).fetchone() or (0,)
        return count


def test_a_run_that_somebody_holds_holds_up_its_own_transaction_and_those_after_it(
    client: Client, sent: RecordingPublisher, parked: Parked, rows: Rows
) -> None:
    """And none before it: their runs go on."""
    runs = [parked("listen", 1), *(rows.queued() for _ in range(3 * MOST_TOGETHER - 1))]
    before = len(sent.wakes)
    with ThreadPoolExecutor(1) as threads:
        with rows.database.transaction() as held:
            held.execute("SELECT 1 FROM agentrun.runs WHERE id = %s FOR UPDATE", [runs[MOST_TOGETHER + 5]])
            call = threads.submit(client.signal_many, runs, "go")
            until(lambda: len(kept(rows)) == MOST_TOGETHER - 1)
            until(lambda: blocked(rows) == 1)
            assert [wake.run_id for wake in sent.wakes[before:]] == runs[:1]
            assert len(kept(rows)) == MOST_TOGETHER - 1
            assert not call.done()
        assert ids(call.result(20)) == runs
    assert len(kept(rows)) == len(runs) - 1


def test_the_guide_says_how_many_go_together() -> None:
    guide = Path(__file__).parents[2] / "docs/guides/waiting.md"
    assert f"They go {MOST_TOGETHER} in one transaction" in guide.read_text()


async def test_the_asynchronous_client_does_the_same(async_client: AsyncClient, rows: Rows) -> None:
    runs = [rows.queued(), rows.final(Status.FAILED), rows.queued()]
    answers = await async_client.signal_many(runs, "go", payloads=[1, 2, 3], by="ann", expires=60)
    assert ids(answers) == [runs[0], NotAllowed, runs[2]]
    assert kept(rows) == [(runs[0], "1"), (runs[2], "3")]
    assert {each["sent_by"] for each in await async_client.signals()} == {"ann"}
