"""What a user's type checker makes of bodies and producers is what they get: `users_types.py` says it line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAID = ROOT / "tests/rules/users_types.py"
WRONG = "wrong.py"


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By file, the rules that pyright says are broken, as strict as this project's own settings have it.

    Of what users write, and of the same with a wrong type in it: one run looks at both, which takes half as long.
    """
    wrong = tmp_path_factory.mktemp("types") / WRONG
    wrong.write_text(SAID.read_text().replace("ctx.write(pay, 3), str)", "ctx.write(pay, 3), int)"))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(SAID), str(wrong)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] == 2, done.stdout
    found: dict[str, list[str]] = {SAID.name: [], WRONG: []}
    for each in said["generalDiagnostics"]:
        if each["severity"] == "error":
            found[Path(each["file"]).name].append(each.get("rule", each["message"]))
    return found


@pytest.mark.slow
def test_results_have_the_types_of_what_was_called(errors: dict[str, list[str]]) -> None:
    assert errors[SAID.name] == []


@pytest.mark.slow
def test_the_check_can_tell(errors: dict[str, list[str]]) -> None:
    assert errors[WRONG].count("reportAssertTypeFailure") == 2, errors[WRONG]
