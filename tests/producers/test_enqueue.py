"""What a producer says arrives: in the row, in the message, once, or not at all."""

from __future__ import annotations

import base64
import json
import multiprocessing
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from redis import Redis

from agentrun import AsyncClient, Client, Context, Settings, Status, durable
from agentrun.core import errors
from agentrun.runtime.kinds import Registry
from agentrun.store.database import Database
from agentrun.testing import until
from agentrun.testing.servers import Servers

QUEUE = "agentrun"


def messages(redis: Redis, queue: str = QUEUE) -> list[dict[str, Any]]:
    """What waits in a queue, oldest first."""
    return [json.loads(text) for text in reversed(redis.lrange(queue, 0, -1))]  # pyright: ignore[reportGeneralTypeIssues]


def body(message: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(message["body"]))


@pytest.fixture(scope="module")
def bare(shared_servers: Servers) -> Iterator[Client]:
    """A producer that the tests of this module share, where they leave nothing behind; with a queue of its own."""
    url = shared_servers.create_database()
    with Client(database_url=url, broker_url=shared_servers.broker_url, namespace="bare") as client:
        yield client
    shared_servers.drop_database(url)


# ---- what was said


def test_everything_that_was_said_is_in_the_row(client: Client) -> None:
    run_id = client.enqueue(
        "digest",
        {"day": "2026-11-29", "pages": [1, 2]},
        idempotency_key="2026-11-29",
        queue="gpu",
        priority=3,
        delay=timedelta(minutes=5),
        deadline=3600,
        tags=["nightly", "eu"],
        attributes={"tenant": {"id": 7}},
        owner="ada",
        limits={"max_cost": Decimal("1.5")},
    )
    run = client.status(str(run_id))
    assert (run.id, run.kind, run.status) == (run_id, "digest", Status.QUEUED)
    assert run.request == {"day": "2026-11-29", "pages": [1, 2]}
    assert (run.queue, run.priority, run.owner, run.idempotency_key) == ("gpu", 3, "ada", "2026-11-29")
    assert (list(run.tags), dict(run.attributes)) == (["nightly", "eu"], {"tenant": {"id": 7}})
    assert run.due_at is not None
    assert run.deadline_at is not None
    assert run.due_at - run.created_at == timedelta(minutes=5)
    assert run.deadline_at - run.created_at == timedelta(hours=1)
    assert (run.epoch, run.claimed_by, run.started_at, run.result) == (0, None, None, None)
    assert [event.type for event in client.events(run_id)] == ["enqueued"]


def test_a_message_holds_the_uuid_and_nothing_else(client: Client, redis: Redis) -> None:
    run_id = client.enqueue("digest", {"secret": "s3cret"}, owner="grace", tags=["private"])
    (message,) = messages(redis)
    args, kwargs, _ = body(message)
    assert (args, kwargs) == ([str(run_id)], {})
    assert message["headers"]["task"] == "agentrun.wake"
    assert message["content-type"] == "application/json"
    everything = json.dumps(message) + json.dumps(body(message))
    assert not any(word in everything for word in ("s3cret", "grace", "private"))


def test_queue_and_priority_lead_to_their_lists(client: Client, redis: Redis) -> None:
    client.enqueue("digest", queue="gpu")
    urgent, idle = client.enqueue("digest", priority=0), client.enqueue("digest", priority=9)
    assert redis.llen("gpu") == 1
    assert [body(m)[0] for m in messages(redis)] == [[str(urgent)]]
    assert [body(m)[0] for m in messages(redis, f"{QUEUE}\x06\x169")] == [[str(idle)]]


def test_a_delay_is_on_the_row_and_capped_on_the_wire(client: Client, redis: Redis) -> None:
    run = client.status(client.enqueue("digest", delay=7200.0))
    assert run.due_at is not None
    assert (run.due_at - run.created_at).total_seconds() == 7200
    (message,) = messages(redis)
    eta = datetime.fromisoformat(message["headers"]["eta"])
    assert (eta - run.created_at).total_seconds() < client.settings.longest_countdown_seconds + 5


