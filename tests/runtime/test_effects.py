"""What functions declare of themselves: by an effect or its word, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrun import Effect, effect, remote_step
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
        with pytest.raises(ValueError, match="read_only, idempotent_write, non_idempotent_write"):
            declare(word)
