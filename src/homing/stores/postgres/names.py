"""Which schema, which server: what a URL says, and how statements are written for that schema."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from homing.core.errors import ConfigError

DEFAULT_SCHEMA = "homing"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_WRITTEN = re.compile(r"\bhoming\.(?=[a-z_])")


class Address(Struct, frozen=True):
    """A database and how it is used. Its text never shows a user or a password."""

    url: str
    where: str
    """Host and database, as errors name them."""
    schema: str = DEFAULT_SCHEMA
    pool_size: int = 10
    cached_statements: int = 200
    """0: for a pooler that gives each transaction another connection."""
    listen: bool = True
    """Whether a connection of its own waits for news (`LISTEN`)."""

    def __repr__(self) -> str:
        return f"Address({self.where!r}, schema={self.schema!r})"


def read_address(url: str) -> Address:
    """`schema`, `pool_size`, `cached_statements` and `listen` in the URL's query are Homing's own.

    Everything else there is the driver's.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError("store", "must start with postgresql://")
    own: dict[str, Any] = {}
    rest = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _OWN:
            own[name] = _OWN[name](name, value)
        else:
            rest.append((name, value))
    host = parts.netloc.rpartition("@")[2] or "localhost"
    where = f"{host}/{unquote(parts.path.lstrip('/'))}"
    return Address(urlunsplit(parts._replace(query=urlencode(rest))), where, **own)


def _plain(name: str, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ConfigError("store", f"has a {name} that is not a plain lower-case name of at most 48 letters")
    return value


def _whole(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise ConfigError("store", f"has a {name} that is not a whole number")
    return int(value)


def _least_one(name: str, value: str) -> int:
    number = _whole(name, value)
    if number < 1:
        raise ConfigError("store", f"has a {name} below 1")
    return number


def _yes(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigError("store", f"has a {name} that is neither true nor false")
    return value == "true"


_OWN: dict[str, Callable[[str, str], object]] = {
    "schema": _plain,
    "pool_size": _least_one,
    "cached_statements": _whole,
    "listen": _yes,
}


@lru_cache(maxsize=1024)
def in_schema(sql: str, schema: str) -> str:
    """The statement for a schema. Statements are written with the literal `homing.` before every name."""
    return sql if schema == DEFAULT_SCHEMA else _WRITTEN.sub(f"{schema}.", sql)
