"""Processes that decide and are killed in the middle of it: `python -m tests.waits.dying here|left MOMENT=RUN …`.

One process imports everything and forks another for each moment, before it has any thread or connection.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import tests.bodies.waits as bodies
from agentrun import Client
from agentrun.runtime.resolving import Resolving
from agentrun.store import waits
from agentrun.store.sql import Statement


def kill(*_: Any, **__: Any) -> Any:
    """As a machine that loses its power."""
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Statement):
    """A statement that nobody survives."""

    @property
    def sql(self) -> Any:  # type: ignore[override]
        return kill()


def decide(moment: str, run_id: str, *, here: bool) -> None:
    """Approve, and die at that moment."""
    os.environ["AGENTRUN_TEST_DIE"] = moment
    match moment:
        case "before the commit":
            waits.UNPARK = Deadly("unpark", waits.UNPARK.element)
        case "before the wake":
            Resolving._wake = kill  # pyright: ignore[reportPrivateUsage]
        case "before the claim":
            Client._go_on = kill  # pyright: ignore[reportPrivateUsage]
        case _:
            assert bodies.die_at, "the body kills it"
    client = Client()
    client.approve(run_id, by="ann", here=here)


def main(how: str, *asked: str) -> None:
    """Exits 0 where every process was killed."""
    for each in asked:
        moment, run_id = each.split("=")
        child = os.fork()
        if child == 0:
            decide(moment, run_id, here=how == "here")
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"{moment}: survived")


if __name__ == "__main__":
    main(*sys.argv[1:])
