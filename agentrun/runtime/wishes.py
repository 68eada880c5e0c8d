"""What a body wishes for one step (`ctx.options`). A verb that cannot keep a wish says so: none is passed over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from agentrun.core.errors import BodyError, InvalidRequest
from agentrun.runtime.checks import checked_name, checked_timeout
from agentrun.runtime.keys import checked_key, key_for
from agentrun.runtime.options import ONCE, Retries, as_retries


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a body asks for one step (see `Context.options`)."""

    key: str | None = None
    name: str | None = None
    retries: Retries = ONCE
    timeout: float | None = None
    retried: bool = False
    """Whether the body said `retries`. Those of its kind hold for the steps that may be repeated, and for no other."""

    def then(
        self, key: str | None, name: str | None, retries: Retries | int | None, timeout: timedelta | float | None
    ) -> Wishes:
        """What is said now in place of the same words said before; the others stay.

        Raises BodyError for what cannot be wished for.
        """
        try:
            return Wishes(
                key=checked_key(key) if key is not None else self.key,
                name=checked_name("name", name) if name is not None else self.name,
                retries=as_retries(retries) if retries is not None else self.retries,
                timeout=checked_timeout(timeout) if timeout is not None else self.timeout,
                retried=retries is not None or self.retried,
            )
        except InvalidRequest as error:
            raise BodyError(f"`ctx.options` was given what it cannot keep: {error}") from None

    def without(self, verb: str, *words: str, instead: str) -> None:
        """Raises BodyError where one of these was asked for: `verb` cannot keep it. `instead` is the next step."""
        asked = [word for word in words if self._asked(word)]
        if asked:
            said = " and ".join(f"`{word}`" for word in asked)
            raise BodyError(f"`{verb}` cannot keep {said} of `ctx.options`; {instead}")

    def _asked(self, word: str) -> bool:
        return self.retried if word == "retries" else getattr(self, word) is not None


class Wishing:
    """Part of what Context is: the verbs' way to what was wished for."""

    wishes: Wishes

    def _key_alone(self, verb: str, *, instead: str) -> str:
        """The key of a step that keeps nothing else of its wishes. Raises BodyError where more was asked for."""
        self.wishes.without(f"ctx.{verb}", "name", "retries", "timeout", instead=instead)
        return key_for(self.wishes.key)
