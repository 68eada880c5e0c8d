from __future__ import annotations

import sys

import pytest

from examples.support_desk.models import DemoModelError, choose_model


def test_without_configuration_the_scripted_model_works_and_says_so():
    choice = choose_model({})

    assert choice.scripted
    assert choice.model.model_name == "scripted model"
    assert "scripted model" in choice.label
    assert "AGENTRUN_DEMO_MODEL" in choice.label


def test_a_configured_model_is_used():
    choice = choose_model({"AGENTRUN_DEMO_MODEL": "test"})

    assert (choice.scripted, choice.label) == (False, "test")


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "groq", None)
    monkeypatch.delitem(sys.modules, "pydantic_ai.providers.groq", raising=False)
    monkeypatch.delitem(sys.modules, "pydantic_ai.models.groq", raising=False)
    with pytest.raises(DemoModelError, match=r"pydantic-ai-slim\[groq\].*unset AGENTRUN_DEMO_MODEL"):
        choose_model({"AGENTRUN_DEMO_MODEL": "groq:some-model"})


def test_a_missing_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(DemoModelError, match="OPENAI_API_KEY"):
        choose_model({"AGENTRUN_DEMO_MODEL": "openai:gpt-5"})


def test_an_unknown_model_is_refused():
    with pytest.raises(DemoModelError, match="Unknown model: nonsense"):
        choose_model({"AGENTRUN_DEMO_MODEL": "nonsense"})


@pytest.mark.parametrize("delay", ["soon", "-1", "nan", "3600"])
def test_a_delay_that_is_no_number_of_seconds_is_refused(delay: str):
    with pytest.raises(DemoModelError, match="AGENTRUN_DEMO_DELAY_SECONDS"):
        choose_model({"AGENTRUN_DEMO_DELAY_SECONDS": delay})
