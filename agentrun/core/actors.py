"""Who may do what. The library checks where an actor is given; who calls without one acts for itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agentrun.core.errors import Forbidden, InvalidRequest, NotFound
from agentrun.core.records import Run


class Scope(StrEnum):
    """What an actor may be allowed. There is no wildcard: no scope, no right."""

    ENQUEUE = "run:enqueue"
    READ = "run:read"
    CANCEL = "run:cancel"
    APPROVE = "run:approve"
    INPUT = "run:input"
    OPERATE = "run:operate"


OWNER_MAY = frozenset({Scope.READ, Scope.CANCEL})


@dataclass(frozen=True, slots=True)
class Actor:
    """A person or service, by id, with its scopes: what it may do. `roles` are what it may be asked as.

    An approval or input that is put to a role is decided by actors of that role; what is put to nobody in particular,
    by any that has the scope. Raises InvalidRequest for an empty id.
    """

    id: str
    scopes: frozenset[Scope] = frozenset()
    roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest("an Actor's id is who acts, for the record, and must be a text that is not empty")


def may_enqueue(actor: Actor) -> None:
    """Raises Forbidden where the actor may not enqueue."""
    if Scope.ENQUEUE not in actor.scopes:
        raise Forbidden(f"`{actor.id}` may not enqueue: it needs the scope {Scope.ENQUEUE}")


def may_operate(actor: Actor) -> None:
    """Raises Forbidden where the actor may not operate what belongs to no single run: budgets, lists of failed runs."""
    if Scope.OPERATE not in actor.scopes:
        raise Forbidden(f"`{actor.id}` may not do this: it needs the scope {Scope.OPERATE}")


def named(name: str) -> str:
    """A plain name for the record. Raises InvalidRequest for an empty one: nobody could say later who it was."""
    if not name.strip():
        raise InvalidRequest("by is a name for the record, and this one is empty; say who acts")
    return name


def require(actor: Actor | str, scope: Scope, run: Run) -> str:
    """The actor's id. Raises NotFound where the actor may not even see the run, Forbidden where it may only see it.

    A plain string is a name for the record, not checked. Raises InvalidRequest for what is neither.
    """
    if isinstance(actor, str):
        return named(actor)
    if not isinstance(actor, Actor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"by is a name for the record or an Actor, not a value of type {type(actor).__name__}")
    owns = run.owner is not None and run.owner == actor.id
    if scope in actor.scopes or (owns and scope in OWNER_MAY):
        return actor.id
    if owns or Scope.READ in actor.scopes:
        raise Forbidden(f"`{actor.id}` may not do this to run `{run.id}`: it needs the scope {scope}")
    raise NotFound(f"no run `{run.id}`; `agentrun list` shows what is there")


def asked_of(actor: Actor | str, role: str | None, run: Run) -> None:
    """Raises Forbidden where a wait is put to a role that the actor does not have. A plain name is not checked."""
    if isinstance(actor, Actor) and role is not None and role not in actor.roles:
        raise Forbidden(f"`{actor.id}` cannot answer this for run `{run.id}`: it is put to the role `{role}`")


def may_read(actor: Actor | str, run: Run) -> bool:
    """Whether the actor may know what the run was asked and what it came to."""
    if isinstance(actor, str):
        return True
    return Scope.READ in actor.scopes or (run.owner is not None and run.owner == actor.id)
