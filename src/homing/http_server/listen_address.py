"""Addresses that a server listens on, as they are written in the settings."""

from __future__ import annotations

import re

from msgspec import Struct

from homing.core.errors import ConfigError

_LISTEN = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):)?(?P<port>\d{1,5})")

_LOOPBACK = "127.0.0.1"


class ListenAddress(Struct, frozen=True):
    """The address to listen on. Port 0 picks a free port."""

    host: str
    port: int


def parse_listen_address(text: str, where: str) -> ListenAddress:
    """Parses `HOST:PORT`, `[IPv6]:PORT` or `PORT`, which means 127.0.0.1. Raises `ConfigError` otherwise."""
    found = _LISTEN.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65_535:
        raise ConfigError(where, f"is {text!r}; use HOST:PORT, such as 127.0.0.1:9464")
    return ListenAddress((found["host"] or _LOOPBACK).strip("[]"), int(found["port"]))
