"""The errors that users see: one tree, an exit code each, and every one drawn in the module's docstring."""

from __future__ import annotations

import inspect
import re

import pytest

import agentrun
from agentrun.core import errors
from agentrun.core.errors import AgentrunError, BodyError

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, AgentrunError)]
AT_THE_COMMAND_LINE = [each for each in ALL if not issubclass(each, BodyError) and each is not AgentrunError]


def test_every_error_at_the_command_line_has_an_exit_code_of_its_own() -> None:
    codes = {each.__name__: each.exit_code for each in AT_THE_COMMAND_LINE}
    assert all("exit_code" in vars(each) for each in AT_THE_COMMAND_LINE), codes
    assert len(set(codes.values())) == len(codes), codes


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_no_error_ends_as_success_or_as_wrong_usage(error: type[AgentrunError]) -> None:
    assert error.exit_code not in (0, 2)
    assert 0 < error.exit_code < 126


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_is_drawn_in_the_tree_and_explained(error: type[AgentrunError]) -> None:
    assert re.search(rf"\b{error.__name__}\b", errors.__doc__ or "")
    assert error.__doc__


@pytest.mark.parametrize("error", [each for each in ALL if each is not BodyError], ids=lambda error: error.__name__)
def test_every_error_can_be_imported_from_the_package(error: type[AgentrunError]) -> None:
    assert getattr(agentrun, error.__name__) is error


def test_an_error_can_be_caught_as_what_it_is_a_case_of() -> None:
    assert issubclass(errors.UnknownKind, errors.InvalidRequest)
    assert issubclass(errors.SchemaMismatch, errors.ConfigurationError)
    assert issubclass(errors.NamespaceMismatch, errors.NotFound)


def test_control_flow_is_no_exception_that_a_body_could_swallow() -> None:
    from agentrun.core import outcome

    stops = [each for _, each in inspect.getmembers(outcome, inspect.isclass)]
    assert len(stops) >= 6
    assert not any(issubclass(each, Exception) for each in stops)
