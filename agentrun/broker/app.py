"""The Celery application and the names of its tasks: acknowledged early, JSON only, no result backend."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Queue

from agentrun.broker.consumer import OneClient
from agentrun.broker.names import LEAST_URGENT, REDIS_SCHEMES, STEP, SWEEP, WAKE
from agentrun.settings import Settings

__all__ = ["LEAST_URGENT", "REDIS_SCHEMES", "STEP", "SWEEP", "WAKE", "configure", "make_app", "transport_options"]


def make_app(settings: Settings, *, name: str = "agentrun") -> Celery:
    """A Celery application configured for wakes: acknowledged early, JSON only, no result backend."""
    app = Celery(name, broker=settings.broker_url, set_as_current=False)
    configure(app, settings)
    app.steps["consumer"].add(OneClient)
    return app


def configure(app: Celery, settings: Settings) -> None:
    """The settings that an application of our own gets. The row and its lease recover what the broker loses."""
    app.conf.update(
        result_backend=None,
        task_ignore_result=True,
        task_serializer="json",
        result_serializer="json",
        event_serializer="json",
        accept_content=["json"],
        task_acks_late=False,
        task_default_queue=settings.queue,
        task_queues=[Queue(name, routing_key=name) for name in (settings.queue, settings.system_queue)],
        task_create_missing_queues=True,
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_eta_task_limit=1000,
        worker_enable_soft_shutdown_on_idle=True,
        # Flower turns them on where it runs; where nobody looks, they would cost a fifth of the consumer's time.
        worker_send_task_events=False,
        task_send_sent_event=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=transport_options(settings),
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1},
        timezone="UTC",
        enable_utc=True,
    )


def transport_options(settings: Settings) -> dict[str, Any]:
    """For Redis: the same in every process that shares the broker, bounded in time everywhere."""
    if not (settings.broker_url or "").startswith(REDIS_SCHEMES):
        return {}
    return {
        "visibility_timeout": 3600,
        "socket_connect_timeout": 5,
        "socket_timeout": 30,
        "socket_keepalive": True,
        "health_check_interval": 15,
        "queue_order_strategy": "priority",
    }
