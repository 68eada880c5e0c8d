"""Cases of births and of the sweep's questions: each finds what it asks for, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from agentrun.core.words import Effect, Status
from agentrun.store import journal
from tests.guards.scene import Scene, case

BIRTHS = ("enqueue", "enqueue_many", "born_running")
QUEUED = ("queues", "due_count", "due", "due_and_known")


@case(*BIRTHS)
def an_idempotency_key_has_one_run(s: Scene) -> None:
    def bear(key: str | None) -> list[dict[str, Any]]:
        s.run = uuid4()
        many = {"run_ids": [s.run], "requests": ["null"], "digests": ["d"], "keys": [key]}
        return s.do(key=key, kind="test", request="null", digest="d", tags=[], attributes="{}", priority=0, **many)

    assert bear("once")
    assert bear("once") == []
    assert bear("twice")
    assert bear(None)
    assert bear(None)


@case("by_keys")
def a_key_is_looked_up_in_its_namespace_and_kind(s: Scene) -> None:
    s.make(lambda: s.rows.queued(idempotency_key=str(uuid4())))
    key = s.row()["idempotency_key"]
    asked = {"keys": [key], "kind": "test"}
    assert [row["id"] for row in s.do(**asked)] == [s.run]
    for other in ({"kind": "another"}, {"namespace": "another"}, {"keys": ["another"]}):
        assert s.do(**asked | other) == []


@case("child_born")
def a_child_is_born_under_its_parents_epoch(s: Scene) -> None:
    s.make(s.rows.running)
    child = {"wait_id": uuid4(), "child_id": uuid4(), "child_kind": "test", "child_request": "null", "kind": "child",
             "child_queue": "agentrun", "child_priority": 0, "child_tags": [], "child_attributes": "{}"}  # fmt: skip
    s.refused(**child, epoch=0)
    s.parked_by_hand(s.run)
    s.refused(**child)
    s.make(s.rows.running)
    s.lands(**child)


@case("expired")
def only_what_runs_without_a_lease_has_expired(s: Scene) -> None:
    s.make(s.rows.running)
    s.rows.expire_lease(s.run)
    assert [row["id"] for row in s.do()] == [s.run]
    # What other cases left there may have expired meanwhile.
    assert s.run not in [row["id"] for row in s.do(namespace="another")]


@case("expired")
def an_expired_run_tells_of_its_own_write_that_cannot_be_repeated(s: Scene) -> None:
    def with_write(effect: Effect, *, reconcilable: bool = False, ended: bool = False) -> UUID:
        run_id = s.rows.running()
        s.rows.fence(run_id, "w", effect, reconcilable=reconcilable)
        if ended:
            assert s.rows.do(journal.FINISH, run_id, **s.rows.step("w"))
        s.rows.expire_lease(run_id)
        return run_id

    interrupted = with_write(Effect.NON_IDEMPOTENT_WRITE)
    plain = s.rows.running()
    s.rows.expire_lease(plain)
    taken = with_write(Effect.NON_IDEMPOTENT_WRITE)
    s.set("steps", taken, lease_expires_at="=now() + interval '1 hour'")
    others = [
        plain,
        taken,
        with_write(Effect.IDEMPOTENT_WRITE),
        with_write(Effect.NON_IDEMPOTENT_WRITE, reconcilable=True),
        with_write(Effect.NON_IDEMPOTENT_WRITE, ended=True),
    ]
    told = {row["id"]: row["write_in_flight"] for row in s.do()}
    assert told == {interrupted: True} | dict.fromkeys(others, False)


@case("in_flight")
def the_writes_in_flight_are_the_runs_own_and_have_not_ended(s: Scene) -> None:
    s.make(lambda: s.rows.fenced("w"))
    for key in ("ended", "reads", "taken", "lapsed"):
        s.rows.fence(s.run, key)
    assert s.rows.do(journal.FINISH, s.run, **s.rows.step("ended"))
    leases = {"taken": "1 hour", "lapsed": "-1 s"}
    with s.database.connection() as connection:
        connection.execute("UPDATE agentrun.steps SET effect = 'read_only' WHERE key = 'reads'")
        for key, lease in leases.items():
            connection.execute(
                "UPDATE agentrun.steps SET lease_expires_at = now() + %s::interval WHERE run_id = %s AND key = %s",
                [lease, s.run, key],
            )
    assert sorted(row["key"] for row in s.do()) == ["lapsed", "w"]


@case("in_flight")
def the_writes_in_flight_are_told_by_when_they_started_and_then_by_key(s: Scene) -> None:
    s.make(lambda: s.rows.fenced("b"))
    for key in ("c", "a", "first"):
        s.rows.fence(s.run, key)
    with s.database.connection() as connection:
        connection.execute(
            "UPDATE agentrun.steps SET started_at = now() - CASE WHEN key = 'first' THEN interval '1 s' ELSE '0 s' END"
            " WHERE run_id = %s",
            [s.run],
        )
    assert [row["key"] for row in s.do()] == ["first", "a", "b", "c"]


def a_worker(
    s: Scene,
    *,
    namespace: str | None = None,
    kinds: Sequence[str] = ("test",),
    queues: Sequence[str] = ("agentrun",),
    seen_at: str = "now()",
) -> None:
    """A process that was seen then."""
    with s.database.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.processes (id, namespace, name, kinds, queues, seen_at)"
            f" VALUES (%s, %s, 'p', %s, %s, {seen_at})",  # type: ignore[arg-type]
            [uuid4(), namespace or s.rows.namespace, list(kinds), list(queues)],
        )


@case(*QUEUED)
def only_queued_runs_of_the_namespace_are_due(s: Scene) -> None:
    a_worker(s, queues=list("abmnyz"))
    a_worker(s, queues=list("by"), namespace=f"another {s.rows.namespace}")
    for queue in ("m", "n"):
        s.rows.queued(queue=queue)
    for queue in ("a", "z"):
        s.set("runs", s.rows.running(queue=queue), due_at="=now()")
    for queue in ("b", "y"):
        s.set("runs", s.rows.queued(queue=queue), namespace=f"another {s.rows.namespace}")
    if s.statement.name == "queues":
        assert [row["queue"] for row in s.do()] == ["m", "n"]
        return
    assert {queue: _count(s, queue=queue) for queue in "abmnyz"} == dict.fromkeys("abyz", 0) | {"m": 1, "n": 1}


@case("due", "due_count", "due_and_known")
def what_is_due_later_is_not_due(s: Scene) -> None:
    a_worker(s)
    s.run = s.rows.queued()
    s.set("runs", s.run, due_at="=now() + interval '1 hour'")
    assert _count(s, grace=-7200.0) == 0
    s.rows.make_due(s.run)
    assert _count(s) == 1


@case("due", "due_and_known")
def what_became_due_just_now_has_its_wake_on_the_way(s: Scene) -> None:
    a_worker(s)
    s.run = s.rows.queued()
    s.rows.make_due(s.run)
    assert _count(s, grace=7200.0) == 0


@case("due_and_known")
def what_no_live_worker_of_the_queue_takes_is_left_out(s: Scene) -> None:
    s.run = s.rows.queued()
    s.rows.make_due(s.run)
    a_worker(s, namespace=f"another {s.rows.namespace}")
    a_worker(s, seen_at="now() - interval '1 hour'")
    a_worker(s, queues=["another"])
    a_worker(s, kinds=["another"])
    assert _count(s) == 0
    a_worker(s)
    assert _count(s) == 1


@case("deadlines")
def a_deadline_is_found_where_nobody_runs_and_it_has_passed(s: Scene) -> None:
    s.make(s.rows.queued)
    waits, runs = s.rows.waiting(), s.rows.running()
    for each in (s.run, waits, runs):
        s.rows.pass_deadline(each)
    s.set("runs", s.others[0], deadline_at="=now() + interval '1 hour'")
    done = s.rows.final(Status.COMPLETED)
    s.rows.pass_deadline(done)
    assert {row["id"] for row in s.do()} == {s.run, waits}
    assert s.do(namespace="another") == []


@case("process_seen", "process_gone", "swept")
def a_process_is_one_and_asks_for_its_own_sweep(s: Scene) -> None:
    mine, other = uuid4(), uuid4()
    name = s.statement.name
    with s.database.connection() as connection:
        sweeps = ((s.rows.namespace, "sweep", 60), (s.rows.namespace, "x", 1), (str(other), "sweep", 2))
        for namespace, of, age in sweeps:
            connection.execute(
                "INSERT INTO agentrun.sweeps (namespace, name, swept_at) VALUES (%s, %s, now() - %s * interval '1 s')",
                [namespace, of, age],
            )
        for each in (mine, other):
            connection.execute(
                "INSERT INTO agentrun.processes (id, namespace, name) VALUES (%s, %s, 'p')", [each, s.rows.namespace]
            )
        s.do(process_id=mine, name="sweep", kinds=[], queues=[], holds=0, draining=False)
        alive = connection.execute(
            "SELECT id FROM agentrun.processes WHERE namespace = %s", [s.rows.namespace]
        ).fetchall()
    assert {row["id"] for row in alive} == ({other} if name == "process_gone" else {mine, other})
    if name == "process_seen":
        (answer,) = s.do(process_id=mine, name="p", kinds=[], queues=[], holds=0, draining=False)
        assert 59 < float(answer["sweep_age"]) < 90


def _count(s: Scene, **params: Any) -> int:
    answer = s.do(**params)
    return answer[0]["due"] if s.statement.name == "due_count" else len(answer)
