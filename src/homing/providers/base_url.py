"""The setting `base_url`, checked at start: a wrong one must not look like the recipients' fault later."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from homing.core.errors import ConfigError

_PLAIN = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?")
"""No query, fragment or credentials, and nothing that the HTTP client would refuse to write."""


def checked_base_url(given: str, field: str = "base_url") -> str:
    """An http or https URL without query, fragment, credentials or a slash at its end."""
    try:
        parts = urlsplit(given)
        fine = bool(_PLAIN.fullmatch(given) and parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(field, "is not a URL like https://api.example.org")
    return given.rstrip("/")
