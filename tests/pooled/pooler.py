"""A pooler in transaction mode, as strict as the old ones: few connections to PostgreSQL for many clients.

A client has a server connection from its first message until the server says that no transaction is open; its next
transaction goes to the next connection. Nothing is reset in between and no prepared statement is followed: what a
client leaves behind in a session, others find there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from psycopg import pq

KNOWN = {"user", "database", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings"}
KNOWN |= {"application_name", "datestyle", "timezone"}
"""Parameters that a client may start with. PgBouncer refuses all others, `options` and `search_path` among them."""

_SSL, _GSS, _CANCEL = 80_877_103, 80_877_104, 80_877_102
_TOLD = (b"server_version", b"server_encoding", b"client_encoding", b"integer_datetimes", b"DateStyle", b"TimeZone",
         b"standard_conforming_strings", b"in_hot_standby", b"is_superuser", b"session_authorization")  # fmt: skip


@dataclass(eq=False)
class Server:
    """One connection to PostgreSQL. libpq opens it; the messages are passed on as they are."""

    libpq: pq.PGconn
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    name: bytes = b""

    @classmethod
    async def connected(cls, url: str) -> Self:
        libpq = await asyncio.to_thread(pq.PGconn.connect, url.encode())
        if libpq.status != pq.ConnStatus.OK:
            raise ConnectionError(libpq.get_error_message())
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(libpq.socket)))
        return cls(libpq, reader, writer)

    async def be_called(self, name: bytes) -> None:
        """What follows runs under the client's own application_name, as PgBouncer sees to it."""
        if name != self.name:
            literal = name.replace(b"'", b"''")
            self.writer.write(_message(b"Q", b"SET application_name = '" + literal + b"'\0"))
            while (await _read(self.reader))[0] != b"Z":
                pass
            self.name = name

    def close(self) -> None:
        self.writer.close()


@dataclass(eq=False)
class Client:
    """One client, with a server connection while a transaction of its is open or under way."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    name: bytes = b""
    server: Server | None = None
    asked: int = 0
    """How often the server has still to say that it is ready."""

    halfway: bool = False
    """Messages of a batch were passed on, and not yet its end."""

    answers: asyncio.Task[None] | None = None


@dataclass
class Pooler:
    """In front of the server of `server_url`; `url` differs from it in host and port only."""

    server_url: str
    size: int = 3
    clients: set[Client] = field(default_factory=set[Client])
    transactions: int = 0
    most_waiting: int = 0

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._free: asyncio.Queue[Server] = asyncio.Queue()
        self._servers: list[Server] = []
        self._waiting = 0
        self._keys: dict[tuple[int, int], Client] = {}
        self._numbers = itertools.count(1_000_000_000)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._do(self._start())
        parts = urlsplit(self.server_url)
        netloc = f"{parts.username or 'anybody'}@127.0.0.1:{port}"
        self.url = urlunsplit(parts._replace(netloc=netloc))
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    async def _start(self) -> int:
        for _ in range(self.size):
            await self._open()
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self._listener.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            server.close()
            server.libpq.finish()

    async def _open(self) -> None:
        server = await Server.connected(self.server_url)
        self._servers.append(server)
        self._free.put_nowait(server)

    # ---- clients

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        client = Client(reader, writer)
        try:
            if await self._welcomed(client):
                self.clients.add(client)
                await self._serve(client)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.clients.discard(client)
            self._tasks.discard(task)
            await self._forget(client)
            writer.close()

    async def _welcomed(self, client: Client) -> bool:
        """Everybody is let in, but for what they start with."""
        while True:
            length, code = struct.unpack("!ii", await client.reader.readexactly(8))
            rest = await client.reader.readexactly(length - 8)
            if code in (_SSL, _GSS):
                client.writer.write(b"N")
                continue
            if code == _CANCEL:
                await self._cancel(struct.unpack("!ii", rest))
                return False
            return self._greeted(client, rest)

    def _greeted(self, client: Client, said: bytes) -> bool:
        parts = said.rstrip(b"\0").split(b"\0")
        given = dict(zip(parts[::2], parts[1::2], strict=False))
        for name in given:
            if name.decode() not in KNOWN:
                text = b"SFATAL\0C08P01\0Munsupported startup parameter: " + name + b"\0\0"
                client.writer.write(_message(b"E", text))
                return False
        client.name = given.get(b"application_name", b"")
        key = (next(self._numbers), 4711)
        self._keys[key] = client
        libpq = self._servers[0].libpq
        told = [(name, libpq.parameter_status(name)) for name in _TOLD]
        statuses = [_message(b"S", name + b"\0" + value + b"\0") for name, value in told if value is not None]
        ready = [_message(b"K", struct.pack("!ii", *key)), _message(b"Z", b"I")]
        client.writer.write(b"".join([_message(b"R", struct.pack("!i", 0)), *statuses, *ready]))
        return True

    async def _cancel(self, key: tuple[int, int]) -> None:
        client = self._keys.get(key)
        if client is not None and client.server is not None:
            await asyncio.to_thread(client.server.libpq.get_cancel().cancel)

    async def _serve(self, client: Client) -> None:
        while True:
            kind, message = await _read(client.reader)
            if kind == b"X":
                return
            if client.server is None:
                await self._lend(client)
            server = client.server
            assert server is not None
            if kind in b"QSF":
                client.asked += 1
                client.halfway = False
            elif kind in b"PBDECH":
                client.halfway = True
            server.writer.write(message)
            await server.writer.drain()

    async def _lend(self, client: Client) -> None:
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)
        try:
            client.server = await self._free.get()
        finally:
            self._waiting -= 1
        self.transactions += 1
        await client.server.be_called(client.name)
        client.answers = asyncio.create_task(self._answer(client, client.server))

    async def _answer(self, client: Client, server: Server) -> None:
        while True:
            kind, message = await _read(server.reader)
            if kind == b"Z":
                client.asked -= 1
            idle = message[5:] == b"I" and not client.asked and not client.halfway
            if kind == b"Z" and idle:
                client.server = client.answers = None
                self._free.put_nowait(server)
            client.writer.write(message)
            if kind == b"Z" and idle:
                return

    async def _forget(self, client: Client) -> None:
        """Who leaves within a transaction takes the connection along: the server rolls back, and another is opened."""
        server, client.server = client.server, None
        if client.answers is not None:
            client.answers.cancel()
        if server is not None:
            self._servers.remove(server)
            server.close()
            server.libpq.finish()
            with contextlib.suppress(ConnectionError):
                await self._open()


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One message: its kind, and all of it."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body
