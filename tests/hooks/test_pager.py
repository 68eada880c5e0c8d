"""Runs that stand still are paged: in every shape, once for each episode, and never a healthy one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from agentrun import ConfigurationError, Settings, Status, durable, log_line, on_stalled
from agentrun.core.alarms import Shape
from agentrun.runtime import hooks, pager
from agentrun.runtime.engine import Engine
from agentrun.store import claims, episodes, journal
from agentrun.store.database import Database
from agentrun.testing.rows import KIND, Rows
from tests.hooks.conftest import Data, Page, Past


class Stage:
    """Runs that stand still, and healthy ones that look alike; each was last heard of an hour ago."""

    def __init__(self, rows: Rows, past: Past) -> None:
        self.rows, self.past = rows, past

    def silent_step(self, kind: str = "remote", status: str = "offered", **columns: str) -> UUID:
        run_id = self.rows.waiting(waiting_on="remote:gpu")
        self.rows.wait(run_id, "#1", kind="remote", name="render")
        started = "nextval('agentrun.event_seq')" if status == "started" else "NULL"
        values = {"offered_at": "now()", "due_at": "now()", "lease_expires_at": "NULL", "heartbeat_at": "NULL"}
        values |= {"started_seq": started, "started_at": "now()" if status == "started" else "NULL"} | columns
        with self.rows.database.connection() as connection:
            connection.execute(
                f"INSERT INTO agentrun.steps (run_id, key, kind, name, effect, status, epoch, queue,"
                f" {', '.join(values)})"
                f" VALUES (%s, '#1', %s, 'render', 'read_only', %s, 1, 'gpu', {', '.join(values.values())})",
                [run_id, kind, status],
            )
        return self._long_ago(run_id)

    def never_resolved(self) -> UUID:
        run_id = self.rows.waiting(waiting_on="child")
        self.rows.wait(run_id, kind="child", child_id=uuid4())
        return self._long_ago(run_id)

    def unclaimed(self) -> UUID:
        return self._long_ago(self.rows.queued())

    def no_progress(self) -> UUID:
        return self._long_ago(self.rows.fenced("#1"))

    def _long_ago(self, run_id: UUID) -> UUID:
        self.past.run(run_id)
        return run_id


@pytest.fixture
def stage(rows: Rows, past: Past) -> Stage:
    return Stage(rows, past)


@pytest.fixture
def heard() -> list[Data]:
    """What an `on_stalled` hook of this process is told."""
    said: list[Data] = []
    on_stalled(said.append, name="pager")
    return said


COMMANDS = {
    Shape.SILENT_STEP: "celery -A agentrun.broker.default worker -P threads -c 100 -Q gpu",
    Shape.NEVER_RESOLVED: "agentrun cancel {}",
    Shape.UNCLAIMED: "celery -A agentrun.broker.default worker -P threads -c 100 -Q agentrun",
    Shape.NO_PROGRESS: "agentrun cancel {}",
}


@pytest.mark.parametrize("shape", Shape)
def test_a_run_of_every_shape_is_paged_once_with_its_facts(
    shape: Shape, stage: Stage, heard: list[Data], pager: Page, past: Past
) -> None:
    run_id: UUID = getattr(stage, shape)()
    assert pager() == 1
    past.minute()
    past.notices()
    assert pager() == 0
    (said,) = heard
    assert (said["occasion"], said["run_id"], said["kind"], said["shape"]) == ("stalled", str(run_id), KIND, str(shape))
    assert 3590 < said["age_seconds"] < 3700
    assert said["command"] == COMMANDS[shape].format(run_id)
    assert said["queue"] == "agentrun"
    step = said["step"]
    if shape is Shape.SILENT_STEP:
        assert (step["key"], step["name"], step["attempt"], step["redispatch_count"]) == ("#1", "render", 1, 0)
        assert step["age_seconds"] > 3590
        assert step["heartbeat_age_seconds"] is None
    elif shape is Shape.NO_PROGRESS:
        assert (step["key"], step["name"]) == ("#1", "pay")
    else:
        assert step is None


NAMED = "AGENTRUN_NAMESPACE=team in its environment, or in a `.env` there"
WORKERS = "AGENTRUN_DATABASE_URL, AGENTRUN_BROKER_URL, AGENTRUN_IMPORTS and " + NAMED


@pytest.mark.settings(namespace="team")
@pytest.mark.parametrize("shape", Shape)
def test_a_page_of_another_namespace_names_it_beside_its_command(
    shape: Shape, stage: Stage, heard: list[Data], pager: Page, caplog: pytest.LogCaptureFixture
) -> None:
    on_stalled(log_line())
    getattr(stage, shape)()
    assert pager() == 1
    (said,) = heard
    assert said["needs"] == (WORKERS if said["command"].startswith("celery") else NAMED)
    assert f" needs={said['needs']} " in caplog.records[-1].getMessage()


def test_a_page_of_the_default_namespace_says_what_a_worker_needs(stage: Stage, heard: list[Data], pager: Page) -> None:
    stage.unclaimed()
    stage.no_progress()
    assert pager() == 2
    assert {said["shape"]: said["needs"] for said in heard} == {
        Shape.UNCLAIMED: "AGENTRUN_DATABASE_URL, AGENTRUN_BROKER_URL and AGENTRUN_IMPORTS in its environment, "
        "or in a `.env` there",
        Shape.NO_PROGRESS: None,
    }


@pytest.mark.parametrize("kind", ["remote", "external"])
def test_a_taken_step_whose_beats_have_ended_is_paged(kind: str, stage: Stage, heard: list[Data], pager: Page) -> None:
    run_id = stage.silent_step(kind, "started", heartbeat_at="now() - interval '5 min'")
    assert pager() == 1
    assert heard[0]["command"] == f"agentrun redispatch {run_id}"
    assert heard[0]["step"]["heartbeat_age_seconds"] > 3600


def test_an_external_step_that_nobody_took_is_paged_with_where_it_is_listed(
    stage: Stage, heard: list[Data], pager: Page
) -> None:
    run_id = stage.silent_step("external")
    assert pager() == 1
    assert heard[0]["command"] == f"agentrun step list --run {run_id}"


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "started", "lease_expires_at": "now() + interval '20 s'"},
        {"status": "started", "heartbeat_at": "now() + interval '59 min'"},
        {"due_at": "now() + interval '2 min'"},
        {"offered_at": "now() + interval '59 min'"},
    ],
    ids=["its taker renews its lease", "it beats", "it pauses after a failure", "it was offered again"],
)
def test_a_step_that_is_only_slow_is_not_paged(
    columns: dict[str, str], stage: Stage, heard: list[Data], pager: Page
) -> None:
    stage.silent_step(**columns)
    assert pager() == 0
    assert heard == []


def test_a_run_that_waits_for_people_time_or_children_is_not_paged(
    stage: Stage, rows: Rows, past: Past, heard: list[Data], pager: Page
) -> None:
    people, sleeper, parent = (rows.waiting() for _ in range(3))
    rows.wait(people, kind="approval")
    rows.wait(sleeper, kind="timer", due_at="2999-01-01")
    rows.wait(parent, kind="child", child_id=rows.waiting())
    for run_id in (people, sleeper, parent):
        past.run(run_id)
    assert pager() == 0


def test_a_run_that_moved_just_now_is_not_paged(rows: Rows, heard: list[Data], pager: Page) -> None:
    rows.queued()
    rows.running()
    rows.wait(rows.waiting(), kind="child", child_id=uuid4())
    assert pager() == 0


def test_a_long_step_that_ends_steps_is_progress(rows: Rows, stage: Stage, heard: list[Data], pager: Page) -> None:
    run_id = stage.no_progress()
    rows.do(journal.FENCE, run_id, **rows.step("#2", kind="write", effect="idempotent_write"))
    assert pager() == 0


def test_a_backlog_of_a_fleet_that_works_is_not_paged(
    stage: Stage, heard: list[Data], pager: Page, past: Past, make_engine: Callable[..., Engine], kinds: Any
) -> None:
    durable(KIND)(lambda ctx, request: None)
    stage.unclaimed()
    elsewhere = make_engine(queues=("another",))
    elsewhere.heartbeat.beat()
    there = make_engine(queues=("agentrun",))
    there.heartbeat.beat()
    assert pager() == 0
    there.close()
    past.minute()
    assert pager() == 1


def test_an_episode_is_paged_once_by_all_processes_and_restarts(
    stage: Stage, settings: Settings, pager: Page, past: Past, monkeypatch: pytest.MonkeyPatch, no_hooks: None
) -> None:
    stage.unclaimed()
    heard: list[Data] = []
    for number in range(4):
        monkeypatch.setattr(hooks, "_hooks", {occasion: {} for occasion in hooks.Occasion})
        on_stalled(heard.append, name="pager")
        other = Database(settings.require_database(), name="another process")
        pager_of_it = pager(by=f"sweep:other:{number}")
        hooks.notify(other, settings.namespace, limit=100)
        other.close()
        assert pager_of_it == (number == 0)
        past.minute()
        past.notices()
    assert len(heard) == 1


def test_two_pagers_at_once_open_one_episode(stage: Stage, database: Database, settings: Settings) -> None:
    stage.unclaimed()
    scope = {"namespace": settings.namespace, "after": 900.0, "limit": 100}
    (row,) = database.rows(episodes.UNPAGED, scope)
    params = {**scope, "run_id": row["run_id"], "shape": row["shape"], "since": row["since"], "facts": "{}"}
    assert [len(database.rows(episodes.OPEN, params)) for _ in range(2)] == [1, 0]


def test_a_run_that_moves_while_it_is_looked_at_is_not_paged(
    stage: Stage, rows: Rows, database: Database, settings: Settings
) -> None:
    run_id = stage.unclaimed()
    scope = {"namespace": settings.namespace, "after": 900.0, "limit": 100}
    (row,) = database.rows(episodes.UNPAGED, scope)
    assert rows.do(claims.CLAIM_RUN, run_id)
    params = {**scope, "run_id": run_id, "shape": row["shape"], "since": row["since"], "facts": "{}"}
    assert database.rows(episodes.OPEN, params) == []


def test_a_run_that_goes_on_and_strands_again_is_paged_again(
    stage: Stage, rows: Rows, heard: list[Data], pager: Page, past: Past
) -> None:
    run_id = stage.unclaimed()
    assert pager() == 1
    assert rows.do(claims.CLAIM_RUN, run_id)
    past.minute()
    assert pager() == 0
    past.run(run_id, hours=0.5)
    past.minute()
    assert pager() == 1
    assert [said["shape"] for said in heard] == ["unclaimed", "no_progress"]
    assert heard[0]["id"] != heard[1]["id"]


def test_a_page_that_was_not_told_in_time_is_not_told_when_the_run_has_gone_on(
    stage: Stage, rows: Rows, pager: Page, past: Past, told: Callable[[], list[dict[str, Any]]]
) -> None:
    def fails(data: Data) -> None:
        tried.append(data)
        raise RuntimeError("the pager's service is away")

    tried: list[Data] = []
    on_stalled(fails, name="pager")
    run_id = stage.unclaimed()
    pager()
    assert rows.do(claims.CLAIM_RUN, run_id)
    past.minute()
    past.notices()
    pager()
    assert len(tried) == 1
    assert [notice["ending"] for notice in told()] == ["outdated"]


def test_there_is_one_pass_a_minute(stage: Stage, heard: list[Data], pager: Page, past: Past) -> None:
    assert pager() == 0
    stage.unclaimed()
    assert pager(by="sweep:another") == 0
    past.minute()
    assert pager() == 1


@pytest.mark.parametrize("case", ["no hook", "draining"])
def test_a_process_without_a_hook_or_that_drains_asks_the_database_nothing(case: str, settings: Settings) -> None:
    if case == "draining":
        on_stalled(print, name="pager")
    nowhere = Database("postgresql://localhost:1/nowhere")
    assert pager.page(nowhere, settings, by="sweep:test", draining=case == "draining") == 0
    on_stalled(print, name="pager")
    with pytest.raises(Exception, match=r"."):
        pager.page(nowhere, settings, by="sweep:test")


def test_a_pass_pages_a_hundred_runs_of_its_own_namespace(
    database: Database, rows: Rows, stage: Stage, heard: list[Data], pager: Page, past: Past, settings: Settings
) -> None:
    Stage(Rows(database, namespace="another"), past).unclaimed()
    run_id = stage.unclaimed()
    with database.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.runs (id, namespace, kind, status, queue, request, due_at, created_at)"
            " SELECT gen_random_uuid(), namespace, kind, status, queue, request, due_at, created_at"
            " FROM agentrun.runs, generate_series(1, 109) WHERE id = %s",
            [run_id],
        )
    assert pager() == 100
    past.minute()
    assert pager() == 10
    hooks.notify(database, settings.namespace, limit=100)
    assert len({said["run_id"] for said in heard}) == 110


def test_less_than_a_minute_of_standing_still_is_no_stall() -> None:
    with pytest.raises(ConfigurationError, match="STALLED_AFTER_SECONDS"):
        Settings(stalled_after_seconds=59)


def test_the_sweep_pages(stage: Stage, heard: list[Data], sweep: Callable[[], Any], rows: Rows) -> None:
    run_id = stage.unclaimed()
    assert sweep().paged == 1
    assert [said["run_id"] for said in heard] == [str(run_id)]
    assert rows.row(run_id)["status"] == Status.QUEUED


def test_an_open_episode_is_one_for_a_run(stage: Stage, heard: list[Data], pager: Page, database: Database) -> None:
    run_id = stage.unclaimed()
    pager()
    with pytest.raises(psycopg.errors.UniqueViolation), database.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.episodes (run_id, namespace, shape, since, facts)"
            " VALUES (%s, 'default', 'no_progress', now(), '{}')",
            [run_id],
        )
