"""What a Celery worker is set to, as far as `agentrun doctor` has to know it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

WHOLE_HOUR = 3600
"""Celery's own visibility timeout on Redis, in seconds, where none is set."""


def queues_of(worker: Any) -> tuple[str, ...]:
    """The queues that this worker consumes; none where `worker` is no Celery worker."""
    app = getattr(worker, "app", None)
    return tuple(sorted(app.amqp.queues.consume_from)) if app is not None else ()


def about(worker: Any) -> Mapping[str, Any]:
    """Node and process, pool, concurrency, and how long Redis keeps an unacknowledged message from others."""
    app = getattr(worker, "app", None)
    if app is None:
        return {}
    options: Mapping[str, Any] = app.conf.broker_transport_options or {}
    pool = getattr(worker, "pool_cls", None)
    module = pool if isinstance(pool, str) else getattr(pool, "__module__", "")
    return {
        "node": getattr(worker, "hostname", None),
        "pid": os.getpid(),
        "pool": {"thread": "threads"}.get(name := module.rpartition(".")[2], name) or None,
        "concurrency": getattr(worker, "concurrency", None),
        "visibility_timeout": options.get("visibility_timeout", WHOLE_HOUR),
        "late_acks": bool(app.conf.task_acks_late),
    }
