"""Step keys of agents: equal at every replay, and never shared by two things that may differ."""

from __future__ import annotations

from typing import Any

import pytest

from agentrun.agents.scope import LONGEST_CALL_ID, Scope
from agentrun.core.outcome import LeaseLost


class Facts:
    """As much of a context as a scope looks at."""

    run_id = "0000-run"


def scope(prefix: str = "") -> Scope:
    facts: Any = Facts()
    return Scope(facts, prefix=prefix)


def test_positions_count_by_their_like() -> None:
    fresh = scope()
    assert [fresh.next_key(what) for what in ("model", "model", "start", "model")] == [
        "model:1", "model:2", "start:1", "model:3",
    ]  # fmt: skip


def test_the_same_call_has_one_key_and_another_call_under_its_id_its_own() -> None:
    fresh = scope()
    first, again, other = (fresh.call_key("c", identity) for identity in ("a", "a", "b"))
    assert first == again == "tool:c"
    assert other.startswith("tool:c~")
    assert fresh.call_key("c", "b") == other


def test_an_approved_call_is_another_step_than_the_one_that_asked() -> None:
    assert scope().call_key("c", "a", approved=True) == "tool:c:approved"


def test_a_call_that_failed_and_is_asked_for_again_is_a_new_step() -> None:
    fresh = scope()
    fresh.failed(fresh.call_key("c", "a"))
    assert fresh.call_key("c", "a") == "tool:c.2"


def test_a_long_call_id_stands_as_its_digest() -> None:
    long = "x" * (LONGEST_CALL_ID + 1)
    keys = {scope().call_key(name, "a") for name in (long, long + "y", long[:-1])}
    assert len(keys) == 3
    assert max(map(len, keys)) <= LONGEST_CALL_ID + len("tool:")


def test_calls_without_an_id_have_positions() -> None:
    fresh = scope("tool:c/")
    assert [fresh.call_key(None, "a") for _ in range(2)] == ["tool:c/tool:1", "tool:c/tool:2"]


def test_every_further_agent_in_a_scope_stands_apart() -> None:
    fresh = scope("tool:c/")
    ids = [fresh.begin_run() for _ in range(3)]
    assert ids == ["0000-run/tool:c", "0000-run/tool:c/run:2", "0000-run/tool:c/run:3"]
    assert [fresh.of_run(run_id).next_key("model") for run_id in ids] == [
        "tool:c/model:1", "tool:c/run:2/model:1", "tool:c/run:3/model:1",
    ]  # fmt: skip
    assert fresh.of_run("an id of the caller's").prefix == "tool:c/run:4/"


def test_nothing_follows_what_has_stopped_the_run() -> None:
    fresh = scope()
    fresh.inside("tool:c").stopped_by.append(LeaseLost())
    with pytest.raises(LeaseLost):
        fresh.go_on()