def test_requests_are_what_their_json_says(client: Client) -> None:
    for request in (None, 0, "", "ünï \U0001f600", "a\x00b\\u0000", [1, [2, None]], {"a": {"b": 1.5}}, True):
        assert client.status(client.enqueue("digest", request)).request == request


def test_a_known_kind_gives_its_options_to_the_row(client: Client, kinds: Registry) -> None:
    @durable("sized", queue="big", timeout=timedelta(hours=2), max_requeues=9)
    async def sized(ctx: Context, size: int) -> int:
        return size

    run = client.status(client.enqueue("sized", 3))
    assert run.queue == "big"
    assert run.deadline_at is not None
    assert run.deadline_at - run.created_at == timedelta(hours=2)
    assert client.status(client.enqueue("sized", 3, queue="small", deadline=5)).queue == "small"


# ---- many


def test_five_thousand_runs_are_stored_and_woken_in_order(client: Client, redis: Redis) -> None:
    ids = client.enqueue_many("digest", [{"n": number} for number in range(5000)], tags=["bulk"], owner="ada")
    assert len(set(ids)) == 5000
    assert redis.llen(QUEUE) == 5000
    woken = [body(message)[0][0] for message in messages(redis)]
    assert woken == [str(run_id) for run_id in ids]
    for index in (0, 2500, 4999):
        run = client.status(ids[index])
        assert (run.request, list(run.tags), run.owner) == ({"n": index}, ["bulk"], "ada")


def test_many_with_keys_returns_earlier_runs_in_their_places(client: Client, redis: Redis) -> None:
    first = client.enqueue("digest", 1, idempotency_key="b")
    redis.delete(QUEUE)
    ids = client.enqueue_many("digest", [0, 1, 2], idempotency_keys=["a", "b", "c"])
    assert ids[1] == first
    assert len(set(ids)) == 3
    assert redis.llen(QUEUE) == 2
    assert client.enqueue_many("digest", [0, 1, 2], idempotency_keys=["a", "b", "c"]) == ids
    assert client.enqueue_many("digest", []) == []


def test_many_are_stored_or_none(client: Client, database: Database) -> None:
    client.enqueue("digest", "taken", idempotency_key="taken")
    with pytest.raises(errors.InvalidRequest):
        client.enqueue_many("digest", [1, object(), 3])
    with pytest.raises(errors.InvalidRequest):
        client.enqueue_many("digest", [1, 2], idempotency_keys=["same", "same"])
    with pytest.raises(errors.InvalidRequest):
        client.enqueue_many("digest", [1, 2], idempotency_keys=["only one"])
    assert len(client.list()) == 1


# ---- once


def test_a_key_returns_the_run_that_has_it_whatever_became_of_it(client: Client, redis: Redis) -> None:
    run_id = client.enqueue("digest", {"a": 1, "b": 2}, idempotency_key="once")
    assert client.enqueue("digest", {"b": 2, "a": 1}, idempotency_key="once") == run_id
    client.cancel(run_id)
    assert client.enqueue("digest", {"a": 1, "b": 2}, idempotency_key="once") == run_id
    assert redis.llen(QUEUE) == 1


def test_a_key_belongs_to_its_kind_and_namespace(client: Client, settings: Settings) -> None:
    run_id = client.enqueue("digest", 1, idempotency_key="same")
    assert client.enqueue("other", 1, idempotency_key="same") != run_id
    with Client(settings=settings, namespace="elsewhere") as elsewhere:
        assert elsewhere.enqueue("digest", 1, idempotency_key="same") != run_id


def test_a_key_for_another_request_is_refused_and_names_the_run(client: Client) -> None:
    run_id = client.enqueue("digest", 1, idempotency_key="once")
    with pytest.raises(errors.IdempotencyConflict, match=f"`once`.*`{run_id}`"):
        client.enqueue("digest", 2, idempotency_key="once")
    with pytest.raises(errors.IdempotencyConflict):
        client.enqueue_many("digest", [5, 2], idempotency_keys=["new", "once"])
    assert client.status(run_id).request == 1


