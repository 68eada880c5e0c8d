"""What our application adds to a worker's consumer keeps one client for a pool of connections, and no longer."""

from __future__ import annotations

from agentrun.broker.consumer import OfOnePool


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
