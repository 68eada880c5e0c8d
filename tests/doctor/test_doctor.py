"""`agentrun doctor`: each fault is made, and found with the command that heals it; a healthy system has none."""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from redis import Redis

from agentrun import Client, Context, Effect, Reason, Status, durable, on_dead, remote_step
from agentrun.broker import CeleryPublisher, make_app
from agentrun.broker.about import about
from agentrun.broker.app import WAKE
from agentrun.cli.unusable import unusable
from agentrun.core.alarms import Shape
from agentrun.core.errors import ConfigurationError, InvalidResult, NonDeterminism
from agentrun.core.failures import qualified_name
from agentrun.runtime import presence, still
from agentrun.runtime.engine import Engine
from agentrun.runtime.remotesteps import remote_steps
from agentrun.settings import Settings
from agentrun.store.connect import USUAL_LEVEL
from agentrun.store.diagnosis import MOST
from agentrun.testing import until
from agentrun.testing.rows import KIND, Rows
from tests.cli.conftest import Cli
from tests.doctor.conftest import Doctor, Past, Worker

Sql = Callable[..., None]
WORKER = "celery -A agentrun.broker.default worker -P threads -c 100 -Q gpu"
TEAM = (
    "AGENTRUN_DATABASE_URL, AGENTRUN_BROKER_URL, AGENTRUN_IMPORTS and AGENTRUN_NAMESPACE=team in its environment, "
    "or in a `.env` there"
)


def test_a_healthy_system_has_no_findings(healthy: Engine, doctor: Doctor, cli: Cli, rows: Rows, past: Past) -> None:
    rows.queued()
    rows.running()
    rows.final(Status.COMPLETED)
    past.run(rows.final(Status.FAILED), hours=24 * 8)
    past.run(rows.final(Status.FAILED, Reason.DEADLINE_EXCEEDED))
    assert doctor() == {"exit": 0}
    assert cli("doctor").out == "nothing is wrong\n"


# ---- runs


def test_no_sweep(healthy: Engine, doctor: Doctor, run_sql: Sql, rows: Rows) -> None:
    run_sql("UPDATE agentrun.sweeps SET swept_at = now() - interval '70 s'")
    found = doctor()
    assert (found["no_sweep"]["severity"], found["exit"]) == ("warning", 1)
    assert found["no_sweep"]["heal"] == "celery -A agentrun.broker.default beat"
    rows.queued()
    found = doctor()
    assert (found["no_sweep"]["severity"], found["exit"]) == ("error", 2)
    run_sql("TRUNCATE agentrun.sweeps")
    assert "never" in doctor()["no_sweep"]["evidence"]


def test_no_sweep_where_no_worker_consumes_its_queue(seen_worker: Worker, doctor: Doctor) -> None:
    seen_worker(queues=("agentrun",))
    found = doctor()["no_sweep"]
    assert "no live worker consumes `agentrun.system`" in found["cause"]
    assert found["heal"] == "celery -A agentrun.broker.default worker -P threads -c 100 -Q agentrun.system"


def test_nobody_consumes_the_queue_of_a_due_run(
    healthy: Engine, doctor: Doctor, rows: Rows, seen_worker: Worker
) -> None:
    rows.queued(queue="gpu")
    rows.queued(queue="gpu", due_at=datetime.now(UTC) + timedelta(hours=1))
    found = doctor()
    assert found["no_worker"]["symptom"].startswith("1 run is due on queue `gpu`")
    assert found["no_worker"]["heal"] == WORKER
    assert found["no_worker"]["needs"].startswith(
        "AGENTRUN_DATABASE_URL, AGENTRUN_BROKER_URL and AGENTRUN_IMPORTS in its environment"
    )
    assert found["exit"] == 2
    seen_worker(queues=("gpu",))
    assert doctor() == {"exit": 0}


def test_a_long_queue_is_counted_so_far_and_hides_no_other(healthy: Engine, cli: Cli, rows: Rows) -> None:
    first = rows.queued(queue="a", kind="rare")
    with rows.database.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.runs (id, namespace, kind, status, request, queue, due_at)"
            " SELECT gen_random_uuid(), namespace, 'k', 'queued', request, queue, now() FROM agentrun.runs,"
            " generate_series(1, %s) WHERE id = %s",
            [MOST, first],
        )
    rows.queued(queue="b")
    said = [each["symptom"] for each in cli("doctor", "--json").json["findings"] if each["check"] == "no_worker"]
    assert [symptom.split(", the oldest")[0] for symptom in said] == [
        "10,000+ runs are due on queue `a`",
        "1 run is due on queue `b`",
    ]


