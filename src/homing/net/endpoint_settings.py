"""Checks settings of HTTP endpoints: their URL, and additional headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from homing.core.errors import ConfigError
from homing.net.secrets import read_secret

_PLAIN = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?")
"""A URL without query, fragment or credentials, and without characters that the HTTP client rejects."""


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "traceparent",
        "transfer-encoding",
    }
)
"""Headers that Homing or the HTTP client sets, besides those with `_OWN_PREFIXES`."""

_OWN_PREFIXES = ("webhook-", "homing-")


def check_base_url(given: str, field: str = "base_url") -> str:
    """Returns the URL without a trailing slash.

    Raises `ConfigError` unless it is a plain http or https URL.
    """
    try:
        parts = urlsplit(given)
        fine = bool(_PLAIN.fullmatch(given) and parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(field, "must be a URL like https://api.example.org, without a query or credentials")
    return given.rstrip("/")


def read_extra_headers(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns the additional headers of each request, with values read from the environment or from files."""
    found = []
    for name, value in given.items():
        field = f"headers.{name}"
        if (
            not _HEADER_NAME.fullmatch(name)
            or name.lower() in _OWN_HEADERS
            or name.lower().startswith(_OWN_PREFIXES)
        ):
            raise ConfigError(field, "is not allowed; it must be a header that Homing does not set itself")
        text = read_secret(field, value).reveal()
        if not (text.isascii() and text.isprintable()):
            raise ConfigError(field, "contains a line break or another character not allowed in a header")
        found.append((name.lower(), text))
    return tuple(found)
