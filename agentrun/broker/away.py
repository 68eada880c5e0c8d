"""What a broker that is away, full or restarting raises, by whichever of its libraries notices."""

from __future__ import annotations

from amqp.exceptions import ConnectionError as AmqpConnectionError
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

AWAY = (OperationalError, KombuError, AmqpConnectionError, RedisError, OSError)
