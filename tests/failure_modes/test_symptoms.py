"""The rows of the symptom table whose fault takes a process, a message or time: made for real, found, and healed.

What is found is what `agentrun doctor` says; what heals is the command that it names. No beat runs here and no worker
sweeps by itself, so that what is broken stays broken until somebody heals it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from agentrun import Client, Settings
from agentrun.testing import until
from agentrun.testing.clock import Clock
from agentrun.testing.nodes import Node
from agentrun.testing.proxy import Proxy
from tests.cli.conftest import Cli
from tests.doctor.conftest import Doctor
from tests.failure_modes.conftest import cancel
from tests.failure_modes.outside import QUEUE

pytestmark = [pytest.mark.processes, pytest.mark.settings(lease_seconds=1.2, heartbeat_seconds=0.3, sweep_seconds=60)]

Start = Callable[..., Node]
Heal = Callable[[dict[str, Any]], None]
Say = Callable[[str], None]
Happened = Callable[..., None]


@pytest.mark.settings(deployment="the only one")
def test_a_run_that_nobody_can_start_is_named_with_the_worker_that_is_missing(
    client: Client, cli: Cli, doctor: Doctor, start: Start, heal: Heal
) -> None:
    """A, K: no worker on the queue; a worker that lacks the kind, and that nobody is told by."""
    ignorant = start(imports=["tests.bodies.basic"])
    cli("sweep")
    elsewhere, unknown = client.enqueue("greets", "Ada", queue=QUEUE), client.enqueue("greets", "Grace")
    until(lambda: "unknown_kind" in doctor(), 10)
    found = doctor()
    assert (found["no_worker"]["severity"], found["unknown_kind"]["severity"], found["exit"]) == ("error", "error", 2)
    assert "nobody_is_told" in found
    heal(found["no_worker"])
    assert client.result(elsewhere, timeout=20) == "hello Ada"
    ignorant.terminate()
    heal(found["unknown_kind"])
    until(lambda: cli("sweep").code == 0 and client.status(unknown).status.final, 20)
    assert client.result(unknown) == "hello Grace"
    assert doctor() == {"exit": 0}


def test_the_run_of_a_killed_worker_is_named_until_a_sweep_takes_it_back(
    client: Client, clock: Clock, cli: Cli, doctor: Doctor, start: Start, heal: Heal, say: Say, happened: Happened
) -> None:
    """C, P: its lease runs out, and nobody sweeps."""
    cli("sweep")
    victim = start()
    run_id = client.enqueue("holds")
    happened(run_id, "held")
    assert not {"lost_lease", "killed"} & set(doctor())
    victim.kill()
    clock.travel(minutes=4)
    found = doctor()
    assert (found["lost_lease"]["severity"], found["no_sweep"]["severity"], found["exit"]) == ("error", "error", 2)
    assert f":{victim.pid}" in found["killed"]["evidence"]
    heal(found["lost_lease"])
    assert not {"lost_lease", "no_sweep"} & set(doctor())
    say("go on")
    start()
    assert client.result(run_id, timeout=20) == "held"
    assert client.status(run_id).crash_count == 1


def test_a_run_that_kills_its_worker_is_named_and_goes_on_once_it_is_repaired(
    client: Client, clock: Clock, cli: Cli, doctor: Doctor, start: Start, heal: Heal, say: Say
) -> None:
    """D."""
    victim = start()
    run_id = client.enqueue("poison")
    victim.wait_exit(20)
    clock.travel(seconds=2)
    assert "dead_crashes" not in doctor()
    cli("sweep")
    found = doctor()
    assert (found["dead_crashes"]["run_id"], client.status(run_id).reason) == (str(run_id), "retries_exhausted")
    say("cured")
    heal(found["dead_crashes"])
    start()
    assert client.result(run_id, timeout=20) == "tried"
    assert "dead_crashes" not in doctor()


def test_a_run_outlives_who_asked_for_its_remote_step_and_the_loss_of_the_message(
    client: Client, redis: Redis, clock: Clock, cli: Cli, doctor: Doctor, start: Start, heal: Heal, say: Say
) -> None:
    """E, G, M: the process that asked is killed, every message is deleted, and nobody listens where the step is."""
    say("cured")
    victim = start()
    run_id = client.enqueue("renders")
    until(lambda: client.status(run_id).status == "waiting", 20)
    victim.kill()
    redis.flushdb()  # pyright: ignore[reportUnknownMemberType]
    clock.travel(minutes=20)
    found = doctor()
    assert "silent_step" not in found
    heal(found["no_step_worker"])
    until(lambda: "silent_step" in doctor(), 20)
    found = doctor()
    assert "no_step_worker" not in found
    heal(found["silent_step"])
    until(lambda: client.status(run_id).status == "queued", 20)
    start()
    assert client.result(run_id, timeout=20) == "rendered"
    run, (step,) = client.status(run_id), client.steps(run_id)
    assert (run.crash_count, run.requeue_count, step.attempt) == (0, 0, 1)
    assert "silent_step" not in doctor()


@pytest.mark.settings(redispatch_max=1)
def test_a_remote_step_that_kills_its_workers_is_lost_after_its_bound_and_named(
    client: Client, clock: Clock, cli: Cli, doctor: Doctor, start: Start, heal: Heal, say: Say, happened: Happened
) -> None:
    """H, O: each death is counted in the step's row, and never against the run."""
    start()
    run_id = client.enqueue("renders")
    for death in (1, 2):
        taker = start(QUEUE)
        happened(run_id, "rendered", times=death)
        taker.wait_exit(20)
        clock.travel(seconds=2)
        assert "dead_lost_step" not in doctor()
        cli("sweep")
    until(lambda: client.status(run_id).status.final, 20)
    run = client.status(run_id)
    assert run.error is not None
    assert (run.error["type"], run.crash_count) == ("remote_step_lost", 0)
    found = doctor()
    assert found["dead_lost_step"]["run_id"] == str(run_id)
    say("cured")
    start(QUEUE)
    heal(found["dead_lost_step"])
    assert client.result(run_id, timeout=20) == "rendered"
    assert "dead_lost_step" not in doctor()


