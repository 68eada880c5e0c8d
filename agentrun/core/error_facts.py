"""What an error carries: HTTP status, headers, SQLSTATE, a provider's error words, the error it wraps.

Reads attributes of other people's objects by name and imports none of their packages. Nothing here raises, whatever
those attributes do.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

_CODE_IS_STATUS = frozenset({"google", "tornado", "urllib"})
"""Packages whose errors call the HTTP status `code`."""

_WORD_ATTRIBUTES = ("code", "type", "error_code", "provider_error_code", "provider_error_type")


def attribute(of: Any, name: str) -> Any:
    """The attribute, or None where there is none or asking for it raises."""
    try:
        return getattr(of, name, None)
    except Exception:
        return None


def name_of(of: type) -> str:
    """`httpx.ReadTimeout` wherever in httpx it is defined; builtins by their name alone."""
    package = package_of(of)
    return of.__qualname__ if package == "builtins" else f"{package}.{of.__qualname__}"


def qualified_name(of: type) -> str:
    """`ValueError`, `httpx.ReadTimeout`: as the type itself names its home; builtins without their module."""
    return of.__qualname__ if of.__module__ == "builtins" else f"{of.__module__}.{of.__qualname__}"


def package_of(of: type) -> str:
    """The top-level package of a type."""
    return str(of.__module__).partition(".")[0]


def inner_of(error: BaseException) -> BaseException | None:
    """The error that a wrapper stands for: SQLAlchemy's `orig`, urllib's `reason`, else the cause."""
    for inner in (attribute(error, "orig"), attribute(error, "reason"), error.__cause__):
        if isinstance(inner, BaseException) and inner is not error:
            return inner
    return None


def status_of(error: BaseException) -> int | None:
    """The HTTP status from 400 to 599 that the error carries, on itself or on its response."""
    names = ["status_code", "http_status", "status"]
    if any(package_of(of) in _CODE_IS_STATUS for of in type(error).__mro__):
        names.append("code")
    response = attribute(error, "response")
    candidates = [attribute(error, name) for name in names]
    candidates += [attribute(response, name) for name in ("status_code", "status")]
    candidates.append(_under(response, "ResponseMetadata", "HTTPStatusCode"))
    return next((int(c) for c in candidates if _is_int(c) and 400 <= c <= 599), None)


def headers_of(error: BaseException) -> Iterator[Any]:
    """Everything about the error that may be the headers of an answer."""
    response = attribute(error, "response")
    yield attribute(error, "headers")
    yield attribute(response, "headers")
    yield _under(response, "ResponseMetadata", "HTTPHeaders")


def sqlstate_of(error: BaseException) -> str | None:
    """The five characters in which a database says what went wrong."""
    for name in ("sqlstate", "pgcode"):
        state = attribute(error, name)
        if isinstance(state, str) and re.fullmatch("[0-9A-Z]{5}", state):
            return state
    return None


def words_of(error: BaseException) -> set[str]:
    """A provider's machine-readable words for what went wrong, like `insufficient_quota`."""
    said = [attribute(error, name) for name in _WORD_ATTRIBUTES]
    said.append(_under(attribute(error, "response"), "Error", "Code"))
    return {word for word in said if isinstance(word, str)}


def refusal_of(error: BaseException) -> str | None:
    """`ECONNREFUSED` and the like, where the operating system's refusal is the error or lies beneath it."""
    for link in _beneath(error):
        number = attribute(link, "errno")
        if name_of(type(link)) == "socket.gaierror":
            return "name not resolved"
        if isinstance(link, OSError) and number in errno.errorcode:
            return errno.errorcode[number]
    return None


def model_of(error: BaseException) -> str | None:
    """The model that a provider's error is about."""
    return _plain(attribute(error, "model_name"))


def host_of(error: BaseException) -> str | None:
    """The host that an HTTP error is about: neither port, user, path nor query."""
    for of in (attribute(error, "response"), attribute(error, "request"), error):
        url = attribute(of, "url")
        host = attribute(url, "host") or _host_in(url)
        if _plain(host):
            return _plain(host)
    return None


def _beneath(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(10):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _host_in(url: Any) -> str | None:
    found = re.match(r"[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?([a-z0-9.-]+)", url, re.IGNORECASE) if _is_str(url) else None
    return found[1] if found is not None else None


def _plain(text: Any) -> str | None:
    """A name as configuration has them; anything else is not repeated."""
    return text if _is_str(text) and re.fullmatch(r"[\w.:/@+-]{1,100}", text) else None


def _under(of: Any, first: str, second: str) -> Any:
    try:
        return cast("Mapping[str, Any]", of)[first][second] if isinstance(of, Mapping) else None
    except Exception:
        return None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_str(value: Any) -> bool:
    return isinstance(value, str)