def test_no_worker_of_the_queue_knows_the_kind(healthy: Engine, doctor: Doctor, rows: Rows) -> None:
    rows.queued(kind="unheard of")
    found = doctor()
    assert "`unheard of`" in found["unknown_kind"]["symptom"]
    assert KIND in found["unknown_kind"]["evidence"]
    assert found["unknown_kind"]["heal"].startswith("AGENTRUN_IMPORTS=")
    assert found["exit"] == 2


def test_a_run_past_its_lease(healthy: Engine, doctor: Doctor, rows: Rows, run_sql: Sql) -> None:
    run_id = rows.running()
    run_sql("UPDATE agentrun.runs SET lease_expires_at = now() - interval '3 s'")
    found = doctor()
    assert (found["lost_lease"]["severity"], found["exit"]) == ("notice", 0)
    rows.expire_lease(run_id)
    found = doctor()
    assert (found["lost_lease"]["heal"], found["lost_lease"]["run_id"]) == ("agentrun sweep", str(run_id))
    assert found["exit"] == 2


@pytest.mark.parametrize(
    ("make", "check", "heal"),
    [
        (
            lambda rows: rows.fenced("#1", Effect.NON_IDEMPOTENT_WRITE),
            "interrupted_write",
            "agentrun resolve {}",
        ),
        (lambda rows: rows.running(max_requeues=0), "dead_crashes", "agentrun redrive {}"),
    ],
    ids=["interrupted in a write", "kills its workers"],
)
def test_what_the_reaper_dead_letters(
    make: Any, check: str, heal: str, healthy: Engine, doctor: Doctor, rows: Rows, sweep: Callable[[], Any]
) -> None:
    run_id: UUID = make(rows)
    rows.expire_lease(run_id)
    assert sweep().dead_lettered == 1
    found = doctor()
    assert found[check]["heal"] == heal.format(run_id)
    assert found["exit"] == 1


@pytest.mark.parametrize(("error", "check"), [("remote_step_lost", "dead_lost_step"), ("LookupError", "dead_other")])
def test_a_dead_letter(error: str, check: str, healthy: Engine, doctor: Doctor, rows: Rows, run_sql: Sql) -> None:
    run_id = rows.final(Status.FAILED)
    run_sql("UPDATE agentrun.runs SET error = %s WHERE id = %s", json.dumps({"type": error}), run_id)
    found = doctor()
    assert found[check]["heal"] == f"agentrun redrive {run_id}"
    assert found["exit"] == 1


@pytest.mark.parametrize("applied", [True, False])
def test_a_result_that_does_not_fit_is_said_again_by_who_said_it(
    applied: bool, healthy: Engine, doctor: Doctor, rows: Rows, run_sql: Sql
) -> None:
    """What the function itself returned nobody can say in its place."""
    run_id = rows.final(Status.FAILED)
    error = {"type": qualified_name(InvalidResult), "step": "#1"}
    run_sql("UPDATE agentrun.runs SET error = %s WHERE id = %s", json.dumps(error), run_id)
    said = json.dumps({"key": "#1", "applied": applied})
    run_sql("INSERT INTO agentrun.moves (run_id, type, epoch, data) VALUES (%s, 'resolved', 1, %s)", run_id, said)
    heal = f"agentrun resolve {run_id} --key '#1' --applied --result JSON" if applied else f"agentrun redrive {run_id}"
    assert doctor()["dead_other"]["heal"] == heal


def test_a_run_whose_code_was_changed_under_it_is_told_with_what_shows_where(
    healthy: Engine, client: Client, doctor: Doctor
) -> None:
    @durable("changed")
    async def changed(ctx: Context) -> None:
        raise NonDeterminism("#1", recorded="step `a`", came="step `b`")

    run_id = client.enqueue("changed")
    healthy.run(run_id)
    assert doctor()["dead_code"]["heal"] == f"agentrun replay {run_id}"


def test_a_run_that_nobody_answered_in_time_is_told_as_such(
    healthy: Engine, client: Client, doctor: Doctor, sweep: Callable[[], Any]
) -> None:
    @durable("asks")
    async def asks(ctx: Context) -> None:
        await ctx.signal("go", timeout=0.01)

    run_id = client.enqueue("asks")
    healthy.run(run_id)
    until(lambda: sweep() and client.status(run_id).status is Status.QUEUED, 5)
    healthy.run(run_id)
    assert doctor()["dead_unanswered"]["heal"] == f"agentrun redrive {run_id}"


