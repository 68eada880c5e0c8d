"""Cases of what people are told, once to each hook and while it is true; and of the episodes of who stands still."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

from agentrun.core.words import Reason, Status
from agentrun.store import episodes, notices
from tests.guards.scene import Scene, case

ANNOUNCES = ("announce_waiting", "announce_stalled", "announce_dead")
OUTDATING = ("drop_notices", "take_notice")
ENDS = ("notice_delivered", "notice_failed")
LONG_AGO = "=now() - interval '1 hour'"


def news(s: Scene, **columns: Any) -> UUID:
    """A run of which there is something to tell."""
    match s.statement.name:
        case "announce_stalled":
            return stranded(s)
        case "announce_dead":
            return s.rows.final(Status.FAILED, Reason.NOT_RETRYABLE)
        case _:
            run_id = s.rows.waiting(owner=str(uuid4()))
            s.rows.wait(run_id, **columns)
            return run_id


def stranded(s: Scene) -> UUID:
    run_id = s.rows.waiting()
    s.first(episodes.OPEN, run_id, shape="never_resolved", facts="{}", since=s.row(run_id)["created_at"])
    return run_id


def told(s: Scene, run_id: UUID | None = None) -> list[tuple[str, int]]:
    """Which hooks heard of the run, and in which round."""
    return sorted((row["hook"], row["round"]) for row in s.stored(run_id or s.run)[7])


def heard(s: Scene, hook: str, age: str, namespace: str | None = None) -> None:
    """The hook heard of everything until then."""
    name = f"told of {s.statement.name.removeprefix('announce_')}: {hook}"
    with s.database.connection() as connection:
        connection.execute(
            "INSERT INTO agentrun.sweeps (namespace, name, swept_at) VALUES (%s, %s, now() - %s::interval)",
            [namespace or s.rows.namespace, name, age],
        )


# ---- announcing


@case(*ANNOUNCES)
def news_is_told_once_to_each_hook(s: Scene) -> None:
    s.run = news(s)
    s.refused(hooks=["a"], namespace=uuid4().hex)
    s.lands(hooks=["a"])
    s.refused(hooks=["a"])
    s.lands(hooks=["a", "b"])
    assert told(s) == [("a", 1), ("b", 1)]
    s.run = news(s)
    s.lands(hooks=["a"])


@case(*ANNOUNCES)
def what_was_told_takes_no_place_of_what_was_not(s: Scene) -> None:
    both = [news(s), news(s)]
    for _ in both:
        assert len(s.do(hooks=["a"], limit=1)) == 1
    assert [told(s, each) for each in both] == [[("a", 1)]] * 2


@case("announce_waiting", "remind_waiting")
def only_people_are_told_and_only_what_they_can_answer(s: Scene) -> None:
    s.run = news(s)
    reminding(s)
    s.set("waits", s.run, kind="timer")
    s.refused(hooks=["a"])
    s.set("waits", s.run, kind="signal", status="resolved", resolved_at="=now()")
    s.refused(hooks=["a"])


@case("announce_waiting", "remind_waiting")
def what_is_told_of_a_wait_is_of_its_own_run(s: Scene) -> None:
    both: list[UUID] = []
    for _ in range(2):
        s.run = news(s)
        reminding(s)
        both.append(s.run)
    assert len(s.do(hooks=["a"])) == 2
    for each in both:
        owners = [json.loads(row["data"])["owner"] for row in s.stored(each)[7]]
        assert set(owners) == {s.row(each)["owner"]}


@case("announce_waiting")
def a_wait_that_is_older_than_what_its_hook_heard_is_not_looked_at(s: Scene) -> None:
    s.run = news(s, created_at="2020-01-01")
    heard(s, "a", "0")
    heard(s, "b", "0", namespace=uuid4().hex)
    s.refused(hooks=["a"])
    s.lands(hooks=["a", "b"])
    assert told(s) == [("b", 1)]


@case("announce_dead")
def a_hook_hears_of_the_dead_since_it_was_last_told_and_a_new_one_of_the_last_minutes(s: Scene) -> None:
    s.run = news(s)
    s.set("runs", s.run, finished_at=LONG_AGO)
    heard(s, "a", "2 hours")
    heard(s, "b", "2 hours", namespace=uuid4().hex)
    heard(s, "c", "0")
    s.refused(hooks=["b"])
    s.lands(hooks=["a", "b", "c"])
    assert told(s) == [("a", 1)]


@case("announce_dead")
def only_dead_letters_are_told(s: Scene) -> None:
    s.run = s.rows.final(Status.FAILED, Reason.DEADLINE_EXCEEDED)
    s.refused(hooks=["a"])
    s.run = s.rows.final(Status.CANCELLED)
    s.set("runs", s.run, reason="not_retryable")
    s.refused(hooks=["a"])


@case("announce_stalled")
def a_closed_episode_is_not_told(s: Scene) -> None:
    s.run = news(s)
    s.set("episodes", s.run, closed_at="=now()")
    s.refused(hooks=["a"])


def reminding(s: Scene) -> None:
    """Its hook heard of the run's wait a while ago, and is to be reminded; a case of announcing needs none of it."""
    if s.statement.name != "remind_waiting":
        return
    s.first(notices.ANNOUNCE[next(iter(notices.ANNOUNCE))][0], s.run, hooks=["a"])
    s.set("notices", s.run, created_at=LONG_AGO)
    s.set("waits", s.run, remind_at="=now() - interval '1 s'", remind_seconds=60)


