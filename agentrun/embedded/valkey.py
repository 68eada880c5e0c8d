"""Embedded Redis: a Valkey server on loopback, with a password.

A server that is not ephemeral keeps its data in an append-only file. An ephemeral one forgets at every stop, unless
told to `save` first. Neither ever evicts a message.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from agentrun.embedded.programs import valkey_program
from agentrun.embedded.server import Server, stored_secret

if TYPE_CHECKING:
    # Imported by who starts a server; who only looks whether one is up does without.
    from redis import Redis

_CONFIGURATION = """
bind 127.0.0.1
port {port}
requirepass {password}
dir "{directory}"
appendonly {appendonly}
save ""
maxmemory-policy noeviction
daemonize no
"""


class EmbeddedRedis(Server):
    """`url` is a broker URL for Celery and redis-py, the same after every restart."""

    name = "Redis"

    def __init__(self, directory: Path, *, port: int | None = None, ephemeral: bool = False) -> None:
        """EmbeddedMissing: the package is not installed."""
        self._program = valkey_program()
        super().__init__(directory, port=port, ephemeral=ephemeral)

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        self.resume()
        self._signal(signal.SIGTERM)
        self._wait_for_end()

    def restart(self) -> None:
        """Stop and start again on the same port."""
        self.stop()
        self.start()

    def save(self) -> None:
        """Write everything to disk: the next start of an ephemeral server finds it, once."""
        with self._client() as client:
            client.save()  # pyright: ignore[reportUnknownMemberType]

    def flushall(self) -> None:
        """Forget everything, in all databases."""
        with self._client() as client:
            client.flushall()  # pyright: ignore[reportUnknownMemberType]

    def _prepare(self) -> None:
        self.directory.chmod(0o700)

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        configuration = _CONFIGURATION.format(
            port=port,
            password=self._password,
            directory=self.directory,
            appendonly="no" if self.ephemeral else "yes",
        )
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [self._program, "-"],  # read from stdin: on the command line everybody could see the password
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        if process.stdin:
            process.stdin.write(configuration.encode())
            process.stdin.close()
        return process

    def _is_ready(self, port: int) -> bool:
        from redis.exceptions import RedisError

        try:
            with self._client(port) as client:
                client.ping()  # pyright: ignore[reportUnknownMemberType]
        except RedisError:  # not listening yet, or still loading
            return False
        (self.directory / "dump.rdb").unlink(missing_ok=True)  # loaded; the next stop forgets again
        return True

    @property
    def _password(self) -> str:
        return stored_secret(self.directory / "password")

    def _client(self, port: int | None = None) -> Redis:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return Redis(port=port or self.port, password=self._password, socket_timeout=10, retry=Retry(NoBackoff(), 0))
