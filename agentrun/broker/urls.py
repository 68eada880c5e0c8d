"""Whether a broker's URL names a broker that there is. Connects to nothing, and shows no password."""

from __future__ import annotations

from difflib import get_close_matches

from agentrun.core.errors import ConfigurationError

KNOWN = (
    "redis", "rediss", "sentinel", "amqp", "amqps", "pyamqp", "librabbitmq", "memory", "filesystem", "sqs", "sqla",
    "sqlalchemy", "mongodb", "kafka", "confluentkafka", "gcpubsub", "azureservicebus", "azurestoragequeues", "etcd",
    "consul", "zookeeper", "qpid", "pyro", "slmq", "pgmq",
)  # fmt: skip
"""Schemes of kombu's, known without it: to import it takes a producer 0.3 s before its first wake."""

_SPELT = {"valkey": "redis", "valkeys": "rediss", "unix": "redis+socket"}
"""What others call it: a Valkey server speaks Redis's protocol."""


def require_usable(broker_url: str | None) -> None:
    """Raises ConfigurationError where messages could never be sent to such a URL. None is another's question."""
    if broker_url is None:
        return
    scheme, separator, _ = broker_url.partition("://")
    if not separator or not scheme:
        raise ConfigurationError(
            "AGENTRUN_BROKER_URL is no URL: it begins with no scheme, as redis://localhost:6379/0 does; write the URL "
            "of your application's broker"
        )
    name = scheme.partition("+")[0].lower()
    if name not in KNOWN and name not in _registered():
        near = _SPELT.get(name) or next(iter(get_close_matches(name, KNOWN, n=1)), "redis")
        raise ConfigurationError(
            f"AGENTRUN_BROKER_URL has the scheme `{scheme[:20]}`, and Celery knows no broker by that; did you mean "
            f"{near}://…?"
        )


def _registered() -> frozenset[str]:
    """What kombu knows in this process: an application may have added a transport of its own."""
    from kombu.transport import TRANSPORT_ALIASES

    return frozenset(name.lower() for name in TRANSPORT_ALIASES)
