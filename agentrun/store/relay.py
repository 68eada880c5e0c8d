"""From a caller's COMMIT to a wake: a notification that PostgreSQL delivers only if the transaction commits.

One listening thread per client, started when it is first needed. If the process dies in between, the sweep wakes the
run: the notification, like the message, is only a hint.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Mapping
from uuid import UUID

import psycopg
from psycopg.sql import SQL, Identifier

from agentrun.core.wake import Publisher, Wake
from agentrun.store.connect import keeps_session
from agentrun.store.database import Database
from agentrun.store.outages import of_postgres

log = logging.getLogger("agentrun.store")


class Relay:
    """Listens for this client's own commits and publishes their wakes."""

    def __init__(self, database: Database, publisher: Publisher) -> None:
        self._database, self._publisher = database, publisher
        self._channel = f"agentrun_{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._listening = threading.Event()
        self._closing = self._deaf = False
        self._thread: threading.Thread | None = None
        self._outage = of_postgres(database.own_url)

    def announcing(self, wake: Wake) -> Mapping[str, str]:
        """The notification to write in the caller's transaction. Returns once somebody listens for it."""
        with self._lock:
            if not self._deaf and (self._thread is None or not self._thread.is_alive()):
                self._listening.clear()
                self._thread = threading.Thread(target=self._serve, name="agentrun relay", daemon=True)
                self._thread.start()
        self._listening.wait(5)
        said = [str(wake.run_id), wake.queue, wake.kind, wake.priority, wake.delay]
        return {"channel": self._channel, "payload": json.dumps(said)}

    def close(self) -> None:
        """Stop listening."""
        self._closing = True
        if self._thread is not None:
            self._thread.join(2)

    def _serve(self) -> None:
        while not self._closing and not self._deaf:
            try:
                self._listen()
            except psycopg.Error as error:
                self._outage.failed(error, who=self._channel)
                self._listening.clear()
                threading.Event().wait(0.5)
        self._outage.gone(self._channel)

    def _listen(self) -> None:
        with self._database.dedicated("agentrun relay") as connection:
            if not keeps_session(connection):
                log.warning(
                    "commits cannot be listened for through a pooler; the sweep wakes their runs, "
                    "unless AGENTRUN_DIRECT_DATABASE_URL names the server itself"
                )
                self._deaf = True
                self._listening.set()
                return
            connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)))
            self._outage.worked(who=self._channel)
            self._listening.set()
            while not self._closing:
                for notice in connection.notifies(timeout=0.5, stop_after=1):
                    run_id, queue, kind, priority, delay = json.loads(notice.payload)
                    self._publisher.wake(Wake(UUID(run_id), queue, kind, priority, delay, "commit"))
