"""PostgreSQL and Redis together, as everything else uses them: kept in a state folder, or thrown away."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from agentrun.embedded.home import Home, default_state_dir
from agentrun.embedded.postgres import EmbeddedPostgres
from agentrun.embedded.programs import scratch_path
from agentrun.embedded.valkey import EmbeddedRedis


class Embedded:
    """Two servers, from `start` (or `with`) to `close`, or to the end of our process, however it comes."""

    def __init__(self, postgres: EmbeddedPostgres, redis: EmbeddedRedis, home: Home | None = None) -> None:
        self.postgres = postgres
        self.redis = redis
        self._home = home

    @classmethod
    def kept(cls, state_dir: Path | None = None) -> Self:
        """Servers whose data stay in `state_dir` (the default one), on the same ports every time if they are free.

        EmbeddedMissing: a package is not installed. `start` raises AlreadyRunning when another process has them up.
        """
        home = Home(state_dir or default_state_dir())
        return cls(EmbeddedPostgres(home.directory / "postgres"), EmbeddedRedis(home.directory / "redis"), home)

    @classmethod
    def temporary(cls, *, postgres_settings: Mapping[str, str] | None = None) -> Self:
        """Servers of one's own that leave nothing behind. PostgreSQL does not wait for the disk (`fsync` is off).

        EmbeddedMissing: a package is not installed.
        """
        return cls(
            EmbeddedPostgres(scratch_path("postgres"), ephemeral=True, settings=postgres_settings),
            EmbeddedRedis(scratch_path("redis"), ephemeral=True),
        )

    @property
    def database_url(self) -> str:
        return self.postgres.url

    @property
    def broker_url(self) -> str:
        return self.redis.url

    def start(self) -> Self:
        """Return when both serve. AlreadyRunning, or EmbeddedError with the reason; nothing is left running then."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if self._home:
                self._home.enter()
                self.postgres.guard_holds = self.redis.guard_holds = (self._home.lock,)
            self.redis.start()
            self.postgres.start()
            if self._home:
                self._home.announce(self.database_url, self.broker_url)
            undo.pop_all()
        return self

    def close(self) -> None:
        """Stop both in an orderly way; temporary data are removed."""
        self.postgres.close()
        self.redis.close()
        if self._home:
            self._home.leave()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()
