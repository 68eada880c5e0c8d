"""A model provider on loopback that misbehaves on request: the first word of the path says how.

`http://127.0.0.1:<port>/<scenario>/...` answers every method and path below it in the manner of the scenario.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "SECRET-4711"
"""Stands in every body, prompt and key of these tests. It must not be found in any message."""

SERVED_AT = "Sun, 29 Nov 2026 12:00:00 GMT"
LATER = "Sun, 29 Nov 2026 12:01:30 GMT"  # 90 s after SERVED_AT


@dataclass(frozen=True)
class Answer:
    """One HTTP answer. `promised` is a Content-Length other than the body's own."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    content_type: str = "application/json"
    promised: int | None = None


def refusal(status: int, *, word: str = "some_error", **headers: str) -> Answer:
    """An error in a shape that both OpenAI's and Anthropic's clients read."""
    error = {"type": word, "code": word, "message": f"no: {SECRET}", "param": None}
    body = json.dumps({"type": "error", "error": error}).encode()
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


CHAT = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
MESSAGE = {
    "id": "m1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": None,
    "content": [{"type": "text", "text": "hello"}], "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip

ANSWERS: dict[str, Answer] = {
    "429": refusal(429),
    "429-seconds": refusal(429, Retry_After="7"),
    "429-date": refusal(429, Retry_After=LATER),
    "429-milliseconds": refusal(429, Retry_After="7", Retry_After_Ms="1500"),
    "429-garbage": refusal(429, Retry_After="soon"),
    "429-for-ever": refusal(429, Retry_After="99999999"),
    "429-quota": refusal(429, word="insufficient_quota"),
    "503-seconds": refusal(503, Retry_After="30"),
    **{str(status): refusal(status) for status in (400, 401, 403, 404, 408, 422, 425, 500, 503, 529)},
    "not-json": Answer(200, b'{"choices": [' + SECRET.encode()),
    "wrong-shape": Answer(200, _json({"greeting": SECRET})),
    "page": Answer(200, f"<html>{SECRET}</html>".encode(), content_type="text/html"),
    "cut": Answer(200, _json({"half": SECRET}), promised=10_000),
}


class Misbehaving(BaseHTTPRequestHandler):
    """Answers by the first word of the path."""

    protocol_version = "HTTP/1.1"
    server: Provider

    def do_GET(self) -> None:
        self._read()
        scenario, _, rest = self.path.lstrip("/").partition("/")
        self.server.seen.append(scenario)
        special: dict[str, Callable[[], None]] = {
            "reset": self._reset,
            "silence": self._silence,
            "hang-up": self._hang_up,
        }
        if scenario in special:
            special[scenario]()
        else:
            self._answer(ANSWERS[scenario] if scenario != "well" else _well(rest))

    do_POST = do_GET  # noqa: N815

    def _read(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, answer: Answer) -> None:
        self.close_connection = True
        self.send_response_only(answer.status, "Whatever")
        told = {
            "Date": SERVED_AT,
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body) if answer.promised is None else answer.promised),
            "Connection": "close",
        }
        for name, value in (told | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def _reset(self) -> None:
        """Half an answer, then RST."""
        self._answer(Answer(200, b'{"half":', promised=1_000))
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _hang_up(self) -> None:
        self.close_connection = True

    def _silence(self) -> None:
        """Nothing, until the client has gone or the server is closed."""
        self.close_connection = True
        self.server.closing.wait(10)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def _well(rest: str) -> Answer:
    return Answer(200, _json(MESSAGE if rest.endswith("messages") else CHAT))


class Provider(ThreadingHTTPServer):
    """The server, on a port of its own, in a thread of its own."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Misbehaving)
        self.closing = threading.Event()
        self.seen: list[str] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what these tests are about."""

    def at(self, scenario: str) -> str:
        """The base URL under which everything goes wrong in this way."""
        if scenario == "refused":
            return f"http://127.0.0.1:{unused_port()}"
        return f"http://127.0.0.1:{self.server_address[1]}/{scenario}"

    def close(self) -> None:
        """End the silences, then the server."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        self._thread.join(5)


def unused_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
