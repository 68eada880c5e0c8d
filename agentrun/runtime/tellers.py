"""The hooks that are shipped: a line in the log, a signed HTTP call, a shell command. Each is bounded in time.

They fit every occasion. What is told is data: it is sent as JSON and as variables, never as a part of a command.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrun.core.errors import ConfigurationError
from agentrun.runtime.hooks import Hook

LONGEST_CALL = 10.0
"""Seconds that a signed call or a command may take, unless it is told otherwise."""

PREFIX = "AGENTRUN_HOOK_"
LONGEST_VALUE = 4_000
"""Characters of one variable: an environment holds little."""


def log_line(logger: str = "agentrun.alarms", *, level: int = logging.WARNING) -> Hook:
    """A hook that writes one line to a logger: what happened, to which run, and the command that helps."""
    log = logging.getLogger(logger)

    def call(data: Mapping[str, Any]) -> None:
        said = " ".join(f"{name}={value}" for name, value in _flat(data) if name not in ("id", "occasion", "run_id"))
        log.log(level, "run %s is %s: %s", data["run_id"], data["occasion"], _one_line(said))

    call.__qualname__ = f"log_line({logger})"
    return call


def signed_call(url: str, secret: str, *, timeout: float = LONGEST_CALL) -> Hook:
    """A hook that POSTs its JSON to `url`, signed: `X-Agentrun-Signature: sha256=<HMAC of the body>`.

    Any answer but 2xx counts as failed and is tried again. Raises ConfigurationError where `url` is none.
    """
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(f"a signed call needs an http(s) URL, not {url[:20]!r}")

    def call(data: Mapping[str, Any]) -> None:
        body = json.dumps(dict(data), sort_keys=True).encode()
        signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/json", "X-Agentrun-Signature": f"sha256={signature}"}
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - checked above
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            answer.read(1)

    call.__qualname__ = f"signed_call({_short(url)})"
    return call


def shell_command(command: str | Sequence[str], *, timeout: float = LONGEST_CALL) -> Hook:
    """A hook that runs a command: text by `/bin/sh -c`, a list as it is. Facts come as JSON on stdin and as variables.

    The variables are AGENTRUN_HOOK_OCCASION, AGENTRUN_HOOK_RUN_ID and so on; those of a step, AGENTRUN_HOOK_STEP_NAME
    and so on. Another exit code than 0 counts as failed and is tried again; after `timeout` seconds the command is
    killed with everything that it started, and has failed. Raises ConfigurationError for an empty command.
    """
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    if not command:
        raise ConfigurationError("a shell command needs a command")

    def call(data: Mapping[str, Any]) -> None:
        said = {PREFIX + name.upper(): _one_line(value)[:LONGEST_VALUE] for name, value in _flat(data)}
        _run(argv, json.dumps(dict(data), sort_keys=True).encode(), {**os.environ, **said}, timeout)

    call.__qualname__ = f"shell_command({_short(json.dumps(argv))})"
    return call


def _run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str], timeout: float) -> None:
    """Run it in a session of its own, so that what it started can be ended with it."""
    nothing = subprocess.DEVNULL
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, env=env, start_new_session=True
    ) as process:
        try:
            process.communicate(stdin, timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, argv[0])


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values, those of a mapping inside with its name in front; what is None is left out."""
    for name, value in sorted(data.items()):
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}_")  # pyright: ignore[reportUnknownArgumentType]
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)


def _short(text: str) -> str:
    """A name for a hook that tells nothing of what it was made from."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
