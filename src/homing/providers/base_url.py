"""Checks the setting `base_url` at start, so that a wrong URL is not blamed on the recipients later."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from homing.core.errors import ConfigError

_PLAIN = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?")
"""A URL without query, fragment or credentials, and without characters that the HTTP client rejects."""


def checked_base_url(given: str, field: str = "base_url") -> str:
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
