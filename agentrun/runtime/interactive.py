"""Synchronous runs: claimed at birth, executed in the caller's process, leased and fenced like any other (ADR-141)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any
from uuid import UUID

from agentrun.core.codec import digest, within
from agentrun.core.errors import NotAllowed, RunFailed
from agentrun.core.words import Outcome, Segment, Status
from agentrun.runtime.checks import checked_name
from agentrun.runtime.commands import Commands, Wishes
from agentrun.runtime.engine import Engine
from agentrun.runtime.kinds import Kind, kind_of
from agentrun.runtime.segment import Report, run_claimed
from agentrun.store.births import BORN_RUNNING, BY_KEYS
from agentrun.store.connect import type_of_row
from agentrun.store.reads import CLAIM_LANDED


class Interactive:
    """Runs bodies here and now, on one engine."""

    def __init__(self, engine: Engine, commands: Commands) -> None:
        self._engine, self._commands = engine, commands

    def run(self, kind: str | Callable[..., Any], request: Any, wishes: Wishes, idempotency_key: str | None) -> Any:
        """Execute a run in an interactive segment and return its typed result.

        A registered kind keeps its request: if this process dies, the reaper requeues the run and a worker goes on
        from its journal. A function that is no kind keeps none, and is dead-lettered instead (`not_retryable`).

        Where the caller is interrupted (Ctrl-C, `sys.exit` in a signal handler), the run is handed back.

        Raises UnknownKind, InvalidRequest, NotAllowed in a process that drains, and RunFailed where the run ends, or
        goes on elsewhere, without a result.
        """
        refuse_draining(self._engine)
        body, params = self._born(kind, request, wishes, idempotency_key)
        asked_at = time.monotonic()
        # The connection may have broken after the birth had committed: then the run is there, and ours.
        row = self._engine.database.row(BORN_RUNNING, params) or self._engine.database.row(CLAIM_LANDED, params)
        if row is None:
            return self._earlier(body, params)
        claimed = row | {"request": params["request_text"], "keeps_request": params["request"] is not None}
        future = self._engine.submit(run_claimed(self._engine, claimed, params["by"], asked_at, kind=body))
        return self._result(body, awaited(self._engine, params["run_id"], future))

    def _born(
        self, kind: str | Callable[..., Any], request: Any, wishes: Wishes, idempotency_key: str | None
    ) -> tuple[Kind, Mapping[str, Any]]:
        registered = self._engine.registry.require(kind) if isinstance(kind, str) else None
        body = registered or kind_of(_named(kind), _function(kind))
        params = self._commands.shared(body.name, body.options, wishes)
        key = checked_name("idempotency_key", idempotency_key) if idempotency_key is not None else None
        settings = self._engine.settings
        what = f"the request of kind `{body.name}`"
        token = self._engine.token()
        text = within(
            body.encode_request(request), settings.max_request_bytes, what=what, setting="AGENTRUN_MAX_REQUEST_BYTES"
        )
        return body, params | {
            "run_id": self._commands.new_id(),
            "request": text if registered else None,
            "request_text": text,
            "digest": digest(text) if key else None,
            "key": key,
            "lease": settings.lease_seconds,
            "by": self._engine.owner(Segment.INTERACTIVE),
            "claim": token,
            "data": json.dumps({"segment": str(Segment.INTERACTIVE), "claim": token}),
        }

    def _result(self, body: Kind, report: Report) -> Any:
        if report.outcome == Outcome.COMPLETED and report.result is not None:
            return body.result.validate_json(report.result)
        if report.outcome == Outcome.LEASE_LOST:
            detail = _closed(report.run_id) if self._engine.closed else "another process has taken the run over"
            raise RunFailed(str(report.run_id), "running", "lease_lost", detail)
        if report.outcome == Outcome.HANDED_BACK:
            raise RunFailed(str(report.run_id), str(report.outcome), None, _handed_back(report.run_id))
        raise _failed(report.run_id, str(report.outcome), report.reason, report.error)

    def _earlier(self, body: Kind, params: Mapping[str, Any]) -> Any:
        """The idempotency key is taken: the earlier run's result, where it has one.

        Without a key, the run was born here over a connection that broke, and is somebody else's by now.
        """
        if params["key"] is None:
            return self._result(body, Report(params["run_id"], Outcome.LEASE_LOST))
        rows: list[type_of_row] = self._engine.database.rows(BY_KEYS, {**params, "keys": [params["key"]]})
        run = self._commands.status(self._commands.same_as_before(params, rows))
        if not run.status.final:
            raise NotAllowed(
                f"run `{run.id}` has this idempotency key and is {run.status}; wait for it with client.wait"
            )
        if run.status is not Status.COMPLETED:
            raise _failed(run.id, run.status, run.reason, run.error)
        return body.result.validate_python(run.result)


def awaited(engine: Engine, run_id: UUID, segment: Future[Report]) -> Report:
    """The end of a segment that somebody waits for here. Who stops waiting because the process ends hands it back."""
    try:
        return segment.result()
    except CancelledError:
        if not engine.closed:
            raise
        # The close found it waiting for a write in flight: whatever becomes of that, this process has lost the run.
        return Report(run_id, Outcome.LEASE_LOST)
    finally:
        if not segment.done():
            engine.release(run_id)


def refuse_draining(engine: Engine) -> None:
    """Raises NotAllowed: a process that drains begins nothing."""
    if engine.draining:
        raise NotAllowed("this process drains and begins no segment; enqueue the run, or ask another process")


def _closed(run_id: UUID) -> str:
    return (
        "this process closed its client before the run had ended; once its lease is over, the sweep gives it to a "
        f"worker, or settles it where nobody may go on: ask with `agentrun show {run_id}`, or with another client"
    )


def _handed_back(run_id: UUID) -> str:
    return (
        "this process drains, or closed its client, before the run had ended; it is queued, and a worker goes on with "
        f"it: wait for it with another client, or with `agentrun wait {run_id}`"
    )


def _failed(run_id: UUID, status: str, reason: str | None, error: Mapping[str, Any] | None) -> RunFailed:
    detail = f"{error.get('type')}: {error.get('message')}" if error else None
    return RunFailed(str(run_id), status, reason, detail)


def _named(kind: str | Callable[..., Any]) -> str:
    return kind if isinstance(kind, str) else getattr(kind, "__qualname__", type(kind).__name__)


def _function(kind: str | Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(kind, str):
        raise NotAllowed(f"`{kind}` is no function")
    return kind