def test_a_worker_whose_event_loop_is_blocked_is_named_until_it_goes_on(
    healthy: Engine, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(still, "BLOCKED_SECONDS", 0.0)
    goes_on = threading.Event()
    healthy.loop.call_soon_threadsafe(goes_on.wait)
    try:
        healthy.heartbeat.beat()
        healthy.heartbeat.beat()
        found = doctor()["blocked_loop"]
    finally:
        goes_on.set()
    assert (found["severity"], found["heal"]) == ("error", f"kill -KILL {os.getpid()}")

    def healed() -> bool:
        healthy.heartbeat.beat()
        return doctor() == {"exit": 0}

    until(healed, 5)


@pytest.mark.settings(stable_id="pod-0")
def test_the_process_of_a_blocked_loop_is_named_by_its_number_with_a_stable_id_too(
    seen_worker: Worker, doctor: Doctor, run_sql: Sql
) -> None:
    seen_worker(about={"node": "celery@there"})
    run_sql("""UPDATE agentrun.processes SET about = (about::jsonb || '{"blocked": 60}')::json""")
    found = doctor()["blocked_loop"]
    assert (found["heal"], found["needs"].partition(",")[0]) == (f"kill -KILL {os.getpid()}", "a shell on there")


def test_dead_letters_are_named_up_to_three_with_what_lists_them_all(
    healthy: Engine, doctor: Doctor, rows: Rows
) -> None:
    ids = [str(rows.final(Status.FAILED)) for _ in range(5)]
    said = doctor()["dead_other"]
    assert said["symptom"].startswith("5 runs dead-lettered")
    assert [run_id for run_id in ids if run_id in said["evidence"]] == ids[2:]
    assert "and 2 more" in said["evidence"]
    assert "`agentrun list --status failed --reason not_retryable` lists them" in said["evidence"]
    rows.final(Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert "`agentrun list --status failed` lists them" in doctor()["dead_other"]["evidence"]


def test_a_process_that_has_missed_beats_is_late_before_it_is_gone(
    healthy: Engine, doctor: Doctor, cli: Cli, rows: Rows, run_sql: Sql
) -> None:
    rows.queued(queue="gpu")
    began = time.monotonic()
    run_sql("UPDATE agentrun.processes SET seen_at = now() - interval '20 s'")
    found = doctor()
    (seen,) = re.findall(r"was last seen (\d+) s ago", found["late_worker"]["symptom"])
    assert "1 of them late" in found["no_worker"]["evidence"]
    (worker,) = cli("workers", "--json").json["workers"]
    assert worker["state"] == "late"
    # The commands take their time on a busy machine.
    assert 20 <= int(seen) <= round(worker["silent_seconds"]) <= round(20 + time.monotonic() - began)
    assert "late" in cli("workers").out
    run_sql("UPDATE agentrun.processes SET seen_at = now() - interval '5 s'")
    assert "late_worker" not in doctor()


def test_commands_name_the_application_that_workers_were_started_with(
    healthy: Engine, doctor: Doctor, cli: Cli, rows: Rows, run_sql: Sql
) -> None:
    run_id = rows.queued(queue="gpu")
    run_sql("""UPDATE agentrun.processes SET about = '{"app": "shop.celery"}'""")
    assert doctor()["no_worker"]["heal"] == "celery -A shop.celery worker -P threads -c 100 -Q gpu"
    run_sql("UPDATE agentrun.processes SET seen_at = now() - interval '2 min'")
    assert cli("show", str(run_id), "--json").json["heal"] == "celery -A shop.celery worker -P threads -c 100 -Q gpu"


@pytest.mark.parametrize(
    ("said", "app"),
    [
        ("/usr/bin/celery -A shop worker -Q a", "shop"),
        ("/lib/celery/__main__.py --app=shop:app -b redis:// worker", "shop:app"),
        ("celery --app shop worker", "shop"),
        ("celery -Ashop worker", "shop"),
        ("celery worker -Q a", None),
        ("/usr/bin/pytest -A shop", None),
        ("/srv/serve/__main__.py -A shop", None),
    ],
)
def test_a_worker_knows_what_celery_was_told(said: str, app: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APP", raising=False)
    assert presence.celery_app(said.split()) == app


def test_runs_that_stand_still(
    healthy: Engine, doctor: Doctor, rows: Rows, past: Past, sweep: Callable[[], Any], run_sql: Sql
) -> None:
    lost = rows.waiting()
    rows.wait(lost, kind="child", child_id=uuid4())
    stuck = rows.running()
    for run_id in (lost, stuck):
        past.run(run_id)
    found = doctor()
    assert found["never_resolved"]["heal"] == f"agentrun cancel {lost}"
    assert found["no_progress"]["heal"] == f"agentrun cancel {stuck}"
    assert (found["exit"], "paged" in found) == (1, False)
    past.minute()
    sweep()
    assert "2 runs paged for" in doctor()["paged"]["symptom"]


def _render(page: dict[str, str]) -> str:
    return str(page)


def test_a_remote_step_that_nobody_takes(
    healthy: Engine, doctor: Doctor, client: Client, past: Past, cli: Cli, seen_worker: Worker
) -> None:
    @durable("draws")
    async def renders(ctx: Context) -> None:
        await ctx.remote("render", {}, queue="gpu")

    run_id = client.enqueue("draws")
    healthy.run(run_id)
    found = doctor()
    assert "silent_step" not in found
    assert found["no_step_worker"]["heal"] == WORKER
    past.run(run_id)
    assert set(doctor()) == {"no_step_worker", "exit"}, "one cause, one finding"
    seen_worker(queues=("gpu",))
    found = doctor()
    assert "no_step_worker" not in found
    assert found["silent_step"]["heal"] == f"agentrun redispatch {run_id}"
    assert cli(*found["silent_step"]["heal"].split()[1:]).code == 0
    assert found["unknown_step"]["heal"] == f"AGENTRUN_IMPORTS=MODULE {WORKER}"
    before = remote_steps.snapshot()
    remote_step("render", effect=Effect.READ_ONLY)(_render)
    try:
        seen_worker(queues=("gpu",))
    finally:
        remote_steps.restore(before)
    assert "unknown_step" not in doctor()


def test_a_notice_that_could_not_be_told(
    healthy: Engine, doctor: Doctor, rows: Rows, sweep: Callable[[], Any], run_sql: Sql
) -> None:
    def fails(data: Any) -> None:
        raise ConnectionError

    on_dead(fails, name="mail")
    run_id = rows.final(Status.FAILED)
    for _ in range(8):
        sweep()
        run_sql("UPDATE agentrun.notices SET due_at = now()")
    found = doctor()
    assert found["notice_given_up"]["symptom"] == "1 notice never told: hook `mail` failed each time"
    assert "ConnectionError" in found["notice_given_up"]["cause"]
    assert found["notice_given_up"]["heal"] == f"agentrun show {run_id}"


def test_what_waits_for_people_for_long(healthy: Engine, doctor: Doctor, rows: Rows, run_sql: Sql) -> None:
    run_id = rows.waiting()
    rows.wait(run_id, kind="approval")
    assert doctor() == {"exit": 0}
    run_sql("UPDATE agentrun.waits SET created_at = now() - interval '2 days'")
    found = doctor()
    assert (found["long_wait"]["heal"], found["long_wait"]["run_id"]) == ("agentrun inbox", str(run_id))
    assert found["exit"] == 0


# ---- processes


def test_no_worker_is_alive(healthy: Engine, doctor: Doctor, run_sql: Sql, cli: Cli) -> None:
    run_sql("UPDATE agentrun.processes SET seen_at = now() - interval '2 min'")
    found = doctor()
    assert found["no_workers"]["heal"].endswith("-Q agentrun,agentrun.system")
    assert (found["killed"]["severity"], found["killed"]["heal"]) == ("notice", "agentrun workers")
    assert cli(*found["killed"]["heal"].split()[1:]).out.count("gone") == 1
    assert found["exit"] == 1


def test_workers_that_listen_only_to_another_namespaces_queues(
    make_engine: Callable[..., Engine], doctor: Doctor, cli: Cli, settings: Settings, database: Any, run_sql: Sql
) -> None:
    """Alive, and nobody's: named before a run is due, and with the queue of the runs once they are."""
    team = settings.model_copy(update={"namespace": "team"})
    make_engine(settings=team, queues=("celery", "agentrun", "agentrun.system")).heartbeat.beat()
    found = doctor(AGENTRUN_NAMESPACE="team")
    assert found["foreign_queues"]["symptom"] == "1 worker of namespace `team` on no queue of it"
    assert found["foreign_queues"]["evidence"].endswith("on: agentrun, agentrun.system, celery")
    assert found["foreign_queues"]["heal"].endswith("-Q agentrun.team,agentrun.system.team")
    assert {found[check]["needs"] for check in ("foreign_queues", "no_sweep")} == {TEAM}
    assert "no_worker" not in found
    Rows(database, namespace="team").queued(queue="gpu.team")
    found = doctor(AGENTRUN_NAMESPACE="team")
    assert "due on queue `gpu.team`" in found["no_worker"]["symptom"]
    assert found["no_worker"]["cause"] == "no live worker consumes `gpu.team`"
    assert found["no_worker"]["evidence"] == "1 worker is alive, and consumes: agentrun, agentrun.system, celery"
    assert found["no_worker"]["heal"].endswith("-Q gpu.team")
    assert found["no_worker"]["needs"] == TEAM
    assert doctor("--all-namespaces")["no_worker"]["needs"] == TEAM
    run_sql("UPDATE agentrun.processes SET queues = '{celery,gpu.team}'")
    found = doctor(AGENTRUN_NAMESPACE="team")
    assert {"foreign_queues", "no_worker"} & set(found) == set()


def test_commands_for_another_namespace_name_it(doctor: Doctor, database: Any, run_sql: Sql) -> None:
    Rows(database, namespace="team").running()
    run_sql("UPDATE agentrun.runs SET lease_expires_at = now() - interval '2 min'")
    named = "AGENTRUN_NAMESPACE=team in its environment, or in a `.env` there"
    assert (found := doctor("--all-namespaces")["lost_lease"])["heal"] == "agentrun sweep"
    assert found["needs"] == named


def test_a_worker_that_ended_in_order_leaves_no_trace(healthy: Engine, doctor: Doctor, seen_worker: Worker) -> None:
    seen_worker().close()
    assert doctor() == {"exit": 0}


def test_a_hosts_clock_is_off(healthy: Engine, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=42)

    monkeypatch.setattr(presence, "datetime", Ahead)
    healthy.heartbeat.beat()
    found = doctor()
    assert "ahead of the database's by 42 s" in found["clock_skew"]["symptom"]
    assert found["exit"] == 1


def test_a_visibility_timeout_below_the_countdowns(healthy: Engine, doctor: Doctor, seen_worker: Worker) -> None:
    app = make_app(healthy.settings)
    fine = about(type("Worker", (), {"app": app}))
    assert fine["visibility_timeout"] == 3600
    app.conf.broker_transport_options = {"visibility_timeout": 30}
    seen_worker(about=about(type("Worker", (), {"app": app})))
    found = doctor()
    assert '`app.conf.broker_transport_options = {"visibility_timeout": 3600}`' in found["visibility_timeout"]["heal"]
    assert "agentrun.broker.default" in found["visibility_timeout"]["heal"]
    assert found["exit"] == 1
    app.close()


def test_the_visibility_timeout_that_is_named_heals_whatever_the_cap_is(
    doctor: Doctor, seen_worker: Worker, settings: Settings
) -> None:
    hours = settings.model_copy(update={"longest_countdown_seconds": 7200.0})
    seen_worker(settings=hours, about={"visibility_timeout": 3600})
    assert '"visibility_timeout": 14400' in doctor()["visibility_timeout"]["heal"]
    seen_worker(settings=hours, about={"visibility_timeout": 14400})
    assert '"visibility_timeout": 14400' in doctor()["visibility_timeout"]["heal"], "the first one still has less"


def test_two_deployments_share_a_namespace(
    healthy: Engine, doctor: Doctor, seen_worker: Worker, settings: Settings, kinds: Any
) -> None:
    same = settings.model_copy(update={"deployment": "blue"})
    seen_worker(settings=same)
    assert doctor() == {"exit": 0}, "one name is a rolling deploy"
    durable("only there")(lambda ctx, request: None)
    seen_worker(settings=settings.model_copy(update={"deployment": "green"}))
    found = doctor()
    assert found["shared_namespace"]["heal"] == (
        "AGENTRUN_NAMESPACE=green celery -A agentrun.broker.default worker -P threads -c 100"
        " -Q agentrun.green,agentrun.system.green"
    )
    assert "producers" in found["shared_namespace"]["needs"]
    assert "green" in found["shared_namespace"]["evidence"]
    assert found["exit"] == 1


def test_a_namespace_of_its_own_is_one_that_can_be_set(
    seen_worker: Worker, doctor: Doctor, settings: Settings, kinds: Any
) -> None:
    team = settings.model_copy(update={"namespace": "team", "deployment": "blue"})
    seen_worker(settings=team, queues=("agentrun.team", "gpu.team"))
    durable("only there")(lambda ctx, request: None)
    seen_worker(
        settings=team.model_copy(update={"deployment": "Shop.Bodies,shop.more"}), queues=("agentrun.team", "gpu.team")
    )
    heal = doctor(AGENTRUN_NAMESPACE="team")["shared_namespace"]["heal"]
    assert heal.startswith("AGENTRUN_NAMESPACE=shop-bodies-shop-more celery ")
    assert heal.endswith(" -Q agentrun.shop-bodies-shop-more,gpu.shop-bodies-shop-more")


def test_two_live_workers_have_one_stable_id(
    healthy: Engine, doctor: Doctor, seen_worker: Worker, settings: Settings
) -> None:
    same = settings.model_copy(update={"stable_id": "pod-0"})
    children = [seen_worker(settings=same, about={"worker": "one"}) for _ in range(2)]
    children[0].heartbeat.beat()
    assert doctor() == {"exit": 0}, "children of one worker have its name"
    seen_worker(settings=same, about={"worker": "its successor"})
    assert doctor() == {"exit": 0}, "the others may have been killed before it began"
    children[0].heartbeat.beat()
    found = doctor()
    assert "pod-0" in found["shared_stable_id"]["symptom"]
    assert found["shared_stable_id"]["heal"] == (
        "AGENTRUN_STABLE_ID=pod-0-2 celery -A agentrun.broker.default worker -P threads -c 100"
        " -Q agentrun,agentrun.system"
    )
    assert f"`kill -TERM {os.getpid()}` on " in found["shared_stable_id"]["needs"]
    assert found["exit"] == 1


def test_nobody_is_told_of_stalled_runs(make_engine: Callable[..., Engine], doctor: Doctor, sweep: Any) -> None:
    make_engine(queues=("agentrun", "agentrun.system")).heartbeat.beat()
    sweep()
    found = doctor()
    assert found["nobody_is_told"]["heal"].startswith("call `agentrun.on_stalled(agentrun.log_line())` in a module")
    assert found["exit"] == 0


def test_a_worker_that_drains_for_long(healthy: Engine, seen_worker: Worker, doctor: Doctor, run_sql: Sql) -> None:
    draining = seen_worker()
    draining.drain(within=60)
    draining.heartbeat.beat()
    assert doctor() == {"exit": 0}
    run_sql("UPDATE agentrun.processes SET draining_since = now() - interval '1 min', holds = 1 WHERE draining")
    found = doctor()
    assert found["long_drain"]["severity"] == "notice"


# ---- the installation


def test_a_schema_behind_the_code(healthy: Engine, doctor: Doctor, run_sql: Sql) -> None:
    run_sql("DELETE FROM agentrun.alembic_version")
    found = doctor()
    assert (found["schema"]["heal"], found["exit"]) == ("agentrun migrate", 2)


def test_a_schema_of_a_newer_version_is_not_migrated(healthy: Engine, doctor: Doctor, run_sql: Sql) -> None:
    run_sql("UPDATE agentrun.alembic_version SET version_num = '9999'")
    found = doctor()["schema"]
    assert ("newer version" in found["cause"], found["heal"]) == (True, "pip install --upgrade agentrun")
    assert "migrate" not in found["evidence"]


def test_a_database_without_a_schema(doctor: Doctor, empty_database_url: str) -> None:
    found = doctor(AGENTRUN_DATABASE_URL=empty_database_url)["schema"]
    assert (found["cause"], found["heal"]) == ("nobody has made it yet", "agentrun migrate")
    assert "no schema yet" in found["evidence"]


def test_a_database_that_is_away(doctor: Doctor) -> None:
    found = doctor(AGENTRUN_DATABASE_URL="postgresql://nobody@localhost:1/nowhere")
    assert (found["database"]["severity"], found["exit"]) == ("error", 2)


@pytest.fixture
def psql(settings: Settings) -> Iterator[Callable[[str], None]]:
    """Does what `psql … -c STATEMENT …` would, in a session of its own."""

    def run(command: str) -> None:
        words = shlex.split(command)
        with psycopg.connect(settings.require_database(), autocommit=True) as connection:
            for before, statement in pairwise(words):
                if before == "-c":
                    connection.execute(statement)  # pyright: ignore[reportArgumentType]

    yield run
    run("psql -c 'set default_transaction_read_only = off' -c 'alter role current_user reset all'")


@pytest.fixture
def of_database(settings: Settings, run_sql: Sql) -> Callable[[str], None]:
    """Sets something for all sessions of the test's database."""
    name = urlsplit(settings.require_database()).path[1:]
    return lambda setting: run_sql(f'ALTER DATABASE "{name}" SET {setting}')


def test_a_database_that_takes_no_write_is_one_finding_until_the_command_is_run(
    healthy: Engine, doctor: Doctor, of_database: Callable[[str], None], psql: Callable[[str], None], rows: Rows
) -> None:
    rows.queued(queue="gpu")
    of_database("default_transaction_read_only = on")
    found = doctor()
    assert (set(found), found["exit"]) == ({"read_only", "exit"}, 2)
    psql(found["read_only"]["heal"])
    assert set(doctor()) == {"no_worker", "exit"}


def test_a_database_that_cuts_statements_off_is_named_so(
    healthy: Engine,
    doctor: Doctor,
    of_database: Callable[[str], None],
    psql: Callable[[str], None],
    settings: Settings,
) -> None:
    of_database("statement_timeout = '50ms'")
    with psycopg.connect(settings.require_database()) as locking:
        locking.execute("SET statement_timeout = 0")
        locking.execute("LOCK TABLE agentrun.processes")
        found = doctor()["database"]
    assert "statement_timeout" in found["cause"]
    psql(found["heal"])
    assert doctor() == {"exit": 0}


@pytest.mark.parametrize(
    ("answer", "cause", "heal"),
    [
        ('database "agentrnu" does not exist', "does not have", "export AGENTRUN_DATABASE_URL="),
        ('password authentication failed for user "agentrun"', "wrong user or password", "export "),
        ("sorry, too many clients already", "connections are taken", "psql "),
        (f"run `{USUAL_LEVEL}`", "default_transaction_isolation", f'psql "$AGENTRUN_DATABASE_URL" -c "{USUAL_LEVEL}"'),
        ("Connection refused", "it is down", "pg_isready "),
    ],
)
def test_a_database_that_refuses_is_named_by_its_answer(answer: str, cause: str, heal: str) -> None:
    found = unusable(ConfigurationError(f"the database of AGENTRUN_DATABASE_URL cannot be reached: FATAL: {answer}"))
    assert cause in found.cause
    assert found.heal.startswith(heal)


def test_settings_that_cannot_be_used(doctor: Doctor) -> None:
    found = doctor(AGENTRUN_LEASE_SECONDS="soon")
    assert "AGENTRUN_LEASE_SECONDS" in found["settings"]["evidence"]
    assert found["exit"] == 2


def test_urls_that_are_not_set_are_named_and_nothing_else_is(healthy: Engine, doctor: Doctor) -> None:
    found = doctor(AGENTRUN_DATABASE_URL=None, AGENTRUN_BROKER_URL=None)
    assert set(found) == {"settings", "exit"}
    for variable in ("AGENTRUN_DATABASE_URL", "AGENTRUN_BROKER_URL"):
        assert variable in found["settings"]["symptom"]
        assert f"{variable}=" in found["settings"]["heal"]
    found = doctor(AGENTRUN_BROKER_URL=None)
    assert (set(found), found["exit"]) == ({"settings", "exit"}, 2)
    assert "DATABASE" not in found["settings"]["symptom"]


def test_a_broker_that_is_away(healthy: Engine, doctor: Doctor) -> None:
    found = doctor(AGENTRUN_BROKER_URL="redis://localhost:1/0")
    assert (found["broker_away"]["severity"], found["exit"]) == ("error", 2)
    assert found["broker_away"]["heal"] == 'redis-cli -u "$AGENTRUN_BROKER_URL" ping'
    found = doctor(AGENTRUN_BROKER_URL="amqp://localhost:1//")
    assert found["broker_away"]["heal"].startswith("start it, or set AGENTRUN_BROKER_URL")


@pytest.fixture
def eviction(redis: Redis) -> Iterator[None]:
    redis.config_set("maxmemory-policy", "allkeys-lru")
    yield
    redis.config_set("maxmemory-policy", "noeviction")


def test_a_redis_that_evicts(healthy: Engine, eviction: None, doctor: Doctor) -> None:
    found = doctor()
    assert "allkeys-lru" in found["evicting"]["cause"]
    assert found["evicting"]["heal"].endswith("config set maxmemory-policy noeviction")
    assert found["exit"] == 1


@pytest.fixture
def full(redis: Redis) -> Iterator[None]:
    redis.config_set("maxmemory", 1)
    yield
    redis.config_set("maxmemory", 0)


def test_a_redis_that_is_full_is_named_until_it_has_room_again(
    healthy: Engine, full: None, doctor: Doctor, redis: Redis
) -> None:
    found = doctor()
    assert (found["broker_full"]["severity"], set(found), found["exit"]) == ("error", {"broker_full", "exit"}, 2)
    *_, setting, value = found["broker_full"]["heal"].split()
    redis.config_set(setting, int(value))
    assert doctor() == {"exit": 0}


def test_a_message_with_a_countdown_over_the_cap(
    healthy: Engine, doctor: Doctor, settings: Settings, client: Client, redis: Redis
) -> None:
    app = make_app(settings)
    app.send_task(WAKE, args=(str(uuid4()),), queue="agentrun", countdown=50)
    assert doctor() == {"exit": 0}
    app.send_task(WAKE, args=(str(uuid4()),), queue="agentrun", countdown=3000, priority=6)
    found = doctor()
    assert "`client.enqueue(…, delay=…)`" in found["long_countdown"]["heal"]
    assert found["long_countdown"]["symptom"].startswith("1 message is held with a countdown over the cap")
    assert found["exit"] == 1
    app.close()


def test_a_countdown_of_our_own_is_never_over_the_cap(
    healthy: Engine, doctor: Doctor, settings: Settings, client: Client
) -> None:
    client.enqueue(KIND, delay=3600)
    assert doctor() == {"exit": 0}
    CeleryPublisher(settings).close()


# ---- namespaces, and the screen


def test_each_namespace_is_its_own_until_all_are_asked_for(
    healthy: Engine, doctor: Doctor, database: Any, cli: Cli
) -> None:
    run_id = Rows(database, namespace="other").queued(queue="agentrun.other")
    assert doctor() == {"exit": 0}
    found = doctor("--all-namespaces")
    assert (found["no_worker"]["namespace"], found["exit"]) == ("other", 2)
    assert str(run_id) not in found["no_worker"]["heal"]
    assert "[other]" in cli("doctor", "--all-namespaces").out


def test_a_namespace_with_nothing_in_it_is_told_where_others_have_something(
    doctor: Doctor, healthy: Engine, database: Any
) -> None:
    mistyped = {"AGENTRUN_NAMESPACE": "tema"}
    Rows(database, namespace="team").queued()
    found = doctor(**mistyped)["empty_namespace"]
    assert (found["severity"], found["namespace"], found["heal"]) == (
        "notice", "tema", "agentrun doctor --all-namespaces",
    )  # fmt: skip
    assert "default, team" in found["evidence"]
    Rows(database, namespace="tema").queued()
    assert "empty_namespace" not in doctor(**mistyped)
    assert "empty_namespace" not in doctor("--all-namespaces", **mistyped)


def test_a_database_with_nothing_in_it_has_no_mistyped_namespace(doctor: Doctor) -> None:
    assert "empty_namespace" not in doctor()


def test_the_screen_has_symptom_cause_evidence_and_the_command_worst_first(
    healthy: Engine, cli: Cli, rows: Rows, run_sql: Sql
) -> None:
    rows.final(Status.FAILED)
    rows.queued(queue="gpu")
    said = cli("doctor")
    lines = said.out.splitlines()
    assert [line.split()[:2] for line in lines[::6]] == [["error", "no_worker"], ["warning", "dead_other"]]
    assert [line.split()[0] for line in lines[1:6]] == ["symptom", "cause", "evidence", "heal", "needs"]
    assert [line.split()[0] for line in lines[7:]] == ["symptom", "cause", "evidence", "heal"]
    assert said.code == 2


SOURCES = (
    "cli/doctor.py",
    "cli/unusable.py",
    "runtime/symptoms.py",
    "runtime/fleet.py",
    "runtime/deaf.py",
    "runtime/still.py",
)


def test_the_guide_has_every_finding() -> None:
    root = Path(__file__).parents[2]
    sources = [root / "agentrun" / name for name in SOURCES]
    names = {name for source in sources for name in re.findall(r'"(\w+)",\s+Severity\.', source.read_text())}
    names |= set(re.findall(r'_broken\("(\w+)"', sources[0].read_text()))
    names |= {*map(str, set(Shape) - {Shape.UNCLAIMED})} | {
        "no_sweep",
        "lost_lease",
        "interrupted_write",
        "deaf_worker",
    }
    names |= {f"dead_{cause}" for cause in ("crashes", "lost_step", "code", "unanswered", "other")}
    assert len(names) > 25
    page = (root / "docs" / "guides" / "operating.md").read_text()
    assert not {name for name in names if not re.search(rf"^\|[^|]*`{name}`", page, re.MULTILINE)}
