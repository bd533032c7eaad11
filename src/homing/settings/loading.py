"""Loads, merges and checks the settings. Later sources override earlier ones.

The order is default.toml, homing.toml, HOMING_* environment variables, flags.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import import_module, resources
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.content.locales import is_language_tag
from homing.core.errors import ConfigError
from homing.core.request_decoding import explain_error, unknown_field_problem
from homing.core.retry.policy import DelayFunction, PolicyPatch, Rule, decode_rule
from homing.core.times import LONGEST_MS
from homing.settings.tables import TABLES, Settings, TemplateSettings

CONFIG_FILE = "homing.toml"

_PREFIX = "HOMING_"

_NOT_SETTINGS = frozenset({"HOMING_CONFIG"})


_TEXTS = frozenset({"store", "tenant", "preset", "spool", "worker_name"})
"""Settings that are always text. An environment variable may look like a number: a tenant may be named 42."""


_MIN_ONE = (
    "http.connect_timeout_ms",
    "http.max_connections",
    "http.max_host_connections",
    "limits.fan_out",
    "service.answer_ms",
    "service.batch_bytes",
    "service.body_bytes",
    "service.buffer_bytes",
    "service.head_ms",
    "service.keep_alive_ms",
    "service.max_connections",
    "service.max_requests",
    "service.read_ms",
    "service.workers",
    "worker.poll_ms",
)

_WITH_DURATIONS = (
    *("worker", "retention", "thresholds", "look_ups", "receipts", "http", "service", "dedup_windows_ms"),
)

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_PUBLIC_URL = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")

_MAX_DURATION_CHARS = 100

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def load_settings(
    path: str | Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Returns the merged settings. If `path` or HOMING_CONFIG names a file, it must exist.

    Otherwise `homing.toml` in the current folder is read if it exists.
    """
    raw = _defaults()
    path = path or (env or {}).get("HOMING_CONFIG") or None
    file = Path(path) if path else Path(CONFIG_FILE)
    if path or file.exists():
        raw = _merge(raw, _read(file), str(file.name))
    raw = _merge(raw, _from_env(env or {}), "the environment")
    raw = _merge(raw, {k: v for k, v in (flags or {}).items() if v is not None}, "the arguments")
    return _settings(raw)


def default_settings_text() -> str:
    """Returns the text of default.toml, which `homing init` writes."""
    return resources.files("homing.settings").joinpath("default.toml").read_text(encoding="utf-8")


