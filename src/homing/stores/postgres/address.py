"""Parses the store's URL and adapts SQL statements to the schema that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from homing.core.errors import ConfigError

DEFAULT_SCHEMA = "homing"

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")

_SCHEMA_PREFIX = re.compile(r"\bhoming\.(?=[a-z_])")

_HOST_AND_PORT = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::([0-9]+))?")

_DEFAULT_PORT = "5432"

_HIGHEST_PORT = 65535


class Host(Struct, frozen=True):
    """A host of the URL: its name or address, or the folder of its Unix socket, and the port."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class DatabaseAddress(Struct, frozen=True):
    """A database and the options for its use. The repr contains no user and no password."""

    url: str
    """The URL for the driver, without Homing's own options."""
    where: str
    """Host and database, for messages."""
    schema: str = DEFAULT_SCHEMA
    pool_size: int = 10
    """Maximum number of connections in the pool."""
    cached_statements: int | None = None
    """Maximum number of prepared statements per connection. If None, 200, or 0 behind a pooler."""
    listen: bool = True
    """True if a separate connection receives PostgreSQL's messages about new work (`LISTEN`)."""
    listen_at: DatabaseAddress | None = None
    """Address of the same database for that connection, without a pooler. If None, it uses `url`."""
    hosts: tuple[Host, ...] = ()
    """The hosts of the URL, in its order. Empty if the URL names none, so that the driver chooses."""
    connect_timeout: int = 0
    """Maximum time in seconds to connect to one host. 0 means the default."""
    verifies_name: bool = False
    """True if the server's certificate must contain the host name of the URL (`sslmode=verify-full`)."""
    session_attrs: str | None = None
    """Which servers may be used, as libpq's `target_session_attrs`. If None, the URL does not say."""

    def __repr__(self) -> str:
        return f"Address({self.where!r}, schema={self.schema!r})"


def parse_database_url(url: str) -> DatabaseAddress:
    """Parses a PostgreSQL URL. Raises `ConfigError` if it is not valid.

    The query parameters `schema`, `pool_size`, `cached_statements`, `listen`, `listen_url` and
    `connect_timeout` are Homing's own. All others are passed to the driver.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError("store", "must start with postgresql://")
    own: dict[str, Any] = {}
    rest = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "listen_url":
            own["listen_at"] = _parse_listen_url(value)
        elif name in _OPTION_PARSERS:
            own[name] = _OPTION_PARSERS[name](name, value)
        else:
            rest.append((name, value))
    given = dict(rest)
    named = parts.netloc.rpartition("@")[2]
    host = named or "localhost"
    where = f"{host}/{unquote(parts.path.lstrip('/'))}"
    return DatabaseAddress(
        urlunsplit(parts._replace(query=urlencode(rest))),
        where,
        hosts=_parse_hosts(named, given),
        verifies_name=given.get("sslmode", os.environ.get("PGSSLMODE")) == "verify-full",
        session_attrs=given.get("target_session_attrs", os.environ.get("PGTARGETSESSIONATTRS")),
        **own,
    )


def _parse_hosts(named: str, given: Mapping[str, str]) -> tuple[Host, ...]:
    """Returns the hosts before the path of a URL, or else in its query or in PGHOST.

    Returns no hosts if they come from a service file, or if the URL is wrong, about which the driver raises.
    """
    if "service" in given:
        return ()
    specs = [spec for spec in (named or given.get("host") or _default_hosts()).split(",") if spec]
    ports = (given.get("port") or os.environ.get("PGPORT") or _DEFAULT_PORT).split(",")
    if len(ports) == 1:
        ports *= len(specs)
    if len(ports) != len(specs) or not all(map(_is_number, ports)):
        return ()
    hosts = []
    for spec, default in zip(specs, ports, strict=True):
        if spec.startswith("/"):
            hosts.append(Host(spec, int(default)))
            continue
        found = _HOST_AND_PORT.fullmatch(spec)
        if found is None:
            return ()
        port = default if "port" in given else found[3] or default
        hosts.append(Host(unquote(found[1] or found[2]), int(port)))
    return tuple(hosts)


def _default_hosts() -> str:
    """Returns the hosts of the environment, unless those of a service file come first."""
    return "" if "PGSERVICE" in os.environ else os.environ.get("PGHOST", "")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _parse_name(name: str, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ConfigError(
            "store", f"has a {name} that is not a lower-case identifier of at most 48 letters, digits or _"
        )
    return value


def _parse_integer(name: str, value: str) -> int:
    if not _is_number(value):
        raise ConfigError("store", f"has a {name} that is not a whole number")
    return int(value)


def _parse_positive(name: str, value: str) -> int:
    number = _parse_integer(name, value)
    if number < 1:
        raise ConfigError("store", f"has a {name} below 1")
    return number


def _parse_bool(name: str, value: str) -> bool:
    if value not in ("true", "false", "1", "0"):
        raise ConfigError("store", f"has a {name} that is neither true nor false")
    return value in ("true", "1")


def _parse_listen_url(value: str) -> DatabaseAddress:
    """Parses the URL for LISTEN. Its hosts are checked here, because nothing fails if it cannot be used."""
    try:
        address = parse_database_url(value)
    except (ConfigError, ValueError):  # the latter for a bracket that is not closed
        raise ConfigError("store", "has a listen_url that is not a postgresql:// URL") from None
    parts = urlsplit(value)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    ports = [port for port in given.get("port", "").split(",") if port]
    names_hosts = bool(parts.netloc.rpartition("@")[2] or given.get("host")) and "service" not in given
    is_wrong = (names_hosts and not address.hosts) or not all(map(_is_number, ports))
    if is_wrong or not all(0 < host.port <= _HIGHEST_PORT for host in address.hosts):
        raise ConfigError("store", "has a listen_url with a wrong host or port")
    return address


_OPTION_PARSERS: dict[str, Callable[[str, str], object]] = {
    "schema": _parse_name,
    "pool_size": _parse_positive,
    "cached_statements": _parse_integer,
    "listen": _parse_bool,
    "connect_timeout": _parse_positive,
}


@lru_cache(maxsize=1024)
def in_schema(sql: str, schema: str) -> str:
    """Replaces the literal prefix `homing.`, with which all statements are written, by the schema's name."""
    return sql if schema == DEFAULT_SCHEMA else _SCHEMA_PREFIX.sub(f"{schema}.", sql)