RACERS, KEYS = 4, 25


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_of_racing_processes_with_one_key_all_get_one_run(settings: Settings, client: Client, redis: Redis) -> None:
    """The client was used before the fork: each process gets connections of its own."""
    client.enqueue("digest", "warm")
    redis.delete(QUEUE)
    fork = multiprocessing.get_context("fork")
    start, answers = fork.Barrier(RACERS), fork.SimpleQueue()

    def race(number: int) -> None:
        start.wait(30)
        same = [client.enqueue("digest", key, idempotency_key=f"key {key}") for key in range(KEYS)]
        mixed: list[str] = []
        for key in range(KEYS):
            try:
                client.enqueue("digest", number, idempotency_key=f"mixed {key}")
                mixed.append("mine")
            except errors.IdempotencyConflict:
                mixed.append("refused")
        answers.put((same, mixed))

    racers = [fork.Process(target=race, args=(number,)) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    told = [answers.get() for _ in racers]
    for racer in racers:
        racer.join(30)
        assert racer.exitcode == 0

    assert len({tuple(same) for same, _ in told}) == 1
    assert all(
        sorted(outcomes) == ["mine", *["refused"] * (RACERS - 1)]
        for outcomes in zip(*(m for _, m in told), strict=True)
    )
    assert len(client.list(limit=1000)) == 2 * KEYS + 1
    until(lambda: redis.llen(QUEUE) == 2 * KEYS, tell=lambda: redis.llen(QUEUE))


# ---- lists


@pytest.fixture(scope="module")
def shelved(shared_servers: Servers) -> Iterator[tuple[Client, dict[str, UUID]]]:
    """Runs that differ in one thing each."""
    url = shared_servers.create_database()
    with Client(database_url=url, broker_url=shared_servers.broker_url, namespace="shelf") as client:
        yield client, _shelf(client)
    shared_servers.drop_database(url)


def _shelf(client: Client) -> dict[str, UUID]:
    ids = {
        "plain": client.enqueue("digest"),
        "other kind": client.enqueue("send"),
        "tagged": client.enqueue("digest", tags=["red", "blue"]),
        "owned": client.enqueue("digest", owner="ada"),
        "attributed": client.enqueue("digest", attributes={"tenant": 7, "tier": {"gold": True}}),
        "cancelled": client.enqueue("digest"),
    }
    client.cancel(ids["cancelled"])
    return ids


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["cancelled", "attributed", "owned", "tagged", "other kind", "plain"]),
        ({"kind": "send"}, ["other kind"]),
        ({"status": "cancelled"}, ["cancelled"]),
        ({"status": Status.QUEUED, "kind": "digest"}, ["attributed", "owned", "tagged", "plain"]),
        ({"status": ["cancelled", "queued"], "limit": 2}, ["cancelled", "attributed"]),
        ({"reason": "cancelled"}, ["cancelled"]),
        ({"tag": "blue"}, ["tagged"]),
        ({"tag": "green"}, []),
        ({"owner": "ada"}, ["owned"]),
        ({"attributes": {"tenant": 7}}, ["attributed"]),
        ({"attributes": {"tier": {"gold": True}}}, ["attributed"]),
        ({"attributes": {"tenant": 8}}, []),
    ],
    ids=str,
)
def test_lists_filter(shelved: tuple[Client, dict[str, UUID]], filters: dict[str, Any], names: list[str]) -> None:
    client, shelf = shelved
    found = {run_id: name for name, run_id in shelf.items()}
    assert [found[run.id] for run in client.list(**filters)] == names


def test_lists_page_without_gaps_or_repeats_while_runs_come(client: Client) -> None:
    ids = client.enqueue_many("digest", list(range(25)))
    pages: list[UUID] = []
    page = client.list(limit=10)
    while page:
        pages += [run.id for run in page]
        client.enqueue("digest", "new")
        page = client.list(limit=10, before=page[-1].id)
    assert sorted(pages) == sorted(ids)
    assert len(pages) == 25


def test_lists_show_one_namespace(client: Client, settings: Settings) -> None:
    client.enqueue("digest")
    with Client(settings=settings, namespace="elsewhere") as elsewhere:
        assert elsewhere.list() == []


# ---- bad input: its own class, its own exit code, nothing stored

