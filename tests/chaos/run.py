"""One chaos run, from servers to verdict."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from pathlib import Path

from agentrun import Client, Settings
from agentrun.embedded import EmbeddedPostgres
from agentrun.testing.forking import Zygote
from tests.chaos import bodies
from tests.chaos.aftermath import Aftermath
from tests.chaos.eyes import Eyes
from tests.chaos.fleet import Fleet, second_sweeper
from tests.chaos.storm import Plan, Say, Storm

TIMES = {
    "lease_seconds": 4.0,
    "heartbeat_seconds": 1.0,
    "sweep_seconds": 1.0,
    "backoff_base_seconds": 0.2,
    "backoff_max_seconds": 2.0,
}


def chaos(plan: Plan, settings: Settings, postgres: EmbeddedPostgres, directory: Path, say: Say) -> Counter[str]:
    """Returns what was done and what became of it. AssertionError where a promise does not hold."""
    settings = settings.model_copy(update={**TIMES, "imports": ("tests.chaos.bodies",)})
    eyes, luck = Eyes(settings.require_database()), random.Random(plan.seed)
    eyes(bodies.TABLE)
    began = time.monotonic()
    with contextlib.ExitStack() as undo:
        client = undo.enter_context(Client(settings=settings))
        fleet = Fleet(settings, directory, undo.enter_context(contextlib.closing(Zygote())))
        undo.callback(fleet.stop)
        fleet.start()
        undo.enter_context(second_sweeper(settings, random.Random(luck.random())))
        storm = Storm(plan, client, fleet, postgres, eyes, say, luck)
        storm.blow()
        say(f"    the storm is over after {time.monotonic() - began:.0f} s")
        aftermath = Aftermath(client, eyes, plan.runs, say, patience=90 + plan.runs)
        aftermath.settle_all()
        aftermath.check()
    return storm.done + aftermath.done + _told(eyes) + Counter({"seconds": round(time.monotonic() - began)})


def _told(eyes: Eyes) -> Counter[str]:
    words = ("claimed", "lease_lost", "reaped", "redispatched", "requeued", "settled")
    moves = eyes.moves()
    return Counter({f"events: {word}": moves[word] for word in words}) + Counter({"effects": eyes.effects()})
