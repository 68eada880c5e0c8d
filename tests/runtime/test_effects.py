"""What functions declare of themselves: by an effect or its word, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import ConfigurationError, Effect, InvalidRequest, UnknownKind, effect, remote_step
from agentrun.runtime.effects import declared
from agentrun.runtime.kinds import Registry
from agentrun.runtime.remotesteps import remote_steps


@pytest.mark.parametrize("said", Effect)
def test_an_effect_is_declared_by_its_word_too(said: Effect, kinds: Registry) -> None:
    for word in (said, str(said)):
        of_function = declared(effect(word)(lambda: None))
        assert of_function is not None
        assert of_function.effect is said
    remote_step(f"by its word: {said}", effect=str(said))(lambda: None)
    step = remote_steps.get(f"by its word: {said}")
    assert step is not None
    assert step.declares.effect is said


@pytest.mark.parametrize("declare", [effect, lambda word: remote_step("misspelt", effect=word)])
def test_what_is_no_effect_is_refused_where_it_is_declared(declare: Callable[[Any], Any]) -> None:
    for word in ("readonly", "READ_ONLY", None if declare is effect else "", print):
        with pytest.raises(ConfigurationError, match="read_only, idempotent_write, non_idempotent_write"):
            declare(word)


@pytest.mark.parametrize("approval", ["no", 1, None])
def test_an_approval_is_true_false_or_a_rule(approval: Any) -> None:
    with pytest.raises(ConfigurationError, match="`approval` of an effect must be True, False or a function of"):
        effect("read_only", approval=approval)


def test_a_remote_step_is_asked_by_its_reconcile_whatever_says_its_effect(kinds: Registry) -> None:
    def of_step(key: str) -> None: ...

    def of_function(key: str) -> None: ...

    @effect("non_idempotent_write", reconcile=of_function)
    def pay() -> None: ...

    remote_step("undeclared", reconcile=of_step)(lambda: None)
    remote_step("declared", reconcile=of_step)(pay)
    remote_step("its own")(pay)
    said = {name: step.declares.reconcile for name, step in remote_steps.snapshot().items()}
    assert (said["undeclared"], said["declared"], said["its own"]) == (of_step, of_step, of_function)


def test_what_a_remote_step_is_called_and_takes_is_told_where_it_does_not_fit(kinds: Registry) -> None:
    remote_step("of one")(lambda number: None)
    remote_step("of two")(lambda name, age: None)
    with pytest.raises(
        UnknownKind, match="no remote step `of on` is registered in this process; did you mean `of one`"
    ):
        remote_steps.require("of on")
    with pytest.raises(InvalidRequest, match="the function takes an object of `name`, `age`"):
        remote_steps.require("of two").encode_input("ann")
