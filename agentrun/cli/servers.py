"""The servers of `agentrun up`: embedded ones for each URL that is not set, in a state folder that is ours alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from agentrun.embedded import EmbeddedPostgres, EmbeddedRedis
from agentrun.embedded.home import Home
from agentrun.settings import Settings


class Servers:
    """From `with` to its end. Raises AlreadyRunning where the state folder is another process's, EmbeddedMissing."""

    def __init__(self, settings: Settings, state_dir: Path) -> None:
        self._home = Home(state_dir)
        self.state_dir = self._home.directory
        self.postgres = None if settings.database_url else EmbeddedPostgres(self.state_dir / "postgres")
        self.redis = None if settings.broker_url else EmbeddedRedis(self.state_dir / "redis")
        self._given = settings

    @property
    def embedded(self) -> list[EmbeddedPostgres | EmbeddedRedis]:
        """The servers that are ours, in the order of their start."""
        return [server for server in (self.redis, self.postgres) if server is not None]

    @property
    def database_url(self) -> str:
        return self.postgres.url if self.postgres else self._given.require_database()

    @property
    def broker_url(self) -> str:
        return self.redis.url if self.redis else self._given.require_broker()

    @property
    def lock(self) -> int:
        """The file descriptor that keeps the state folder ours; who holds it keeps the next `up` waiting."""
        return self._home.lock

    def revive(self) -> Iterator[str]:
        """Start what has ended without being told to, on the same port; yields its name. Raises EmbeddedError."""
        for server in self.embedded:
            if server.pid is None:
                server.start()
                yield server.name

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._home.enter()
            for server in self.embedded:
                server.guard_holds = (self.lock,)
                server.start()
            self._home.announce(self.database_url, self.broker_url, self._given.namespace)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what is ours, the database first; give the folder up."""
        for server in reversed(self.embedded):
            server.close()
        self._home.leave()
