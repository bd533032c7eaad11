"""Every setting has one default and one set of bounds, in its struct. The default file describes them all."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import Struct
from msgspec.structs import fields

from homing import ConfigError
from homing.compose import build_engine_settings
from homing.engine.engine import EngineSettings
from homing.settings import Settings, default_settings_text, load_settings
from homing.settings.conversion import bounds_of, setting_types, without_bounds

ARRAYS_OF_TABLES = {"rules", "service.jwt"}
"""Settings without a default value. The default file has an example of each in a comment."""


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Setting(NamedTuple):
    """A setting with its path in the file and its type."""

    name: str
    type: Any


def all_settings(kind: type[Struct] = Settings, where: str = "") -> Iterator[Setting]:
    for name, hint in setting_types(kind).items():
        bare = without_bounds(hint)
        if isinstance(bare, type) and issubclass(bare, Struct):
            yield from all_settings(bare, f"{where}{name}.")
        else:
            yield Setting(f"{where}{name}", hint)


def written(raw: dict[str, Any], where: str = "") -> Iterator[str]:
    """Returns the settings of the default file. A table that maps names to values is one setting."""
    tables = {setting.name for setting in all_settings()}
    for key, value in raw.items():
        if isinstance(value, dict) and f"{where}{key}" not in tables:
            yield from written(value, f"{where}{key}.")
        else:
            yield f"{where}{key}"


def flags(name: str, value: Any) -> dict[str, Any]:
    """Returns the value nested in the tables of its name."""
    for key in reversed(name.split(".")):
        value = {key: value}
    return dict(value)


BOUNDED = [setting for setting in all_settings() if bounds_of(setting.type).ge is not None]


def test_the_default_file_has_exactly_the_settings_that_exist() -> None:
    text = default_settings_text()
    found = set(written(tomllib.loads(text)))
    assert found == {setting.name for setting in all_settings()} - ARRAYS_OF_TABLES
    assert [name for name in ARRAYS_OF_TABLES if f"# [[{name}]]" not in text] == []


def test_the_values_of_the_default_file_are_the_defaults() -> None:
    Path("all.toml").write_text(default_settings_text(), encoding="utf-8")
    assert load_settings("all.toml") == load_settings() == Settings()


def test_the_settings_that_are_checked_for_their_bounds_include_those_of_every_part() -> None:
    names = {setting.name for setting in BOUNDED}
    assert len(BOUNDED) >= 45
    assert names >= {
        *("slots.bulk", "worker.lease_ms", "limits.fan_out", "limits.recipient.per_ms", "retention.keys_ms"),
        *("thresholds.failure_rate", "look_ups.per_round", "receipts.bad_share", "http.max_connections"),
        *("service.head_ms", "service.answer_ms", "service.rate_burst", "metrics.tenants", "tracing.share"),
    }


@pytest.mark.parametrize("setting", BOUNDED, ids=[setting.name for setting in BOUNDED])
def test_a_value_below_its_bound_is_refused_with_the_bound_and_the_unit(setting: Setting) -> None:
    bounds = bounds_of(setting.type)
    low, unit = bounds.ge, (bounds.extra or {}).get("unit", "")
    assert low is not None
    load_settings(flags=flags(setting.name, low))
    for wrong in (low - 1, -7):
        with pytest.raises(ConfigError) as caught:
            load_settings(flags=flags(setting.name, wrong))
        assert caught.value.field == setting.name
        value, _, allowed = caught.value.message.partition("; it ")
        assert value == f"{setting.name}: is {wrong} {unit}".rstrip()
        if bounds.le is not None and unit != "ms":
            assert allowed == f"must be from {low} to {bounds.le} {unit}".rstrip()
        elif low:
            least = f"{low} {unit}".rstrip().replace("1 bytes", "1 byte")
            assert f"must be at least {least}" in allowed
        else:
            assert allowed == "cannot be negative"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"worker": {"poll_ms": "0s"}}, "worker.poll_ms: is 0 ms; it must be at least 1 ms"),
        ({"worker": {"lease_ms": -5}}, "worker.lease_ms: is -5 ms; it cannot be negative"),
        (
            {"retention": {"sent_ms": "40000d"}},
            "retention.sent_ms: is '40000d'; at most 100 years are allowed",
        ),
        (
            {"slots": {"bulk": 0}},
            "slots.bulk: is 0; it must be at least 1; with 0, notifications would never be sent",
        ),
        ({"service": {"body_bytes": 0}}, "service.body_bytes: is 0 bytes; it must be at least 1 byte"),
        (
            {"service": {"workers": -1}},
            "service.workers: is -1; it cannot be negative and must be at least 1",
        ),
        ({"thresholds": {"failure_rate": -1}}, "thresholds.failure_rate: is -1 %; it cannot be negative"),
        ({"tracing": {"share": 1.5}}, "tracing.share: is 1.5; it must be from 0 to 1"),
        (
            {"service": {"rate_per_second": float("inf")}},
            "service.rate_per_second: is inf per second; it must be from 0 to 1000000 per second",
        ),
        ({"slots": {"bulk": 1.5}}, "slots.bulk: is 1.5; it must be an integer"),
        ({"slots": {"bulk": "many"}}, "slots.bulk: is 'many'; it must be an integer"),
        ({"thresholds": {"failure_rate": True}}, "thresholds.failure_rate: is True; it must be a number"),
        ({"http": {"allow_http": "yes"}}, "http.allow_http: is 'yes'; it must be true or false"),
        ({"http": {"allow_ports": ["x"]}}, "http.allow_ports: is ['x']; it must be an array of integers"),
        ({"routes": {"sms": "twilio"}}, "routes.sms: is 'twilio'; it must be an array of strings"),
        ({"log": {"level": "loud"}}, "log.level: is 'loud'; it must be one of debug, info, warning, error"),
        ({"tenant": ""}, "tenant: is empty; give a name"),
        (
            {"service": {"public_url": "notify.example.org"}},
            "service.public_url: is 'notify.example.org'; it must be a URL like https://notify.example.org",
        ),
        ({"limits": {"tenant": 5}}, "limits.tenant: is 5; it must be a table [limits.tenant]"),
        ({"limits": {"tenant": {"of": {"a": {}}}}}, "limits.tenant.of.a.most: is missing"),
        ({"dedup_windows_ms": {"otp": -1}}, "dedup_windows_ms.otp: is -1 ms; it cannot be negative"),
    ],
)
def test_an_error_names_the_setting_the_value_and_what_is_allowed(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags=wrong)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"unsubscribe": {"secret": 12345678}}, "unsubscribe.secret: has the type int; it must be a string"),
        ({"service": {"jwt": ["12345678"]}}, "service.jwt: must be an array of tables"),
    ],
)
def test_an_error_does_not_show_what_may_be_a_secret(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags=wrong)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "name", ["worker.settle_backlog", "look_ups.every_ms", "limits.depth", "service.stop_ms"]
)
def test_a_field_that_is_not_a_setting_is_unknown(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: is not known"):
        load_settings(flags=flags(name, 5))


def test_an_engine_without_settings_has_the_same_defaults() -> None:
    """The locales, rate limits and name of runs differ on purpose: the engine itself has none."""
    made = build_engine_settings(load_settings(), own_renderer=True)
    own = EngineSettings(name=made.name)
    differs = {
        one.name for one in fields(EngineSettings) if getattr(made, one.name) != getattr(own, one.name)
    }
    assert differs - {"intake"} == {"paces", "process_name"}
    assert made.intake.synchronous_types == own.intake.synchronous_types
    assert made.intake.limits.fan_out == own.intake.limits.fan_out


def test_the_code_map_names_the_struct_of_every_table() -> None:
    text = (Path(__file__).parents[3] / "docs/explanation/code-map.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `\[(\w+)\]` \| `([\w/.:]+)`", text, re.MULTILINE))
    tables = {name: hint for name, hint in setting_types(Settings).items() if isinstance(hint, type)}
    assert told == {
        name: f"{kind.__module__.removeprefix('homing.').replace('.', '/')}.py::{kind.__name__}"
        for name, kind in tables.items()
        if issubclass(kind, Struct)
    }
