"""Builds retry rules from the tables `[[rules]]`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from homing.core.durations import parse_duration
from homing.core.errors import ConfigError
from homing.core.request_decoding import unknown_field_problem
from homing.core.retry.policy import DelayFunction, PolicyPatch, Rule, decode_rule


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
    match = {key: raw[key] for key in raw if key in Rule.__struct_fields__ and key != "policy"}
    patch: dict[str, Any] = {}
    for key in raw:
        if key in match:
            continue
        if key not in PolicyPatch.__struct_fields__:
            known = [*Rule.__struct_fields__[:-1], *PolicyPatch.__struct_fields__]
            raise ConfigError(f"{where}.{key}", unknown_field_problem(key, known))
        patch[key] = _policy_value(key, raw[key], f"{where}.{key}")
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


def _policy_value(key: str, value: Any, where: str) -> Any:
    """Returns the value of a policy field, with durations converted to milliseconds."""
    if key == "steps_ms":
        if not isinstance(value, (list, tuple)):
            raise ConfigError(where, f"is {value!r}; give a list of delays")
        return [parse_duration(step, where) for step in value]
    return parse_duration(value, where) if key.endswith("_ms") else value
