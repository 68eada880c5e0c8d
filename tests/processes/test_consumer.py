"""What our application adds to a worker's consumer keeps one client for a pool of connections, and no longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentrun.broker.consumer import Flushing, OfOnePool


def test_one_client_serves_as_long_as_kombu_asks_for_the_same_pool() -> None:
    made: list[dict[str, object]] = []

    def make(**options: object) -> object:
        made.append(options)
        return object()

    clients = OfOnePool(make)
    pool, another = object(), object()
    first = clients(connection_pool=pool)
    assert clients(connection_pool=pool) is first
    second = clients(connection_pool=another)
    assert second is not first, "kombu has opened another pool: the old one is closed"
    assert clients(connection_pool=another) is second
    assert made == [{"connection_pool": pool}, {"connection_pool": another}]


def test_task_events_are_flushed_once_a_pass_and_none_is_left_behind() -> None:
    """Through the hub's own door, which holds its lock and wakes it."""
    passes: list[Any] = []
    flushed: list[int] = []
    dispatcher = SimpleNamespace(on_send_buffered=None, flush=lambda: flushed.append(1))
    hub = SimpleNamespace(call_soon=passes.append)
    consumer: Any = SimpleNamespace(hub=hub, event_dispatcher=dispatcher, on_send_event_buffered=None)
    Flushing.begin(consumer)
    assert consumer.on_send_event_buffered is dispatcher.on_send_buffered, "the next connect's dispatcher gets it too"
    for _ in range(3):
        consumer.on_send_event_buffered()
    assert (len(passes), flushed) == (1, [])
    passes.pop()()
    consumer.on_send_event_buffered()
    assert (len(passes), flushed) == (1, [1])
    consumer.event_dispatcher = None  # between two connections
    passes.pop()()
    assert flushed == [1]
