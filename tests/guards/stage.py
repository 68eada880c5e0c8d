"""Where the cases play: a database with limits on what a statement without its guards may do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from agentrun.store.database import Database
from agentrun.testing.servers import Servers, embedded_only


def open_stage(servers: Servers) -> Database:
    """A database of our own in which no statement lasts long: one without its guard may recurse for ever."""
    url = servers.create_database()
    with contextlib.closing(Database(url, name="agentrun guards")) as database, database.connection() as connection:
        connection.execute(f"ALTER DATABASE {url.rsplit('/', 1)[1]} SET statement_timeout = '3s'")  # type: ignore[arg-type]
    return Database(url, name="agentrun guards")


@contextlib.contextmanager
def own_stage() -> Iterator[Database]:
    """The same, with servers of its own."""
    with embedded_only() as servers, contextlib.closing(open_stage(servers)) as database:
        yield database
