"""Imported by a worker, this has each of its pipelines of wakes take a while, as with much else to do or a broker far
away."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from agentrun.broker.publisher import CeleryPublisher
from agentrun.core.wake import Wake

SECONDS = 0.5
_send_all = CeleryPublisher._send_all


def _slowly(self: CeleryPublisher, wakes: Sequence[Wake]) -> None:
    threading.Event().wait(SECONDS)
    _send_all(self, wakes)


if __name__ in os.environ.get("AGENTRUN_IMPORTS", ""):  # in the worker, not in the test
    CeleryPublisher._send_all = _slowly
