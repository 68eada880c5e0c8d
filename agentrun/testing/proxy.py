"""A TCP proxy in front of a server, to lose what real networks lose: the answer to a COMMIT, or the connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Forwards connections to the server of `url`; `url` of the proxy itself differs in host and port only."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answers = threading.Event()
        self._answers.set()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        user, _, _ = parts.netloc.rpartition("@")
        here = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=f"{user}@{here}" if user else here))
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def hold_answers(self) -> None:
        """What the server says is kept back from now on; what clients say still reaches it."""
        self._answers.clear()

    def cut(self) -> None:
        """Break every connection, answers kept back and all; new connections work again."""
        with self._lock:
            broken, self._open = self._open, set()
        for each in broken:
            _close(each)
        self._answers.set()

    def close(self) -> None:
        """Break everything and listen no more."""
        _close(self._listener)
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, self._answers), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event | None) -> None:
        try:
            while data := source.recv(65_536):
                if gate is not None:
                    gate.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            _close(source)
            _close(sink)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
