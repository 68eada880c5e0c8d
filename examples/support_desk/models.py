"""Chooses the model that the support desk works with, and says which one it is.

It owns the variables `AGENTRUN_DEMO_MODEL` and `AGENTRUN_DEMO_DELAY_SECONDS`. It never calls a model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from examples.support_desk.scripted import NAME, scripted_model

MODEL_VARIABLE = "AGENTRUN_DEMO_MODEL"
DELAY_VARIABLE = "AGENTRUN_DEMO_DELAY_SECONDS"
DEFAULT_DELAY_SECONDS = 0.3


class DemoModelError(RuntimeError):
    """The configured model cannot be used: which variable says so, what is missing, and what to do about it."""


@dataclass(frozen=True)
class Choice:
    model: Model
    label: str
    scripted: bool


def choose_model(environ: Mapping[str, str] = os.environ) -> Choice:
    """The model that `AGENTRUN_DEMO_MODEL` names, as in `openai:gpt-5`; without it, the scripted model.

    Raises `DemoModelError` when the name is unknown, the provider's package is not installed (it names the extra),
    the provider's key is missing (it names the variable), or the delay is not a number of seconds.
    """
    name = environ.get(MODEL_VARIABLE, "").strip()
    if not name:
        label = f"the {NAME} (rules, no LLM; set {MODEL_VARIABLE}=openai:… and its key to use a real model)"
        return Choice(scripted_model(_delay_seconds(environ)), label, scripted=True)
    return Choice(_real_model(name), name, scripted=False)


def _real_model(name: str) -> Model:
    way_out = f"or unset {MODEL_VARIABLE} to use the {NAME}"
    try:
        return infer_model(name)
    except ImportError as error:
        # The provider's own message names the package and pydantic-ai's extra for it.
        raise DemoModelError(f"{MODEL_VARIABLE}={name}: {error}; {way_out}") from error
    except (UserError, ValueError) as error:
        raise DemoModelError(f"{MODEL_VARIABLE}={name}: {_first_sentence(str(error))}; {way_out}") from error


def _first_sentence(text: str) -> str:
    """Without the library's advice for newcomers, which points away from this demo."""
    return text.split(" To try Pydantic AI", 1)[0].rstrip(". ")


def _delay_seconds(environ: Mapping[str, str]) -> float:
    text = environ.get(DELAY_VARIABLE, "").strip() or str(DEFAULT_DELAY_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 60:
        raise DemoModelError(f"{DELAY_VARIABLE}={text}: give a number of seconds from 0 to 60")
    return seconds
