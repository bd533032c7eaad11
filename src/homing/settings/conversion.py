"""Converts raw tables to the structs of the settings. Errors name the setting, its value and what is allowed.

The types of a struct's fields say what is allowed: see `homing.core.bounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from homing.core.durations import parse_duration
from homing.core.errors import ConfigError
from homing.core.request_decoding import unknown_field_problem

_S = TypeVar("_S", bound=Struct)

_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}

_PLURALS = {int: "integers", str: "strings"}


def read_table(raw: Any, kind: type[_S], where: str, default: _S | None = None) -> _S:
    """Returns `default`, or a new struct, with the settings in the table `raw`.

    Raises `ConfigError` if `raw` is not a table, or a setting is unknown, invalid or missing.
    """
    if isinstance(raw, kind):
        return raw
    _check_table(raw, where)
    types = setting_types(kind)
    for key in raw:
        if key not in types:
            raise ConfigError(_path(where, key), unknown_field_problem(str(key), types))
    values = {
        key: read_value(value, types[key], _path(where, key), getattr(default, key, None))
        for key, value in raw.items()
    }
    if default is not None:
        return replace(default, **values)
    for one in msgspec.structs.fields(kind):
        if one.required and one.name not in values:
            raise ConfigError(_path(where, one.name), "is missing")
    return kind(**values)


def read_setting(raw: Any, kind: type[Struct], name: str, where: str) -> Any:
    """Returns the value of one setting. Raises `ConfigError`, which names `where`, if it is invalid."""
    return read_value(raw, setting_types(kind)[name], where)


@cache
def setting_types(kind: type[Struct]) -> dict[str, Any]:
    """Returns the type of each field that is a setting, with its bounds, in the order of the fields."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: hints[name] for name in kind.__struct_fields__}
    return {name: hint for name, hint in found.items() if _extra(hint).get("setting", True)}


def without_bounds(hint: Any) -> Any:
    """Returns the type without its bounds."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def bounds_of(hint: Any) -> Meta:
    """Returns the bounds and unit of a type. They are empty if it has none."""
    found = [one for one in get_args(hint)[1:] if isinstance(one, Meta)]
    return found[0] if get_origin(hint) is Annotated and found else Meta()


def _extra(hint: Any) -> Mapping[str, Any]:
    return bounds_of(hint).extra or {}


def _path(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _check_table(raw: Any, where: str) -> None:
    if not isinstance(raw, Mapping):
        raise ConfigError(where, f"is {raw!r}; it must be a table [{where}]")


def read_value(value: Any, hint: Any, where: str, default: Any = None) -> Any:
    """Converts one value to the type of its setting. `default` is the value that a table changes."""
    kind = without_bounds(hint)
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, Struct):
        return read_table(value, kind, where, default)
    if get_origin(kind) is dict:
        _check_table(value, where)
        inner = get_args(kind)[1]
        return {key: read_value(one, inner, _path(where, key)) for key, one in value.items()}
    if _extra(hint).get("unit") == "ms":
        value = parse_duration(value, where)
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        raise ConfigError(where, _problem(value, hint)) from None


# What is wrong with a value --------------------------------------------------------------------------------


def _problem(value: Any, hint: Any) -> str:
    """Returns what is wrong with a value, and what is allowed."""
    kind = without_bounds(hint)
    if get_origin(kind) is Literal:
        return f"is {value!r}; it must be one of {', '.join(get_args(kind))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"is {value!r}; it must be one of {', '.join(kind)}"
    if get_origin(kind) is tuple:
        return _array_problem(value, get_args(kind)[0])
    if kind is str:
        return _text_problem(value, hint)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind in (int, float) and (whole or (kind is float and isinstance(value, float))):
        return _bounds_problem(value, hint)
    return f"is {value!r}; it must be {_NAMES[kind]}"


def _text_problem(value: Any, hint: Any) -> str:
    form = _extra(hint).get("form", _NAMES[str])
    if isinstance(value, str):
        return f"is {value!r}; it must be {form}" if value else f"is empty; give {form}"
    return f"has the type {type(value).__name__}; it must be a string"  # the value may be a secret


def _array_problem(value: Any, inner: Any) -> str:
    if get_origin(inner) is dict:
        return "must be an array of tables"  # the tables may contain secrets
    return f"is {value!r}; it must be an array of {_PLURALS[inner]}"


def _bounds_problem(value: float, hint: Any) -> str:
    bounds, extra = bounds_of(hint), _extra(hint)
    unit = extra.get("unit", "")
    shown, low, high = _with_unit(value, unit), bounds.ge, bounds.le
    if high is not None and unit != "ms":  # a duration that is too long was refused before
        return f"is {shown}; it must be from {low} to {_with_unit(high, unit)}"
    if value < 0:
        more = f" and must be at least {_with_unit(low, unit)}" if low else ""
        return f"is {shown}; it cannot be negative{more}"
    reason = f"; {extra['reason']}" if "reason" in extra else ""
    return f"is {shown}; it must be at least {_with_unit(low, unit)}{reason}"


def _with_unit(number: float | None, unit: str) -> str:
    return f"{number} {'byte' if unit == 'bytes' and number == 1 else unit}".rstrip()
