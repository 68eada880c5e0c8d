"""The faults, in an order that the seed decides: kills (some aimed into a write or a remote step), flushes of Redis, a
restart.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from redis import Redis

from agentrun import Client
from agentrun.broker.hints import redis_url
from agentrun.embedded import EmbeddedPostgres
from agentrun.embedded.postgres import StopMode
from agentrun.testing import until
from tests.chaos.bodies import KINDS, WRITES
from tests.chaos.eyes import Eyes
from tests.chaos.fleet import Fleet

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. `runs` come in waves, one before each fault, so that there is always work to disturb."""

    seed: int
    runs: int = 300
    kills: int = 30
    flushes: int = 2
    restarts: int = 1

    @classmethod
    def scaled(cls, seed: int, scale: float) -> Plan:
        return cls(seed, runs=max(8, round(300 * scale)), kills=max(3, round(30 * scale)))


@dataclass
class Storm:
    """One chaos run's faults."""

    plan: Plan
    client: Client
    fleet: Fleet
    postgres: EmbeddedPostgres
    eyes: Eyes
    say: Say
    luck: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def blow(self) -> None:
        """Waves of runs and faults, until both are used up."""
        faults = self._faults()
        for number, fault in enumerate(faults, 1):
            wave = self._wave(number, len(faults))
            what = getattr(self, f"_{fault}")(wave)
            counts = ", ".join(f"{count} {status}" for status, count in sorted(self.eyes.statuses().items()))
            self.say(f"{number:>3}/{len(faults)} {what:<46} {counts}, {self.eyes.effects()} effects")
            half = self.eyes.half_states()
            assert not half, half

    def _faults(self) -> list[str]:
        faults = ["kill"] * self.plan.kills + ["flush"] * self.plan.flushes
        self.luck.shuffle(faults)
        for _ in range(self.plan.restarts):
            # Somewhere in the middle: there is work before it and after it.
            faults.insert(self.luck.randrange(len(faults) // 3, 2 * len(faults) // 3 + 1), "restart")
        return faults

    def _wave(self, number: int, of: int) -> range:
        return range(self.plan.runs * (number - 1) // of, self.plan.runs * number // of)

    def _enqueue(self, wave: range) -> None:
        for each in wave:
            self.client.enqueue(KINDS[each % len(KINDS)], WRITES)

    def _set_to_work(self, wave: range) -> None:
        """The whole fleet is there, and some of this wave's runs are at work."""
        self.fleet.wait_ready()
        before = self.eyes.effects()
        self._enqueue(wave)
        until(lambda: self.eyes.effects() > before or not self._at_work(), 60)
        self._let_pass(0.3)

    def _at_work(self) -> bool:
        statuses = self.eyes.statuses()
        return bool(statuses["queued"] or statuses["running"] or statuses["waiting"])

    def _kill(self, wave: range) -> str:
        """Half of the kills are aimed at a process that is inside a write or a remote step, the others at anybody."""
        self._set_to_work(wave)
        if self.luck.random() < 0.5:
            with contextlib.suppress(AssertionError):
                return self._kill_inside(until(self._inside, 3))
        return self._kill_anybody()

    def _inside(self) -> list[tuple[int, str]]:
        """The dead are inside still, until their leases have lapsed."""
        return [(pid, where) for pid, where in self.eyes.in_a_write() if self.fleet.of(pid) is not None]

    def _kill_inside(self, seen: list[tuple[int, str]]) -> str:
        """Remote steps are hit as often as writes are, though fewer of them are at work at any moment."""
        where = self.luck.choice(sorted({where for _, where in seen}))
        return self._kill_process(self.luck.choice([pid for pid, there in seen if there == where]), where)

    def _kill_anybody(self) -> str:
        node = self.luck.choice(self.fleet.workers)
        self.fleet.kill_worker(node)
        self.done["worker killed at random"] += 1
        return f"SIGKILL to {node.container.name}"

    def _kill_process(self, pid: int, where: str) -> str:
        node = self.fleet.of(pid)
        if node is None:
            # It died by itself just now.
            return self._kill_anybody()
        child = pid != node.pid
        if child and self.luck.random() < 0.5:
            self.fleet.kill_child(node, pid)
        else:
            self.fleet.kill_worker(node)
        self.done[f"{'child' if child else 'worker'} killed {where}"] += 1
        return f"SIGKILL to {'a child of ' if child else ''}{node.container.name} {where}"

    def _flush(self, wave: range) -> str:
        """With the whole wave's messages, which nobody has taken yet."""
        self.fleet.pause()
        self._enqueue(wave)
        with Redis.from_url(redis_url(self.client.settings.require_broker())) as redis:
            lost = sum(redis.llen(key) for key in redis.keys("agentrun*") if redis.type(key) == b"list")
            redis.flushall()
        self.fleet.resume()
        self.done["Redis flushed"] += 1
        return f"FLUSHALL ({lost} messages lost)"

    def _restart(self, wave: range) -> str:
        self._set_to_work(wave)
        self.postgres.stop(StopMode.IMMEDIATE)
        self._let_pass(0.5)
        self.postgres.start()
        until(lambda: self.eyes.statuses() is not None, 30, tolerate=psycopg.OperationalError)
        self.done["PostgreSQL restarted (immediate)"] += 1
        return "PostgreSQL: immediate stop, and start"

    def _let_pass(self, most: float) -> None:
        """Where in the others' work the next fault falls is chance."""
        time.sleep(self.luck.random() * most)
