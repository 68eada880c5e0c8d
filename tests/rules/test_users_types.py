"""What a user's type checker makes of bodies and producers is what they get: `users_types.py` says it line by line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAID = ROOT / "tests/rules/users_types.py"


def checked(*files: Path) -> subprocess.CompletedProcess[str]:
    """pyright, as strict as this project's own settings have it."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.slow
def test_results_have_the_types_of_what_was_called() -> None:
    done = checked(SAID)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_check_can_tell(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(SAID.read_text().replace("ctx.write(pay, 3), str)", "ctx.write(pay, 3), int)"))
    done = checked(wrong)
    assert done.returncode == 1
    assert done.stdout.count("reportAssertTypeFailure") == 2, done.stdout