@case("remind_waiting")
def a_hook_is_reminded_of_what_it_heard_when_that_is_due(s: Scene) -> None:
    s.run, other = news(s), news(s)
    s.set("waits", other, remind_at=LONG_AGO, remind_seconds=60)
    s.refused(hooks=["a"])
    reminding(s)
    s.set("notices", other, created_at="=now()")
    s.others = [other]
    s.refused(hooks=["a"], namespace=uuid4().hex)
    s.refused(hooks=["b"])
    s.set("waits", s.run, remind_at="=now() + interval '1 hour'")
    s.refused(hooks=["a"])
    s.set("waits", s.run, remind_at="=now() - interval '1 s'")
    s.lands(hooks=["a"])
    s.refused(hooks=["a"])
    assert told(s) == [("a", 1), ("a", 2)]


@case("remind_waiting")
def what_a_hook_never_heard_of_it_is_not_reminded_of(s: Scene) -> None:
    s.run = news(s)
    reminding(s)
    s.others, s.run = [s.run], news(s)
    s.set("waits", s.run, remind_at=LONG_AGO, remind_seconds=60)
    s.set("waits", s.others[0], remind_at="=now() + interval '1 hour'")
    s.refused(hooks=["a"])


@case("up_to_date")
def a_hook_is_up_to_date_with_each_occasion(s: Scene) -> None:
    for _ in range(2):
        assert {row["name"] for row in s.do(hooks=["a", "b"], occasion="dead")} == {
            "told of dead: a",
            "told of dead: b",
        }


# ---- what nobody needs to hear any more


def notice(s: Scene, run_id: UUID, **columns: Any) -> int:
    """A notice that is due."""
    values = {"namespace": s.rows.namespace, "run_id": run_id, "occasion": "waiting", "hook": "a"} | columns
    values.setdefault("subject", str(uuid4()))
    with s.database.connection() as connection:
        row = connection.execute(
            f"INSERT INTO agentrun.notices ({', '.join(values)}, due_at)"  # type: ignore[arg-type]
            f" VALUES ({', '.join(['%s'] * len(values))}, now()) RETURNING id",
            list(values.values()),
        ).fetchone()
    assert row is not None
    return row["id"]


def outdated(s: Scene) -> None:
    """Of the run's notice: it is dropped, and is not told."""
    asked = {"hooks": ["a"], "occasion": "waiting", "again_in": 60.0}
    (s.lands if s.statement.name == "drop_notices" else s.refused)(**asked)


def up_to_date(s: Scene) -> None:
    """Of the run's notice: it is told, and is not dropped."""
    asked = {"hooks": ["a"], "occasion": "waiting", "again_in": 60.0}
    (s.refused if s.statement.name == "drop_notices" else s.lands)(**asked)


@case(*OUTDATING)
def a_notice_of_a_wait_is_told_while_that_is_open(s: Scene) -> None:
    """Whatever became of other waits."""
    for open_one, to_be_told in ((True, up_to_date), (False, outdated)):
        s.run, other = s.rows.waiting(), s.rows.waiting()
        mine, others = s.rows.wait(s.run), s.rows.wait(other)
        notice(s, s.run, wait_id=mine)
        s.set("waits", other if open_one else s.run, status="expired", resolved_at="=now()")
        assert others != mine
        to_be_told(s)


@case(*OUTDATING)
def a_notice_of_an_episode_is_told_while_that_is_open(s: Scene) -> None:
    for open_one, to_be_told in ((True, up_to_date), (False, outdated)):
        s.run, other = stranded(s), stranded(s)
        notice(s, s.run, episode_id=s.stored(s.run)[6][0]["id"])
        s.set("episodes", other if open_one else s.run, closed_at="=now()")
        to_be_told(s)


@case(*OUTDATING)
def a_notice_that_is_neither_stays_true(s: Scene) -> None:
    s.run = s.rows.final(Status.FAILED)
    notice(s, s.run)
    up_to_date(s)


