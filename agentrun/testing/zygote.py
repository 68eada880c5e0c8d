"""A process that has imported what every worker imports, and forks itself into `python -m celery …` at request.

Run as `python -m agentrun.testing.zygote FD`. The child is the interpreter that `python -m celery` would be: its own
session, folder, environment, arguments and log; what is saved is the imports, and the statements' SQL, which a worker
makes of them when it first uses each: a quarter of a short life. It never imports an application.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, cast

from agentrun.store.sql import Statement

IMPORTS = (
    "celery.__main__", "celery.bin.celery", "celery.apps.worker", "celery.apps.beat", "celery.worker.consumer",
    "celery.worker.components", "celery.worker.autoscale", "celery.app.control", "celery.app.events",
    "celery.app.amqp", "celery.app.builtins", "celery.app.log", "celery.app.trace", "celery.concurrency.thread",
    "celery.concurrency.prefork", "celery.concurrency.solo", "celery.fixups.django", "celery.loaders.app",
    "celery.events.snapshot", "celery.utils.static", "kombu.transport.redis", "kombu.asynchronous.hub", "redis",
    "agentrun.broker", "agentrun.broker.schedule", "agentrun.client", "agentrun.runtime.engine",
    "agentrun.runtime.upkeep", "agentrun.store.schema", "alembic.command", "alembic.script", "psycopg", "psycopg_pool",
    "sqlalchemy.dialects.postgresql", "concurrent.futures.thread", "encodings.idna",
)  # fmt: skip
"""None of these reads the environment for good, starts a thread, opens a connection or draws a random number."""

STATEMENTS = (
    "claims", "journal", "needs", "offering", "offers", "orphans", "starting", "sweeping", "transitions", "waits",
)  # fmt: skip
"""The modules of the store whose statements most workers need."""


def main(descriptor: int) -> None:
    """Serve until the other side is gone; a child leaves this loop and becomes what was asked for."""
    ways = _foreign_ways()
    for name in IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _compile_statements()
    gc.collect()
    # What was imported is no garbage: neither to the collector nor, a second later, at each child's end.
    gc.freeze()
    wish = _served(socket.socket(fileno=descriptor))
    if wish is not None:
        _become(wish, ways)


def _compile_statements() -> None:
    for name in STATEMENTS:
        for value in list(vars(importlib.import_module(f"agentrun.store.{name}")).values()):
            statement = value if isinstance(value, Statement) else None
            while statement is not None:
                _ = statement.sql
                statement = statement.many


def _foreign_ways() -> list[str]:
    """`sys.path` without what this process's own folder and PYTHONPATH put there."""
    own = {"", os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))}  # noqa: PTH109
    return [way for way in sys.path if way not in own]


def _served(caller: socket.socket) -> dict[str, Any] | None:
    """A wish, in the process that has to fulfil it; None, here, at the caller's end."""
    rest = b""
    with selectors.DefaultSelector() as watched:
        watched.register(caller, selectors.EVENT_READ)
        while True:
            for key, _ in watched.select():
                if key.fileobj is not caller:
                    watched.unregister(key.fileobj)
                    _say_end(caller, key.fd, key.data)
                    continue
                data = caller.recv(65_536)
                if not data:
                    return None
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    pid = os.fork()
                    if pid == 0:
                        caller.close()
                        _closed(watched)
                        return json.loads(line)
                    caller.sendall(b'{"started": %d}\n' % pid)
                    watched.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)


def _say_end(caller: socket.socket, descriptor: int, pid: int) -> None:
    os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        caller.sendall(b'{"ended": %d, "code": %d}\n' % (pid, code))


def _closed(watched: selectors.BaseSelector) -> None:
    for key in list(watched.get_map().values()):
        if isinstance(key.fileobj, int):
            os.close(key.fileobj)


def _become(wish: dict[str, Any], ways: Sequence[str]) -> None:
    """`python -m MODULE ARGUMENTS`, as the wish says."""
    os.setsid()
    log = os.open(wish["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.chdir(wish["cwd"])
    os.environ.clear()
    os.environ.update(wish["env"])
    for stream in (sys.stdout, sys.stderr):
        cast("TextIOWrapper", stream).reconfigure(write_through=True)
    roots = wish["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [wish["cwd"], *filter(None, roots), *ways]
    importlib.invalidate_caches()
    sys.argv = ["-m", *wish["arguments"]]
    sys.modules.pop(f"{wish['module']}.__main__", None)
    runpy.run_module(wish["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
