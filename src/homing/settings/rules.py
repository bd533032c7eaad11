"""Builds retry rules from the tables `[[rules]]`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, get_args

from homing.core.durations import parse_duration
from homing.core.errors import ConfigError
from homing.core.request_decoding import unknown_field_problem
from homing.core.retry.policy import DelayFunction, PolicyPatch, Rule
from homing.settings.conversion import read_value, setting_types


def build_rules(raw: Any) -> tuple[Rule, ...]:
    """Returns the rules of all tables `[[rules]]`."""
    if not isinstance(raw, (list, tuple)):
        raise ConfigError("rules", f"is {raw!r}; rules must be tables [[rules]]")
    return tuple(build_rule(rule, f"rules[{place}]") for place, rule in enumerate(raw))


def build_rule(raw: Mapping[str, Any] | Rule, where: str) -> Rule:
    """Returns the rule in a flat table, which has match keys and policy fields side by side."""
    if isinstance(raw, Rule):
        return raw
    if not isinstance(raw, Mapping):
        raise ConfigError(where, f"is {raw!r}; a rule must be a table [[rules]]")
    keys, fields = _rule_types()
    match: dict[str, Any] = {}
    patch: dict[str, Any] = {}
    for key, value in raw.items():
        if key in keys:
            match[key] = read_value(value, keys[key], f"{where}.{key}")
        elif key in fields:
            patch[key] = _policy_value(key, value, fields[key], f"{where}.{key}")
        else:
            raise ConfigError(f"{where}.{key}", unknown_field_problem(key, [*keys, *fields]))
    if not match.get("name"):
        raise ConfigError(f"{where}.name", "is missing; a rule needs a name")
    return Rule(**match, policy=PolicyPatch(**patch))


@cache
def _rule_types() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the types of a rule's match keys and of its policy fields. No field of a policy must be set."""
    keys = {name: hint for name, hint in setting_types(Rule).items() if name != "policy"}
    fields = {name: get_args(hint)[0] for name, hint in setting_types(PolicyPatch).items()}
    return keys, fields


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


def _policy_value(key: str, value: Any, kind: Any, where: str) -> Any:
    """Returns the value of a policy field, with durations converted to milliseconds."""
    if key == "call":
        return _callable(value, where)
    if key == "steps_ms":
        if not isinstance(value, (list, tuple)):
            raise ConfigError(where, f"is {value!r}; give a list of delays")
        return tuple(parse_duration(step, where) for step in value)
    return parse_duration(value, where) if key.endswith("_ms") else read_value(value, kind, where)
