"""That a client is closed, told at once to whoever waits with it in this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator


class Closing:
    """Who is to hear that the client is closed. Its state is the client's own: this only makes people look at once."""

    def __init__(self) -> None:
        # No lock: it would stay locked in a process that is forked while another thread has it.
        self._waiting: dict[object, tuple[int, Callable[[], object]]] = {}

    @contextlib.contextmanager
    def telling(self, call: Callable[[], object]) -> Generator[None]:
        """While this is open, `tell` calls `call`, in its own thread. Look at the client once more after entering."""
        mine = object()
        self._waiting[mine] = os.getpid(), call
        try:
            yield
        finally:
            del self._waiting[mine]

    def tell(self) -> None:
        """Tell all who wait in this process; the client says already that it is closed.

        After a fork, those who wait in the other process have a client that is open.
        """
        for process_id, call in list(self._waiting.values()):
            if process_id == os.getpid():
                call()
