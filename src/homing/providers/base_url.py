"""The setting `base_url`, checked at start: a wrong one must not look like the recipients' fault later."""

from __future__ import annotations

from urllib.parse import urlsplit

from homing.core.errors import ConfigError


def checked_base_url(given: str, field: str = "base_url") -> str:
    """An http or https URL without query, fragment, credentials or a slash at its end."""
    try:
        parts = urlsplit(str(given))
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if (
        not fine
        or "@" in parts.netloc
        or set("?# ") & set(given)
        or not (given.isascii() and given.isprintable())
    ):
        raise ConfigError(field, "is not a URL like https://api.example.org")
    return given.rstrip("/")
