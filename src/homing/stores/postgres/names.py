"""Which schema, which server: what a URL says, and how statements are written for that schema."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from homing.core.errors import ConfigError

DEFAULT_SCHEMA = "homing"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_WRITTEN = re.compile(r"\bhoming\.(?=[a-z_])")


class Address(Struct, frozen=True):
    """A database and the schema in it. Its text never shows a user or a password."""

    url: str
    schema: str
    where: str
    """Host and database, as errors name them."""

    def __repr__(self) -> str:
        return f"Address({self.where!r}, schema={self.schema!r})"


def read_address(url: str, schema: str | None = None) -> Address:
    """`?schema=NAME` names the schema; everything else in the URL is the driver's."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError("store", "must start with postgresql://")
    rest = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "schema":
            schema = schema or value
        else:
            rest.append((name, value))
    schema = schema or DEFAULT_SCHEMA
    if not _NAME.fullmatch(schema):
        raise ConfigError("store", "has a schema that is not a plain lower-case name of at most 48 letters")
    host = parts.netloc.rpartition("@")[2] or "localhost"
    where = f"{host}/{unquote(parts.path.lstrip('/'))}"
    return Address(urlunsplit(parts._replace(query=urlencode(rest))), schema, where)


@lru_cache(maxsize=1024)
def in_schema(sql: str, schema: str) -> str:
    """The statement for a schema. Statements are written with the literal `homing.` before every name."""
    return sql if schema == DEFAULT_SCHEMA else _WRITTEN.sub(f"{schema}.", sql)