def parse_duration(value: Any, where: str) -> int:
    """Converts a number of milliseconds, or text such as `1h30m`, to milliseconds.

    Raises `ConfigError` if the value is not a duration or is longer than 100 years.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ConfigError(where, f"is {value!r}; give milliseconds or text like 30s, 5m, 1h30m")
    found = _milliseconds(value, where)
    if found > LONGEST_MS:
        raise ConfigError(where, f"is {value!r}; at most 100 years are allowed")
    return found


def _milliseconds(value: int | float | str, where: str) -> int:
    if isinstance(value, (int, float)):
        if not isfinite(value):
            raise ConfigError(where, f"is {value!r}; give milliseconds or text like 30s, 5m, 1h30m")
        return int(value)
    text = value.strip().lower()
    if len(text) > _MAX_DURATION_CHARS:
        raise ConfigError(where, f"has {len(text)} characters; give milliseconds or text like 30s, 5m, 1h30m")
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    parts = _PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text.replace(" ", ""):
        raise ConfigError(where, f"is {value!r}; give milliseconds or text like 30s, 5m, 1h30m")
    return int(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))


def build_rule(raw: Mapping[str, Any] | Rule, where: str) -> Rule:
    """Returns the rule in a flat table, which has match keys and policy fields side by side."""
    if isinstance(raw, Rule):
        return raw
    if not isinstance(raw, Mapping):
        raise ConfigError(where, f"is {raw!r}; a rule must be a table [[rules]]")
    match = {key: raw[key] for key in raw if key in Rule.__struct_fields__ and key != "policy"}
    patch: dict[str, Any] = {}
    for key in raw:
        if key in match:
            continue
        if key not in PolicyPatch.__struct_fields__:
            known = [*Rule.__struct_fields__[:-1], *PolicyPatch.__struct_fields__]
            raise ConfigError(f"{where}.{key}", unknown_field_problem(key, known))
        patch[key] = _durations({key: raw[key]}, where)[key]
    call = patch.pop("call", None)
    if not match.get("name"):
        raise ConfigError(f"{where}.name", "is missing; a rule needs a name")
    rule = decode_rule({**match, "policy": patch}, f"{where} ({match['name']})")
    if call is None:
        return rule
    return replace(rule, policy=replace(rule.policy, call=_callable(call, f"{where}.call")))


def _callable(named: Any, where: str) -> DelayFunction:
    """Returns a function of the attempt number, imported if it is given as `module:name`."""
    if callable(named):
        found: Any = named
    else:
        module, _, name = str(named).partition(":")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, ValueError, AttributeError) as error:
            raise ConfigError(
                where, f"{named!r} cannot be imported: {error}; write it as module:name"
            ) from None
    if not callable(found):
        raise ConfigError(where, f"{named!r} is not a function of the attempt number")
    call: DelayFunction = found
    return call


@cache
def _default_tables() -> dict[str, Any]:
    return tomllib.loads(default_settings_text())


def _defaults() -> dict[str, Any]:
    return dict(_default_tables())


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
        *tables, key = name.removeprefix(_PREFIX).lower().split("__")
        place: Any = found
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    name, "and a variable for the whole table are both set; set only one of them"
                )
        if isinstance(place.get(key), dict):
            raise ConfigError(name, "and variables for parts of it are both set; set only one of them")
        place[key] = value if not tables and key in _TEXTS else _literal(value)
    return found


def _literal(text: str) -> Any:
    """Parses a TOML value, such as a number or list. Returns other text unchanged."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


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
    for table, kind in Settings.__annotations__.items():
        allowed = getattr(TABLES.get(kind), "__struct_fields__", None)
        if allowed is not None:
            for key in _table(raw, table):
                if key not in allowed:
                    raise ConfigError(f"{table}.{key}", unknown_field_problem(key, allowed))
    rules = raw.get("rules", ())
    if not isinstance(rules, (list, tuple)):
        raise ConfigError("rules", f"is {rules!r}; rules must be tables [[rules]]")
    raw = {**raw, "rules": [build_rule(rule, f"rules[{i}]") for i, rule in enumerate(rules)]}
    for group in ("providers", "sinks", "bridges"):
        for name, table in _table(raw, group).items():
            if not isinstance(table, Mapping):
                raise ConfigError(f"{group}.{name}", f"is {table!r}; it must be a table [{group}.{name}]")
    for table in _WITH_DURATIONS:
        raw[table] = _durations(_table(raw, table), table, all_keys=table == "dedup_windows_ms")
    raw["limits"] = _limits(_table(raw, "limits"))
    try:
        settings = msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(*explain_error(error, Settings.__struct_fields__)) from None
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    if not settings.tenant:
        raise ConfigError("tenant", "is empty; give a name")
    for group in ("slots", "worker", "limits", "retention", "thresholds", "look_ups", "receipts", "service"):
        for name in (values := getattr(settings, group)).__struct_fields__:
            value = getattr(values, name)
            if isinstance(value, (int, float)) and value < 0:
                raise ConfigError(f"{group}.{name}", f"is {value}; it cannot be negative")
    if settings.slots.priority < 1 or settings.slots.standard < 1 or settings.slots.bulk < 1:
        raise ConfigError(
            "slots",
            "must be at least 1 for each mode; with 0, notifications of that mode would never be sent",
        )
    for name in _MIN_ONE:
        if (number := attrgetter(name)(settings)) < 1:
            raise ConfigError(name, f"is {number}; it must be at least 1")
    _check_service(settings)
    for type_, window in settings.dedup_windows_ms.items():
        if window < 0:
            raise ConfigError(f"dedup_windows_ms.{type_}", f"is {window}; it cannot be negative")
    _check_locales(settings.templates)


def _check_service(settings: Settings) -> None:
    if settings.metrics.tenants < 0:
        raise ConfigError("metrics.tenants", f"is {settings.metrics.tenants}; it cannot be negative")
    url = settings.service.public_url
    if url and not _PUBLIC_URL.fullmatch(url):
        raise ConfigError(
            "service.public_url", f"is {url!r}; it must be a URL like https://notify.example.org"
        )
    if not 0 <= settings.tracing.share <= 1:
        raise ConfigError("tracing.share", f"is {settings.tracing.share}; it must be from 0.0 to 1.0")


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


def _limits(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the durations of rate limits to milliseconds, including those of single tenants."""
    read = dict(raw)
    for name in ("recipient", "tenant"):
        table = _durations(_table(raw, name), f"limits.{name}")
        tenants = _table(table, "of")
        table["of"] = {
            tenant: _durations(_table(tenants, tenant), f"limits.{name}.of.{tenant}") for tenant in tenants
        }
        read[name] = table
    return read


def _table(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = raw.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(name, f"is {table!r}; it must be a table [{name}]")
    return table


def _durations(table: Mapping[str, Any], where: str, *, all_keys: bool = False) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        if key == "steps_ms":
            if not isinstance(value, (list, tuple)):
                raise ConfigError(f"{where}.{key}", f"is {value!r}; give a list of delays")
            out[key] = [parse_duration(step, f"{where}.{key}") for step in value]
        elif all_keys or key.endswith("_ms"):
            out[key] = parse_duration(value, f"{where}.{key}")
        else:
            out[key] = value
    return out