REFUSED: list[tuple[str, Callable[[Client], Any], type[errors.AgentrunError], int, str]] = [
    ("not json", lambda c: c.enqueue("digest", object()), errors.InvalidRequest, 5, "kind `digest` cannot be stored"),
    ("too large", lambda c: c.enqueue("digest", "x" * 1_000_001), errors.TooLarge, 7, "AGENTRUN_MAX_REQUEST_BYTES"),
    ("negative delay", lambda c: c.enqueue("digest", delay=-1), errors.InvalidRequest, 5, "delay must be 0 seconds"),
    ("endless delay", lambda c: c.enqueue("digest", delay=1e12), errors.InvalidRequest, 5, "delay"),
    ("no delay", lambda c: c.enqueue("digest", delay=float("nan")), errors.InvalidRequest, 5, "delay"),
    ("delay as text", lambda c: c.enqueue("digest", delay="soon"), errors.InvalidRequest, 5, "delay"),
    ("negative deadline", lambda c: c.enqueue("digest", deadline=-1), errors.InvalidRequest, 5, "deadline"),
    ("priority 10", lambda c: c.enqueue("digest", priority=10), errors.InvalidRequest, 5, "priority must be 0"),
    ("priority -1", lambda c: c.enqueue("digest", priority=-1), errors.InvalidRequest, 5, "priority"),
    ("priority as text", lambda c: c.enqueue("digest", priority="high"), errors.InvalidRequest, 5, "priority"),
    ("empty kind", lambda c: c.enqueue(""), errors.InvalidRequest, 5, "kind must be"),
    ("long kind", lambda c: c.enqueue("k" * 201), errors.InvalidRequest, 5, "kind must be"),
    ("kind with a break", lambda c: c.enqueue("a\nb"), errors.InvalidRequest, 5, "kind must be"),
    ("no kind", lambda c: c.enqueue(None), errors.InvalidRequest, 5, "kind"),
    ("empty queue", lambda c: c.enqueue("digest", queue="\x00"), errors.InvalidRequest, 5, "queue must be"),
    ("bad tag", lambda c: c.enqueue("digest", tags=[""]), errors.InvalidRequest, 5, "tag must be"),
    ("one tag", lambda c: c.enqueue("digest", tags="nightly"), errors.InvalidRequest, 5, "tags"),
    ("number as tag", lambda c: c.enqueue("digest", tags=[7]), errors.InvalidRequest, 5, "tag"),
    (
        "bad attributes",
        lambda c: c.enqueue("digest", attributes={"a": object()}),
        errors.InvalidRequest,
        5,
        "attributes",
    ),
    ("attributes as list", lambda c: c.enqueue("digest", attributes=[1]), errors.InvalidRequest, 5, "attributes"),
    ("bad keys", lambda c: c.enqueue_many("digest", [1], idempotency_keys=["\x00"]), errors.InvalidRequest, 5, "key"),
    ("many of a number", lambda c: c.enqueue_many("digest", 5), errors.InvalidRequest, 5, "a list, one for each run"),
    ("many of a text", lambda c: c.enqueue_many("digest", "abc"), errors.InvalidRequest, 5, "a list, one for each run"),
    ("many of one object", lambda c: c.enqueue_many("digest", {"n": 1}), errors.InvalidRequest, 5, "a list, one for"),
    ("many at -1", lambda c: c.enqueue_many("digest", [1], delay=-1), errors.InvalidRequest, 5, "delay"),
    (
        "nul in attributes",
        lambda c: c.enqueue("digest", attributes={"a": "\x00"}),
        errors.InvalidRequest,
        5,
        "attributes",
    ),
    ("lone surrogate", lambda c: c.enqueue("digest", "\ud800"), errors.InvalidRequest, 5, "request"),
    ("nul in owner", lambda c: c.enqueue("digest", owner="\x00"), errors.InvalidRequest, 5, "owner"),
    ("long owner", lambda c: c.enqueue("digest", owner="o" * 300), errors.InvalidRequest, 5, "owner"),
    (
        "empty key",
        lambda c: c.enqueue("digest", idempotency_key=""),
        errors.InvalidRequest,
        5,
        "idempotency_key must be",
    ),
    ("unknown limit", lambda c: c.enqueue("digest", limits={"max_pages": 1}), errors.InvalidRequest, 5, "max_pages"),
    ("limit below 0", lambda c: c.enqueue("digest", limits={"max_cost": -1}), errors.InvalidRequest, 5, "max_cost"),
    ("unknown run", lambda c: c.status("0" * 32), errors.NotFound, 9, "agentrun list"),
    ("no uuid", lambda c: c.status("17"), errors.InvalidRequest, 5, "a run id is a uuid"),
    ("unknown status", lambda c: c.list(status="paused"), errors.InvalidRequest, 5, "queued"),
    ("page of 0", lambda c: c.list(limit=0), errors.InvalidRequest, 5, "limit must be 1"),
    ("cancel unknown", lambda c: c.cancel("0" * 32), errors.NotFound, 9, "no run"),
]