@case(*OUTDATING)
def a_later_round_for_the_same_hook_replaces_a_notice(s: Scene) -> None:
    for same, to_be_told in (
        ({"subject": "another"}, up_to_date),
        ({"hook": "b"}, up_to_date),
        ({"occasion": "dead"}, up_to_date),
        ({"round": 1}, up_to_date),
        ({}, outdated),
    ):
        s.run, later = s.rows.waiting(), s.rows.waiting()
        about = {"subject": f"{s.run} x", "round": 2, "hook": "a", "occasion": "waiting"}
        notice(s, s.run, **about | {"round": 1})
        if "round" not in same:
            notice(s, later, **about | same | ({"subject": str(uuid4())} if "subject" in same else {}))
            s.set("notices", later, due_at="=now() + interval '1 hour'")
        to_be_told(s)


@case(*OUTDATING)
def only_notices_of_the_namespace_that_have_not_ended_are_looked_at(s: Scene) -> None:
    s.run = s.rows.waiting()
    wait_id = s.rows.wait(s.run)
    notice(s, s.run, wait_id=wait_id)
    drops = s.statement.name == "drop_notices"
    if drops:
        s.set("waits", s.run, status="expired", resolved_at="=now()")
    asked = {"hooks": ["a"], "occasion": "waiting", "again_in": 60.0}
    s.refused(**asked, namespace=uuid4().hex)
    s.set("notices", s.run, ended_at=LONG_AGO, ending="delivered")
    s.refused(**asked)
    s.set("notices", s.run, ended_at=None, ending=None)
    s.lands(**asked)


@case("take_notice")
def a_notice_is_taken_when_it_is_due_by_who_tells_that_hook_and_occasion(s: Scene) -> None:
    s.run, other = s.rows.waiting(), s.rows.waiting()
    notice(s, s.run)
    notice(s, other)
    s.set("notices", s.run, due_at=LONG_AGO)
    s.others = [other]
    asked = {"hooks": ["a"], "occasion": "waiting", "again_in": 60.0}
    s.lands(**asked)
    s.others, s.run = [s.run], other
    s.refused(**asked | {"hooks": ["b"]})
    s.refused(**asked | {"occasion": "dead"})
    s.lands(**asked)
    s.refused(**asked)


@case(*ENDS)
def a_notice_ends_once(s: Scene) -> None:
    def due() -> UUID:
        run_id = s.rows.waiting()
        notice(s, run_id)
        return run_id

    s.make(due)
    mine = s.stored(s.run)[7][0]["id"]
    s.lands(id=mine, last_error="away")
    s.set("notices", s.run, ended_at=LONG_AGO, ending="outdated")
    s.refused(id=mine, last_error="away")


# ---- episodes, and who looks for them


@case("open_episode")
def an_episode_is_opened_for_a_run_that_stands_still(s: Scene) -> None:
    s.make(s.rows.waiting)
    opened = {"shape": "never_resolved", "facts": "{}", "since": s.row()["created_at"]}
    s.refused(**opened, namespace=uuid4().hex)
    s.lands(**opened)
    s.refused(**opened)


@case("open_episode")
def a_run_that_moved_since_or_ended_has_no_episode(s: Scene) -> None:
    s.run = s.rows.waiting()
    opened = {"shape": "never_resolved", "facts": "{}", "since": s.row()["created_at"]}
    s.set("runs", s.run, claimed_at="=now() + interval '1 s'")
    s.refused(**opened)
    s.set("runs", s.run, claimed_at=None, status="cancelled", reason="cancelled", waiting_on=None,
          finished_at="=now()")  # fmt: skip
    s.refused(**opened)


@case("open_episode", "close_episodes")
def what_moves_is_the_run_itself(s: Scene) -> None:
    """Its moves and its steps, and nobody else's."""
    s.run = s.rows.waiting() if s.statement.name == "open_episode" else stranded(s)
    s.rows.fence(s.rows.running(), "w")
    opened = {"shape": "never_resolved", "facts": "{}", "since": s.row()["created_at"]}
    (s.lands if s.statement.name == "open_episode" else s.refused)(**opened)


@case("close_episodes")
def an_episode_is_closed_once_its_run_moves_or_ends(s: Scene) -> None:
    s.make(lambda: stranded(s))
    s.refused()
    s.set("runs", s.run, claimed_at="=now() + interval '1 s'")
    s.refused(namespace=uuid4().hex)
    s.lands()
    s.set("episodes", s.run, closed_at=LONG_AGO)
    s.refused()
    s.make(lambda: stranded(s))
    s.set("runs", s.run, status="cancelled", reason="cancelled", waiting_on=None, finished_at="=now()")
    s.lands()


@case("claim_pass")
def a_pass_is_made_by_one_in_its_time(s: Scene) -> None:
    asked = {"name": "page", "every": 60.0}
    assert s.do(**asked)
    assert s.do(**asked) == []
    assert s.do(**asked | {"name": "another"})
    with s.database.connection() as connection:
        connection.execute("UPDATE agentrun.sweeps SET swept_at = swept_at - interval '61 s'")
    assert s.do(**asked)
