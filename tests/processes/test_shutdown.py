"""A worker that ends hands its runs back: nothing is lost, nothing is done again, and nothing counts against them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrun import Client, Settings
from agentrun.testing import environment, until
from agentrun.testing.nodes import Node
from tests.processes.conftest import Look, consume
from tests.processes.soft import SOFT_SECONDS

pytestmark = pytest.mark.processes

STEP = 0.3
POOLS = ("threads", "prefork")
Start = Callable[..., Node]


@pytest.mark.slow
def test_five_graceful_restarts_during_one_long_run_use_up_no_budget(
    client: Client, start: Start, look: Look, tmp_path: Path, sound: Callable[[], None]
) -> None:
    """As in a rolling deployment: the next worker starts before this one ends, and gets the run handed."""
    node, gate = start(concurrency=2), tmp_path / "gate"
    run_id = client.enqueue("patrol", str(gate))
    for _ in range(5):
        following = start(concurrency=2)
        assert client.status(run_id).status == "running"
        assert node.terminate() == 0
        node = following
    gate.touch()
    run = client.wait(run_id, timeout=60)
    assert (run.requeue_count, run.crash_count, run.error_count, run.handback_count) == (0, 0, 0, 5)
    assert look.effects(run_id) == [str(number) for number in range(run.result)]
    sound()


@pytest.mark.slow
def test_sigterm_hands_a_run_back_at_its_next_step_and_another_worker_goes_on_at_once(
    client: Client, start: Start, look: Look, settings: Settings, sound: Callable[[], None]
) -> None:
    leaving, staying = _leaving_and_staying(start, POOLS)
    kinds = {pool: "long" if pool == "threads" else "long-plain" for pool in POOLS}
    runs = {pool: client.enqueue(kinds[pool], {"steps": 8, "seconds": STEP}, queue=pool) for pool in POOLS}
    until(lambda: min(len(look.effects(run_id)) for run_id in runs.values()) >= 2, 15)
    consume(staying, *POOLS)
    for pool in POOLS:
        leaving[pool].kill("SIGTERM")
    for pool, run_id in runs.items():
        assert leaving[pool].wait_exit(settings.drain_seconds + 10) == 0
        run = client.wait(run_id, timeout=60)
        assert (run.handback_count, run.requeue_count, run.crash_count) == (1, 0, 0)
        assert look.effects(run_id) == [str(number) for number in range(8)]
        assert look.seconds_between(run_id, "handed_back", "claimed") < settings.lease_seconds
    sound()


LAST_WORDS = (["SIGTERM", "SIGTERM"], ["SIGTERM", "SIGQUIT"], ["SIGQUIT"])


@pytest.mark.slow
@pytest.mark.settings(drain_seconds=2)
def test_no_shutdown_loses_a_run_in_the_middle_of_a_step_and_none_waits_for_the_step(
    client: Client, start: Start, look: Look, tmp_path: Path, sound: Callable[[], None]
) -> None:
    """Once, twice, gently or not: the drain budget bounds it, and what the step was doing is done again elsewhere."""
    cases = {f"{pool}.{'.'.join(signals)}": (pool, signals) for pool in POOLS for signals in LAST_WORDS}
    gate = str(tmp_path / "gate")
    leaving = {name: start(pool=pool, concurrency=2, queues=name, wait=False) for name, (pool, _) in cases.items()}
    staying = start(concurrency=30, queues="later", wait=False)
    for node in (*leaving.values(), staying):
        node.container.wait_ready(60)
    runs = [(name, client.enqueue(kind, gate, queue=name)) for name in cases for kind in ("gated", "gated-plain")]
    for _, run_id in runs:
        look.recorded(run_id, 1)
    for name, (_, signals) in cases.items():
        for said in signals:
            leaving[name].kill(said)
    for node in leaving.values():
        node.wait_exit(20)
    assert {name: client.status(run_id).status for name, run_id in runs} == dict.fromkeys(cases, "queued")

    consume(staying, *cases)
    Path(gate).touch()
    for name, run_id in runs:
        run = client.wait(run_id, timeout=60)
        counts = (run.result, run.handback_count, run.crash_count, run.requeue_count)
        assert counts == ("after", 1, 0, 0), (name, run.kind)
        assert look.effects(run_id) == ["before", "after"]
    sound()


@pytest.mark.slow
@pytest.mark.settings(sweep_seconds=3600)
@pytest.mark.parametrize("pool", POOLS)
def test_a_cold_shutdown_sends_the_wakes_of_all_that_it_hands_back(
    client: Client, start: Start, look: Look, tmp_path: Path, sound: Callable[[], None], pool: str
) -> None:
    """Several workers at once, which take their time to send; and nobody sweeps: a wake that dies with its process is
    missing for ever."""
    gate, queues = str(tmp_path / "gate"), [f"leaving.{number}" for number in range(3)]
    options = {"pool": pool, "concurrency": 4, "imports": ["tests.processes.slow_sending"]}
    leaving = [start(queues=queue, wait=False, **options) for queue in queues]
    staying = start(concurrency=20, queues="later", wait=False)
    for node in (*leaving, staying):
        node.container.wait_ready()
    runs = [run_id for queue in queues for run_id in client.enqueue_many("gated", [gate] * 4, queue=queue)]
    for run_id in runs:
        look.recorded(run_id, 1)
    for node in leaving:
        node.kill("SIGQUIT")
    for node in leaving:
        node.wait_exit(20)
    Path(gate).touch()
    consume(staying, *queues)
    ended = [client.wait(run_id, timeout=10) for run_id in runs]
    assert {(run.result, run.handback_count, run.crash_count) for run in ended} == {("after", 1, 0)}
    sound()


@pytest.mark.slow
def test_a_soft_shutdown_hands_runs_back_at_their_next_step(
    client: Client, start: Start, look: Look, sound: Callable[[], None]
) -> None:
    """REMAP_SIGTERM=SIGQUIT with worker_soft_shutdown_timeout: Celery says only after its time that it shuts down."""
    leaving, staying = _leaving_and_staying(
        start, POOLS, app="tests.processes.soft_app", env={"REMAP_SIGTERM": "SIGQUIT"}
    )
    kinds = {pool: "long" if pool == "threads" else "long-plain" for pool in POOLS}
    runs = {pool: client.enqueue(kinds[pool], {"steps": 8, "seconds": STEP}, queue=pool) for pool in POOLS}
    until(lambda: min(len(look.effects(run_id)) for run_id in runs.values()) >= 1, 15)
    consume(staying, *POOLS)
    asked = look.one("SELECT clock_timestamp()")
    for pool in POOLS:
        leaving[pool].kill("SIGTERM")
    for pool, run_id in runs.items():
        run = client.wait(run_id, timeout=15)
        assert (run.handback_count, run.requeue_count, run.crash_count) == (1, 0, 0), pool
        assert look.effects(run_id) == [str(number) for number in range(8)], "nothing was lost"
        handed = look.one("SELECT max(at) FROM agentrun.moves WHERE run_id = %s AND type = 'handed_back'", (run_id,))
        assert (handed - asked).total_seconds() < SOFT_SECONDS, f"{pool}: in the soft shutdown's time, not after it"
        leaving[pool].wait_exit(10)
        assert "Initiating Soft Shutdown" in leaving[pool].logs(), "the premise"
    sound()


@pytest.mark.parametrize("how", ["sys.exit", "sigterm"])
def test_a_program_that_ends_without_closing_its_client_hands_its_run_back(
    client: Client, look: Look, tmp_path: Path, settings: Settings, how: str
) -> None:
    """By `sys.exit` beside a daemon thread that runs it, and in a signal's handler while the main thread waits."""
    env = {**os.environ, **environment.variables(settings)}
    program = subprocess.Popen([sys.executable, "-m", "tests.processes.leaving", how, str(tmp_path / "gate")], env=env)
    try:
        until(lambda: look("SELECT 1 FROM agentrun.steps WHERE status = 'completed'") or program.poll() is not None, 20)
        if how == "sigterm":
            program.terminate()
        assert program.wait(10) == 7
    finally:
        program.kill()
    (run,) = client.list()
    assert (run.status, run.handback_count, run.crash_count) == ("queued", 1, 0)


