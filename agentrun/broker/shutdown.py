"""How a worker's children hear that their main process shuts down."""

from __future__ import annotations

import os
import select


class Shutdown:
    """Tells children, who cannot be reached otherwise, that their main process shuts down.

    A byte in a pipe that nobody takes out. multiprocessing.Event is no help: its `set` waits for every sleeper that it
    wakes, for ever if one of them was killed in its sleep.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def set(self) -> None:
        """From now on nobody waits. For signal handlers too."""
        os.write(self._write, b"!")

    def wait(self) -> None:
        """Until `set` was called in any process."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.poll()
