"""Which libraries there are, how each is used, and which of them are installed."""

from __future__ import annotations

import json
import subprocess

from bench.common import Bench
from bench.measure import CELERY, Peer
from bench.nodes import BenchError
from bench.peers.libraries import INTERPRETER, Library
from bench.peers.sides import BareCelery, Side

DBOS, DBOS_FAST = Peer("DBOS"), Peer("DBOS, poll 0.05 s")
ABSURD, ABSURD_FAST, ABSURD_SYNC = Peer("Absurd async"), Peer("Absurd async, poll 0.02 s"), Peer("Absurd sync")
PROCRASTINATE, PGQUEUER, OBAN = Peer("Procrastinate"), Peer("PgQueuer"), Peer("Oban")

DURABLE = (DBOS, ABSURD, DBOS_FAST, ABSURD_FAST, ABSURD_SYNC)
"""They record steps. The poll of the others is each one's default: 1 s, and 0.25 s."""

QUEUES = (PROCRASTINATE, PGQUEUER, OBAN, CELERY)

_DBOS_ENDED = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"
_ABSURD_ENDED = "SELECT count(*) FROM absurd.t_bench WHERE state = 'completed'"

_PACKAGES = {
    "dbos": (DBOS, DBOS_FAST),
    "absurd-sdk": (ABSURD, ABSURD_FAST, ABSURD_SYNC),
    "procrastinate": (PROCRASTINATE,),
    "pgqueuer": (PGQUEUER,),
    "oban": (OBAN,),
}
_VERSIONS = """
import importlib.metadata, json, platform
versions = {d.name: d.version for d in importlib.metadata.distributions()}
print(json.dumps(versions | {"python": platform.python_version()}))
"""


def side(bench: Bench, peer: Peer) -> Side:
    """How a peer is used: as its documentation says for one worker process, at its defaults but for the poll."""
    if peer == CELERY:
        return BareCelery(bench)
    script, ended, poll = {
        DBOS: ("dbos_queue", _DBOS_ENDED, 1.0),
        DBOS_FAST: ("dbos_queue", _DBOS_ENDED, 0.05),
        ABSURD: ("absurd_async", _ABSURD_ENDED, 0.25),
        ABSURD_FAST: ("absurd_async", _ABSURD_ENDED, 0.02),
        ABSURD_SYNC: ("absurd_sync", _ABSURD_ENDED, 0.25),
        PROCRASTINATE: (
            "procrastinate_jobs",
            "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
            0.0,
        ),
        PGQUEUER: ("pgqueuer_jobs", "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'", 0.0),
        OBAN: ("oban_jobs", "SELECT count(*) FROM oban_jobs WHERE state = 'completed'", 0.0),
    }[peer]
    durable = peer in DURABLE
    return Library(
        bench, peer, script, ended, poll, steps=durable, many=not durable, all_at_once=script == "dbos_queue"
    )


def versions() -> dict[str, str]:
    """Of everything in the peers' environment. BenchError where it has not been made."""
    if not INTERPRETER.exists():
        raise BenchError("the other libraries are not installed; `make bench-peers` installs them")
    done = subprocess.run([str(INTERPRETER), "-c", _VERSIONS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def installed() -> list[Peer]:
    """Those that can be measured here; some need a newer Python than others."""
    found = versions()
    return [CELERY, *(peer for package, peers in _PACKAGES.items() if package in found for peer in peers)]
