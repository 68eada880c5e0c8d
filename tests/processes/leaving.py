"""A program that ends while a run executes in it: `python -m tests.processes.leaving HOW GATE`."""

from __future__ import annotations

import signal
import sys
import threading
import time

from agentrun import Client
from tests.bodies import processes


def _leave(*_: object) -> None:
    sys.exit(7)


def main(how: str, gate: str) -> None:
    client = Client()
    assert processes
    if how == "sys.exit":
        threading.Thread(target=client.run, args=("gated", gate), daemon=True).start()
        while not client.list(status="running") or not client.steps(client.list()[0].id):
            time.sleep(0.02)
        _leave()
    signal.signal(signal.SIGTERM, _leave)
    client.run("gated", gate)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
