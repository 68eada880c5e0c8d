"""What was measured on what: cores, memory, disk, versions, PostgreSQL's settings. Never the machine's name."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from agentrun import Settings
from bench.common import Bench
from bench.measure import median
from bench.nodes import ROOT

_PACKAGES = ("agentrun", "celery", "kombu", "redis", "psycopg", "pydantic", "SQLAlchemy")
_POSTGRES = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "wal_sync_method",
    "shared_buffers", "max_wal_size", "checkpoint_timeout", "max_connections", "autovacuum", "io_method", "jit",
    "random_page_cost",
)  # fmt: skip


def described(bench: Bench) -> dict[str, Any]:
    """Everything that a reader needs to judge the figures."""
    names = bench.settings()
    return {
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            "fdatasync_us": _fdatasync(bench.directory),
            "load_before": round(os.getloadavg()[0], 2),
        },
        "versions": {name: version(name) for name in _PACKAGES}
        | {
            "python": platform.python_version(),
            "redis server": str(bench.redis.info()["redis_version"]),  # pyright: ignore[reportIndexIssue]
            "commit": _commit(),
        },
        "postgresql": {name: bench.value(f"SHOW {name}") for name in _POSTGRES},
        "agentrun": {name: getattr(names, name) for name in _of_interest()},
    }


def summary(facts: dict[str, Any]) -> str:
    """For the name of the results file."""
    machine, versions = facts["machine"], facts["versions"]
    system = machine["system"].lower().replace(" ", "-")
    python, postgres = (".".join(text.split(".")[:2]) for text in (versions["python"], _server(facts)))
    return f"{system}-{machine['cores']}cores-{machine['memory_gb']:.0f}gb-python{python}-postgresql{postgres}"


def _server(facts: dict[str, Any]) -> str:
    return facts["postgresql"]["server_version"].split()[0]


def _of_interest() -> list[str]:
    return [name for name in Settings.model_fields if name.endswith("_seconds") or name == "max_connections"]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _fdatasync(directory: Path) -> int:
    """Microseconds for 8 kB to reach the disk where the database lies: the least that a commit costs."""
    sync = getattr(os, "fdatasync", os.fsync)
    with (directory / "sync").open("wb", buffering=0) as file:
        times: list[float] = []
        for _ in range(200):
            file.seek(0)
            file.write(bytes(8192))
            began = time.perf_counter()
            sync(file.fileno())
            times.append(time.perf_counter() - began)
    return round(median(times) * 1e6)


def _commit() -> str:
    """The checkout's commit; "+" for changes on top."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
