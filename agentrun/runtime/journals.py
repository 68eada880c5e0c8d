"""A run's journal as a value: read from the database, or from the file that it was exported to. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from agentrun.core.codec import decode
from agentrun.core.errors import InvalidRequest
from agentrun.core.words import StepStatus
from agentrun.store.database import Database
from agentrun.store.reads import JOURNAL, RUN_BY_ID
from agentrun.store.waits import OF_RUN

FORMAT = 1
_RUN = (
    "id", "kind", "status", "reason", "request", "result", "owner", "tags", "attributes", "requeue_count", "epoch",
    "deadline_at",
)  # fmt: skip
_STEP = (
    "key", "kind", "name", "status", "effect", "attempt", "result", "error", "idempotency_key", "reconcilable",
    "args_digest", "epoch",
)  # fmt: skip
_WAIT = ("step_key", "kind", "name", "status", "resolution", "resolved_by", "comment", "child_id")
_JSON = ("request", "result", "error", "resolution")


@dataclass(frozen=True, slots=True)
class Journal:
    """What is recorded of one run: its row, its steps in order, its waits. Holds payloads."""

    run: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    waits: Sequence[Mapping[str, Any]]

    @classmethod
    def stored(cls, database: Database, run_id: UUID) -> Journal:
        """From the database. Raises InvalidRequest where no such run is there, or its request is not kept."""
        params = {"run_id": run_id}
        run = database.row(RUN_BY_ID, params)
        if run is None or run["request"] is None:
            raise InvalidRequest(f"run `{run_id}` cannot be replayed: {'no request is kept' if run else 'unknown'}")
        steps, waits = database.rows(JOURNAL, params), database.rows(OF_RUN, params)
        return cls(_part(run, _RUN), [_part(row, _STEP) for row in steps], [_part(row, _WAIT) for row in waits])

    @classmethod
    def parsed(cls, text: str) -> Journal:
        """From what `as_json` made. Raises InvalidRequest for anything else."""
        try:
            said = json.loads(text)
            if said["agentrun_journal"] != FORMAT:
                raise InvalidRequest(f"the journal has format {said['agentrun_journal']}; this version reads {FORMAT}")
            run = {**said["run"], "id": UUID(said["run"]["id"]), "deadline_at": _instant(said["run"]["deadline_at"])}
            return cls(
                _as_text(run), [_as_text(each) for each in said["steps"]], [_as_text(each) for each in said["waits"]]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"this is no exported journal ({type(error).__name__}: {error})") from None

    def as_json(self) -> str:
        """For a file, and for `parsed`: payloads included."""
        said = {
            "agentrun_journal": FORMAT,
            "run": _as_values(self.run),
            "steps": [_as_values(step) for step in self.steps],
            "waits": [_as_values(wait) for wait in self.waits],
        }
        return json.dumps(said, indent=1, default=str)


def _part(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _as_values(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: decode(value) if name in _JSON else value for name, value in part.items()}


def _as_text(part: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: json.dumps(part[name]) for name in _JSON if part.get(name) is not None}
    if part.get("status") == StepStatus.COMPLETED:
        # Nothing is a result, too.
        texts.setdefault("result", "null")
    if "request" in part:
        texts.setdefault("request", "null")
    return {**part, **texts}


def _instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
