"""A first look at the broker: whether it answers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from redis import Redis

from agentrun.broker.app import make_app
from agentrun.broker.away import AWAY
from agentrun.broker.hints import Hints
from agentrun.settings import Settings


@dataclass(frozen=True, slots=True)
class Probed:
    """What the broker said. `problem` is why it cannot be used."""

    about: str
    problem: str | None = None


def probe(settings: Settings) -> Probed:
    """Ask the broker of the settings, within the publish timeout. Never raises for a broker that is away."""
    hints = Hints(settings)
    try:
        return _redis(hints.client()) if hints.possible else _other(settings)
    except AWAY as error:
        return Probed("", problem=f"the broker of AGENTRUN_BROKER_URL cannot be reached: {str(error) or repr(error)}")
    except (ValueError, KeyError) as error:
        return Probed("", problem=f"AGENTRUN_BROKER_URL cannot be used: {error}")
    finally:
        hints.close()


def _redis(client: Redis) -> Probed:
    about = client.info("server")  # pyright: ignore[reportUnknownMemberType]
    return Probed(f"{about.get('server_name', 'redis')} {about.get('valkey_version') or about.get('redis_version')}")


def _other(settings: Settings) -> Probed:
    with make_app(settings).connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=ceil(settings.publish_timeout_seconds))
        return Probed(str(connection.transport.driver_type))
