"""Puts changed settings in force while a process runs: the own settings of providers and JWT keys.

All new objects are built before the first one is used. If the process could not be started with the new
settings, nothing is changed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from homing.compose.factories import PlugInDependencies
from homing.compose.providers import LISTED_KEYS, build_listed, give_threads
from homing.core.errors import ConfigError
from homing.core.ports.runtime import Clock
from homing.core.send_request import provider_id
from homing.engine.engine import Engine
from homing.engine.provider_roster import Listed
from homing.settings import Settings

Fingerprint = Mapping[str, bytes]
"""Path of each setting → digest of its value, or of the content that `env:` or `file:` refers to."""


Check = Callable[[Settings], Awaitable[None]]
"""Raises `ConfigError` if the process could not be started with the settings."""


class ReloadResult(Struct, frozen=True, kw_only=True):
    """What has changed in the settings since they were last read."""

    changed: tuple[str, ...] = ()
    """Settings that are in force now."""
    needs_restart: tuple[str, ...] = ()
    """Settings that come into force when the process is started again."""


class ReloadablePart(Struct, frozen=True):
    """A part of a process that can take new settings, besides the providers."""

    prefix: str
    """Table that the part takes its settings from, such as `service.jwt`."""
    prepare: Callable[[Settings], Callable[[], None]]
    """Builds what is needed, and returns a function that puts it in force. Raises `ConfigError`."""


class SettingsReloader:
    """Finds the settings that have changed, and puts those in force that need no restart."""

    def __init__(self, engine: Engine, settings: Settings, clock: Clock, check: Check) -> None:
        self._engine = engine
        self._clock = clock
        self._check = check
        self._key = os.urandom(32)
        self._in_force = self._fingerprint(settings)
        self.parts: list[ReloadablePart] = []

    async def reload(
        self, settings: Settings, audit: Callable[[tuple[str, ...]], Awaitable[None]]
    ) -> ReloadResult:
        """Compares the settings with those in force, and applies what can be changed at runtime.

        `audit` is awaited with the names of the settings before they come into force. Raises `ConfigError`
        and changes nothing if a setting is wrong.
        """
        found = self._fingerprint(settings)
        different = sorted(
            path for path in {*found, *self._in_force} if found.get(path) != self._in_force.get(path)
        )
        if not different:
            return ReloadResult()
        await self._check(settings)
        paths = _without_tables(different)
        in_roster = [name for name in settings.providers if provider_id(name) in self._engine.roster]
        own = {name: [path for path in paths if _is_own_setting(path, name)] for name in in_roster}
        listed = [self._build(name, settings.providers[name]) for name in in_roster if own[name]]
        parts = [one for one in self.parts if any(_is_in(path, one.prefix) for path in paths)]
        prepared = [part.prepare(settings) for part in parts]
        changed = tuple(
            path
            for path in paths
            if any(_is_in(path, part.prefix) for part in parts)
            or any(path in own[name] for name in in_roster)
        )
        if changed:
            await audit(changed)
            for apply in prepared:
                apply()
            applied = {path for path in different if any(_is_in(one, path) for one in changed)}
            kept = {path: digest for path, digest in self._in_force.items() if path not in applied}
            self._in_force = {**kept, **{path: found[path] for path in applied if path in found}}
            await self._engine.replace_providers(listed)
        return ReloadResult(changed=changed, needs_restart=tuple(p for p in paths if p not in changed))

    def _build(self, name: str, options: Mapping[str, Any]) -> Listed:
        """Builds a provider with its new settings. Slots, rate, weight and channels stay as they are."""
        roster = self._engine.roster
        assert isinstance(roster.shared, PlugInDependencies), "configured providers share them"
        new, before = build_listed(name, dict(options), roster.shared), roster[provider_id(name)]
        if new.kind != before.kind or set(new.channels) != set(before.channels):
            raise ConfigError(f"providers.{name}", "has another kind or other channels; restart the process")
        listed = msgspec.structs.replace(before, provider=new.provider)
        (listed,) = give_threads([listed], self._clock)
        return listed

    def _fingerprint(self, settings: Settings) -> Fingerprint:
        plain = msgspec.to_builtins(settings, enc_hook=repr, str_keys=True)
        return {path: self._digest(value) for path, value in _leaves(plain, "")}

    def _digest(self, value: Any) -> bytes:
        return hmac.digest(self._key, repr(_content(value)).encode("utf-8", "surrogatepass"), hashlib.sha256)


def _is_own_setting(path: str, provider: str) -> bool:
    """Returns True for a setting of the provider's kind, which needs no restart, such as a credential."""
    table = f"providers.{provider}"
    return _is_in(path, table) and not any(_is_in(path, f"{table}.{key}") for key in LISTED_KEYS)


def _without_tables(paths: Sequence[str]) -> list[str]:
    """Leaves out a table that was empty before or is empty now, if settings in it are among the paths too."""
    return [path for path in paths if not any(other != path and _is_in(other, path) for other in paths)]


def _content(value: Any) -> Any:
    """Returns the value of a setting, or what `env:` or `file:` refers to. None if that cannot be read."""
    if not isinstance(value, str):
        return value
    kind, _, where = value.partition(":")
    if kind == "env":
        return value, os.environ.get(where)
    if kind == "file":
        try:
            return value, Path(where).read_bytes()
        except (OSError, ValueError):
            return value, None
    return value


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from _leaves(one, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and value:
        for place, one in enumerate(value):
            yield from _leaves(one, f"{path}[{place}]")
    else:
        yield path, value


def _is_in(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith((f"{prefix}.", f"{prefix}["))
