"""The table of guards: every condition in the store's SQL, and the case that fails without it.

`python -m tests.guards [STATEMENT ...]`; exit 1 where one is not missed by any case.
"""

from __future__ import annotations

import sys
import textwrap

from tests.guards.mutants import CASES, Verdict, guards, judge, play
from tests.guards.stage import own_stage


def main(names: list[str]) -> int:
    """Judge, print, and say how many survived."""
    verdicts: list[Verdict] = []
    with own_stage() as database:
        for each in CASES:
            play(each, database)
        for condition in guards(names or None):
            verdicts.append(judge(condition, database))
            print(_line(verdicts[-1]), flush=True)
    missed = [each for each in verdicts if each.killed_by is None and each.excused is None]
    excused = sum(each.excused is not None for each in verdicts)
    caught = len(verdicts) - len(missed) - excused
    print(f"\n{len(verdicts)} guards: {caught} caught by a case, {excused} excused, {len(missed)} missed")
    return 1 if missed else 0


def _line(verdict: Verdict) -> str:
    guard = textwrap.shorten(str(verdict.condition), 90)
    if verdict.killed_by is not None:
        return f"{guard:<92} {verdict.killed_by.name.replace('_', ' ')}"
    return f"{guard:<92} " + (f"({verdict.excused})" if verdict.excused else "MISSED BY EVERY CASE")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