def test_a_worker_shuts_down_although_one_of_its_children_was_killed(client: Client, start: Start, look: Look) -> None:
    node = start(pool="prefork", concurrency=2)
    children = psutil.Process(node.pid).children()
    for child in children:
        child.kill()
    until(lambda: node.logs().count("exited with 'signal 9 (SIGKILL)'") >= 1 or _replaced(node, children), 10)
    assert client.wait(client.enqueue("noted", "by a new child"), timeout=60).result == "by a new child"
    assert node.terminate(15) == 0


def _replaced(node: Node, children: list[psutil.Process]) -> bool:
    return not {child.pid for child in psutil.Process(node.pid).children()} & {child.pid for child in children}


def _leaving_and_staying(start: Start, pools: tuple[str, ...], **options: Any) -> tuple[dict[str, Node], Node]:
    leaving = {pool: start(pool=pool, concurrency=2, queues=pool, wait=False, **options) for pool in pools}
    staying = start(concurrency=4, queues="later", wait=False)
    for node in (*leaving.values(), staying):
        node.container.wait_ready()
    return leaving, staying


def test_a_killed_child_of_a_prefork_worker_is_replaced_and_its_run_goes_on(
    client: Client,
    start: Start,
    beat: Callable[..., Node],
    look: Look,
    tmp_path: Path,
    settings: Settings,
    sound: Callable[[], None],
) -> None:
    beat(wait=False)
    node = start(pool="prefork", concurrency=2)
    run_id = client.enqueue("gated", str(tmp_path / "gate"))
    look.recorded(run_id, 1)
    child = look.one("SELECT pid FROM effects")
    assert child in {process.pid for process in psutil.Process(node.pid).children()}
    os.kill(child, signal.SIGKILL)
    (tmp_path / "gate").touch()
    run = client.wait(run_id, timeout=60)
    assert (run.result, run.crash_count, run.handback_count) == ("after", 1, 0)
    assert look.effects(run_id) == ["before", "after"]
    assert "reaped" in [event.type for event in client.events(run_id)]
    sound()