def test_a_message_that_was_taken_by_a_dead_worker_strands_no_run(
    client: Client, redis: Redis, clock: Clock, cli: Cli, start: Start
) -> None:
    """M: whoever took it off the queue is gone, and nothing is delivered again."""
    run_id = client.enqueue("greets", "Ada")
    assert redis.delete("agentrun") == 1
    start()
    assert client.status(run_id).status == "queued"
    clock.travel(seconds=5)
    assert cli("sweep", "--json").json["woken"] == 1
    assert client.result(run_id, timeout=20) == "hello Ada"


@pytest.mark.settings(drain_seconds=0.2)
def test_a_shutdown_beyond_its_budget_is_named_with_what_it_waits_for(
    client: Client, doctor: Doctor, settings: Settings, start: Start, say: Say, happened: Happened
) -> None:
    """Q: a write that nobody may repeat is in flight."""
    leaving = start()
    run_id = client.enqueue("charges")
    happened(run_id, "charged")
    assert "long_drain" not in doctor()
    leaving.kill("SIGTERM")
    until(lambda: "long_drain" in doctor(), 10)
    found = doctor()["long_drain"]
    assert (found["severity"], "1 run" in found["evidence"]) == ("notice", True)
    say("go on")
    assert leaving.wait_exit(20) == 0
    assert "long_drain" not in doctor()
    start()
    run = client.wait(run_id, timeout=20)
    assert (run.result, run.crash_count, run.requeue_count) == ("charged", 0, 0)


def test_two_pools_in_one_namespace_are_named_until_one_has_its_own(
    client: Client, cli: Cli, doctor: Doctor, settings: Settings, start: Start
) -> None:
    """R."""
    blue = settings.model_copy(update={"deployment": "blue"})
    green = settings.model_copy(update={"deployment": "green"})
    cli("sweep")
    start(settings=blue)
    mistaken = start(settings=green, imports=["tests.bodies.basic"])
    found = doctor()
    assert found["shared_namespace"]["heal"].startswith("AGENTRUN_NAMESPACE=")
    assert "green" in found["shared_namespace"]["evidence"]
    assert mistaken.terminate() == 0
    start(settings=green.model_copy(update={"namespace": "green"}), imports=["tests.bodies.basic"])
    assert doctor() == {"exit": 0}