@pytest.mark.parametrize(("ask", "error", "code", "says"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_bad_input_is_refused_by_class_and_code_and_nothing_is_stored(
    bare: Client, ask: Callable[[Client], Any], error: type[errors.AgentrunError], code: int, says: str
) -> None:
    with pytest.raises(errors.AgentrunError) as refused:
        ask(bare)
    assert type(refused.value) is error
    assert (error.exit_code, says in str(refused.value)) == (code, True), str(refused.value)
    assert bare.list() == []


def test_every_refusal_has_an_exit_code_of_its_own() -> None:
    leaves = [
        errors.ConfigurationError, errors.SchemaMismatch, errors.InvalidRequest, errors.UnknownKind, errors.TooLarge,
        errors.IdempotencyConflict, errors.NotFound, errors.NamespaceMismatch, errors.NotAllowed, errors.EnqueueFailed,
        errors.RunFailed,
    ]  # fmt: skip
    assert len({leaf.exit_code for leaf in leaves}) == len(leaves)


def test_another_namespaces_run_is_told_apart_from_an_unknown_one(client: Client, settings: Settings) -> None:
    run_id = client.enqueue("digest")
    with Client(settings=settings, namespace="elsewhere") as elsewhere:
        for ask in (elsewhere.status, elsewhere.events, elsewhere.steps, elsewhere.cancel, elsewhere.wait):
            with pytest.raises(errors.NamespaceMismatch, match=r"`default`.*`elsewhere`.*AGENTRUN_NAMESPACE"):
                ask(run_id)
    assert client.status(run_id).status is Status.QUEUED


def test_a_known_kind_refuses_a_request_of_the_wrong_shape_and_keeps_its_values_to_itself(
    client: Client, kinds: Any
) -> None:
    @durable("shaped")
    async def shaped(ctx: Context, to: str, pages: int) -> None: ...

    for request in ({"to": "x", "pages": "s3cret"}, {"to": "x"}, None, [1], {"to": "x", "pages": 1, "more": 2}):
        with pytest.raises(errors.InvalidRequest, match="does not fit kind `shaped`") as refused:
            client.enqueue("shaped", request)
        assert "s3cret" not in str(refused.value)
    assert client.list() == []


async def test_the_asynchronous_client_says_and_refuses_the_same(async_client: AsyncClient, redis: Redis) -> None:
    run_id = await async_client.enqueue("digest", 1, idempotency_key="once", tags=["a"], delay=60)
    assert await async_client.enqueue("digest", 1, idempotency_key="once") == run_id
    with pytest.raises(errors.IdempotencyConflict):
        await async_client.enqueue("digest", 2, idempotency_key="once")
    with pytest.raises(errors.InvalidRequest):
        await async_client.enqueue("digest", delay=-1)
    many = await async_client.enqueue_many("digest", [1, 2, 3])
    assert [run.id for run in await async_client.list(limit=3)] == many[::-1]
    assert [event.type for event in await async_client.events(run_id)] == ["enqueued"]
    assert (await async_client.cancel(run_id)).status is Status.CANCELLED
    with pytest.raises(errors.NotFound):
        await async_client.status("0" * 32)
