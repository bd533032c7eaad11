"""Loads, merges and checks the settings. Later sources override earlier ones.

The order is defaults, homing.toml, HOMING_* environment variables, flags.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from homing.core.content.locales import is_language_tag
from homing.core.errors import ConfigError
from homing.core.request_decoding import unknown_field_problem
from homing.core.retry.presets import PRESETS
from homing.settings.conversion import read_table, setting_types, without_bounds
from homing.settings.rules import build_rules
from homing.settings.tables import Settings, TemplateSettings

CONFIG_FILE = "homing.toml"

_PREFIX = "HOMING_"

_NOT_SETTINGS = frozenset({"HOMING_CONFIG"})

_DEFAULTS = Settings()


def load_settings(
    path: str | Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    database_url: str = "",
    without_file: Callable[[], Mapping[str, Any]] | None = None,
) -> Settings:
    """Returns the merged settings. If `path` or HOMING_CONFIG names a file, it must exist.

    Otherwise `homing.toml` in the current folder is read if it exists. Without a file, the store is at
    `database_url`, unless that is empty or not a URL of PostgreSQL, or the environment or flags name another.
    `without_file` returns further settings that apply only without a file; it is not called if there is one.
    """
    raw = _default_tables()
    path = path or (env or {}).get("HOMING_CONFIG") or None
    file = Path(path) if path else Path(CONFIG_FILE)
    if path or file.exists():
        raw = _merge(raw, _read(file), str(file.name))
    else:
        if database_url.startswith(("postgresql://", "postgres://")):
            raw["store"] = database_url
        if without_file is not None:
            raw = _merge(raw, without_file(), "the environment")
    raw = _merge(raw, _from_env(env or {}), "the environment")
    raw = _merge(raw, {k: v for k, v in (flags or {}).items() if v is not None}, "the arguments")
    return _settings(raw)


def default_settings_text() -> str:
    """Returns the text of default.toml, which describes all settings and which `homing init` writes."""
    return resources.files("homing.settings").joinpath("default.toml").read_text(encoding="utf-8")


def _default_tables() -> dict[str, Any]:
    """Returns the defaults that other sources extend entry by entry, such as the sinks."""
    return {name: value for name, value in asdict(_DEFAULTS).items() if isinstance(value, dict)}


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), f"is not valid TOML: {error}") from None


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in env.items():
        if not name.startswith(_PREFIX) or name in _NOT_SETTINGS:
            continue
        path = name.removeprefix(_PREFIX).lower().split("__")
        *tables, key = path
        place: Any = found
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    name, "and a variable for the whole table are both set; set only one of them"
                )
        if isinstance(place.get(key), dict):
            raise ConfigError(name, "and variables for parts of it are both set; set only one of them")
        place[key] = _parse_variable(value, is_text=_is_text(path))
    return found


def _is_text(path: Sequence[str]) -> bool:
    """Returns True if the setting with this path is text."""
    kind: Any = Settings
    for name in path:
        if not (isinstance(kind, type) and issubclass(kind, Struct)):
            return False
        kind = without_bounds(setting_types(kind).get(name))
    return kind is str


def _parse_variable(value: str, *, is_text: bool) -> Any:
    """Parses a TOML value, such as a number or list. Returns other text unchanged.

    If the setting is text, only a quoted string is parsed: a tenant may be named 42.
    """
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
    return value if is_text and not isinstance(found, str) else found


def _merge(base: dict[str, Any], over: Mapping[str, Any], source: str) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        if key not in Settings.__struct_fields__:
            raise ConfigError(key, f"{unknown_field_problem(key, Settings.__struct_fields__)} (in {source})")
        merged[key] = _merge_value(merged.get(key), value)
    return merged


def _merge_value(base: Any, value: Any) -> Any:
    """Merges tables key by key at every depth. Any other value is replaced."""
    if not (isinstance(base, Mapping) and isinstance(value, Mapping)):
        return value
    return {**base, **{key: _merge_value(base.get(key), one) for key, one in value.items()}}


def _settings(raw: dict[str, Any]) -> Settings:
    if "rules" in raw:
        raw["rules"] = build_rules(raw["rules"])
    settings = read_table(raw, Settings, "", _defaults_of(raw.get("preset", _DEFAULTS.preset)))
    _check_locales(settings.templates)
    return settings


def _defaults_of(preset: Any) -> Settings:
    """Returns the defaults, with those that the preset sets."""
    sent_ms = PRESETS[preset].sent_retention_ms if isinstance(preset, str) and preset in PRESETS else None
    if sent_ms is None:
        return _DEFAULTS
    return replace(_DEFAULTS, retention=replace(_DEFAULTS.retention, sent_ms=sent_ms))


def _check_locales(templates: TemplateSettings) -> None:
    """Raises `ConfigError` if a locale is not valid, or if a default locale is not a declared one."""
    for locale in templates.locales:
        if not is_language_tag(locale):
            raise ConfigError("templates.locales", f"has {locale!r}; locales are like en-US, de or zh-Hant")
    declared = templates.locales or (templates.default_locale,)
    defaults = {f"tenant_locales.{tenant}": locale for tenant, locale in templates.tenant_locales.items()}
    for name, locale in {"default_locale": templates.default_locale, **defaults}.items():
        if locale not in declared:
            raise ConfigError(
                f"templates.{name}",
                f"is {locale!r}; it must be one of the declared locales: {', '.join(declared)}",
            )