def test_a_worker_that_lives_and_does_not_consume_is_named_and_consumes_again(
    client: Client, clock: Clock, cli: Cli, doctor: Doctor, start: Start, heal: Heal
) -> None:
    """A: its consumer was cancelled, and it beats."""
    deaf = start()
    cancel(deaf, "agentrun")
    run_id = client.enqueue("greets", "Ada")
    clock.travel(minutes=4)
    cli("sweep")
    found = until(lambda: doctor().get("deaf_worker"), 10)
    assert f"`{deaf.hostname()}` takes nothing: its consumer of the queue was cancelled" in found["cause"]
    assert (found["severity"], client.status(run_id).status) == ("error", "queued")
    shown = cli("show", str(run_id), "--json").json
    assert (shown["heal"], found["cause"] in shown["why"]) == (found["heal"], True)
    heal(found)
    assert client.result(run_id, timeout=20) == "hello Ada"
    assert "deaf_worker" not in doctor()


@pytest.mark.slow
@pytest.mark.settings(sweep_seconds=1)
def test_a_worker_whose_children_idle_while_runs_stand_is_named_and_restarted(
    client: Client, clock: Clock, doctor: Doctor, start: Start, heal: Heal
) -> None:
    """A: a pool of processes, of which the one that consumes cannot say that it was told not to."""
    deaf = start(pool="prefork", concurrency=2)
    cancel(deaf, "agentrun")
    run_id = client.enqueue("greets", "Ada")
    found = until(lambda: doctor().get("deaf_worker"), 40)
    assert f"`{deaf.hostname()}` takes nothing" in found["cause"]
    assert found["heal"] == f"kill -TERM {deaf.pid}"
    heal(found)
    assert deaf.wait_exit(20) == 0
    start(pool="prefork", concurrency=2)
    assert client.result(run_id, timeout=20) == "hello Ada"
    assert "deaf_worker" not in doctor()


@pytest.mark.slow
@pytest.mark.settings(sweep_seconds=1)
def test_a_worker_whose_connection_to_redis_went_deaf_is_named_until_it_hears_again(
    client: Client, cli: Cli, doctor: Doctor, settings: Settings, start: Start
) -> None:
    """A: nothing that Redis says reaches it, and no connection breaks."""
    with Proxy(settings.require_broker()) as line:
        deaf = start(settings=settings.model_copy(update={"broker_url": line.url}))
        client.result(client.enqueue("greets", "Ada"), timeout=20)
        line.hold_answers()
        run_id = client.enqueue("greets", "Grace")
        found = until(lambda: cli("sweep").code == 0 and doctor().get("deaf_worker"), 40)
        assert f"`{deaf.hostname()}` takes nothing" in found["cause"]
        assert found["heal"] == f"kill -TERM {deaf.pid}"
        line.cut()
        until(lambda: cli("sweep").code == 0 and client.status(run_id).status.final, 20)
        assert "deaf_worker" not in doctor()


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_tells_whether_it_has_room_and_since_when_it_took_nothing(
    pool: str, client: Client, cli: Cli, start: Start, say: Say, happened: Happened
) -> None:
    """A: a busy worker is not a deaf one."""

    def told(free: bool) -> dict[str, Any]:
        def about() -> dict[str, Any] | None:
            said = [each["about"] for each in cli("workers", "--json").json["workers"]]
            return next((each for each in said if (each["free"] is not None) is free), None)

        return until(about, 20)

    node = start("agentrun", "gpu", pool=pool, concurrency=1)
    assert told(free=True)["cancelled"] == ([] if pool == "threads" else None)
    # They are told in tenths of a second: the message is to come one later than the worker.
    until(lambda: told(free=True)["took"]["gpu"] >= 0.2, 20)
    run_id = client.enqueue("holds")
    happened(run_id, "held")
    busy = told(free=False)
    assert busy["took"]["agentrun"] < busy["took"]["gpu"]
    say("go on")
    assert client.result(run_id, timeout=20) == "held"
    node.app.send_task("celery.accumulate", args=[1], queue="gpu")
    until(lambda: (took := told(free=True)["took"])["gpu"] < took["agentrun"], 20)
