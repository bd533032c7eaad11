"""From settings to wired objects: stores, providers, routes, sinks; and errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from homing import Channel, ConfigError, Delivery, Homing, Listed, RateLimit
from homing.compose import (
    build_callback_sink,
    build_engine_settings,
    build_roster,
    build_sinks,
    build_store,
    list_provider,
)
from homing.core.notifications import Mode
from homing.core.routing.failover import RouteStep
from homing.engine.provider_roster import ProviderRoster
from homing.engine.system_runtime import SystemClock
from homing.providers.local.console import ConsoleProvider
from homing.providers.local.file import FileProvider
from homing.providers.local.function import FunctionProvider
from homing.providers.local.scripted import ScriptedProvider
from homing.settings import load_settings
from homing.sinks.log import LogSink
from homing.stores.sqlite import SqliteStore
from homing.testing.manual_clock import START_MS, ManualClock


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def wired(providers: dict[str, Any] | None = None, **flags: Any) -> ProviderRoster:
    return build_roster(load_settings(flags={"providers": providers or {}, **flags}))


# Stores ------------------------------------------------------------------------------------------------


@pytest.mark.source("004", "72-73", "75-76")
async def test_memory_is_a_sqlite_store_in_memory_on_the_clock_that_is_passed_in() -> None:
    store = build_store("memory:", ManualClock())
    assert isinstance(store, SqliteStore)
    assert await store.now_ms() == START_MS


@pytest.mark.parametrize("address", ["homing.db", "sqlite:homing.db"])
def test_a_path_is_a_sqlite_file(address: str) -> None:
    assert type(build_store(address)).__name__ == "SqliteStore"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_is_a_postgres_database_and_its_password_is_not_shown(scheme: str) -> None:
    made = build_store(f"{scheme}://ada:secret@db.example.com:5433/app?schema=outbox")
    assert repr(made) == "PostgresStore('db.example.com:5433/app', schema='outbox')"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("mysql://host/db", "mysql:// is not supported"),
        ("postgresql://host/db?schema=No+name", "schema"),
        ("sqlite:", "is empty"),
        ("", "is empty"),
        (":memory:", "write memory:"),
    ],
)
def test_an_invalid_store_is_refused(address: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"store: .*{says}"):
        build_store(address)


# Providers ---------------------------------------------------------------------------------------------


def test_without_any_provider_the_console_serves_all_channels() -> None:
    (listed,) = wired()
    assert isinstance(listed.provider, ConsoleProvider)
    assert listed.channels == tuple(Channel)


def test_a_provider_is_made_from_its_table() -> None:
    table = {
        "kind": "file",
        "path": "out.jsonl",
        "channels": ["email", "sms"],
        "max_in_flight": 7,
        "rate_per_second": 50,
        "rate_burst": 100,
    }
    (listed,) = wired({"Letters": table})
    assert isinstance(listed.provider, FileProvider)
    assert (listed.id, listed.channels) == ("letters", (Channel.EMAIL, Channel.SMS))
    assert (listed.max_in_flight, listed.rate) == (7, RateLimit(50.0, 100))


def test_the_default_burst_is_one_second_s_worth() -> None:
    (listed,) = wired({"x": {"kind": "console", "rate_per_second": 0.5}})
    assert listed.rate == RateLimit(0.5, 1)


def test_the_provider_s_name_is_its_kind_unless_given() -> None:
    (listed,) = wired({"console": {}})
    assert isinstance(listed.provider, ConsoleProvider)


def test_a_provider_given_in_python_is_an_object_a_function_or_listed() -> None:
    async def call(delivery: Delivery) -> None:
        """Accepts everything."""

    own = ScriptedProvider()
    ready = Listed(id="whatever", provider=own, channels=(Channel.SMS,), max_in_flight=1)
    found = build_roster(load_settings(), {"own": own, "call": call, "READY": ready})
    assert [listed.id for listed in found] == ["own", "call", "ready"]
    assert found["own"].provider is own
    assert isinstance(found["call"].provider, FunctionProvider)
    assert found["ready"].max_in_flight == 1


def test_a_class_in_place_of_a_provider_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"providers\.own: is the class ScriptedProvider; give an instance"):
        build_roster(load_settings(), {"own": ScriptedProvider})


def test_plain_methods_of_a_provider_get_threads_and_async_ones_do_not() -> None:
    class Plain:
        def send(self, delivery: Delivery) -> None:
            """Accepts everything."""

    class Mixed(ScriptedProvider):
        def check(self) -> bool:  # type: ignore[override]
            return True

    found = build_roster(load_settings(), {"plain": Plain(), "mixed": Mixed(), "own": ScriptedProvider()})  # type: ignore[dict-item]
    assert [
        (one.id, one.threads is not None, one.check_threads is not None, one.max_in_flight) for one in found
    ] == [("plain", True, False, 32), ("mixed", False, True, 128), ("own", False, False, 128)]


def test_a_provider_given_in_python_can_declare_its_channels() -> None:
    class Birds(ScriptedProvider):
        channels = ("chat",)

    assert list_provider("birds", Birds()).channels == (Channel.CHAT,)
    assert list_provider("birds", Birds(), ["sms"]).channels == (Channel.SMS,)


def test_routes_follow_the_order_of_the_providers_unless_given() -> None:
    providers = {"twilio": {"kind": "console"}, "sns": {"kind": "console", "channels": ["sms", "email"]}}
    found = wired(providers)
    assert found.route(Channel.SMS) == (RouteStep("twilio"), RouteStep("sns"))
    assert found.route(Channel.PUSH) == (RouteStep("twilio"),)
    turned = wired(providers, routes={"sms": ["AWS_SNS", "Twilio"], "email": ["sns"]})
    assert turned.route(Channel.SMS) == (RouteStep("sns"), RouteStep("twilio"))
    assert turned.route(Channel.EMAIL) == (RouteStep("sns"),)


def test_with_host_slots_each_host_is_its_own_outlet() -> None:
    found = wired({"hook": {"kind": "console", "channels": ["webhook"], "host_slots": 3}})
    (stop,) = found.route(Channel.WEBHOOK)
    assert stop.outlet("t", "https://a:b@Example.org:8443/x") == "hook@t/https://example.org:8443"
    assert found["hook"].host_slots == 3


def test_weights_split_routes_with_several_providers() -> None:
    found = wired(
        {
            "a": {"kind": "console", "channels": ["sms", "email", "push"], "weight": 3},
            "b": {"kind": "console", "channels": ["sms", "push"], "weight": 0},
        },
        routes={"push": ["a"]},
    )
    assert found.weights(Channel.SMS) == {"a": 3, "b": 0}
    assert found.weights(Channel.EMAIL) == found.weights(Channel.PUSH) == {}


@pytest.mark.parametrize(
    ("a", "b", "field", "says"),
    [
        ({"weight": 1}, {}, "providers.b.weight", "is missing; sms is split by weight"),
        ({}, {"weight": 0}, "providers.a.weight", "is missing; sms is split by weight"),
        (
            {"weight": 0},
            {"weight": 0},
            "providers.a.weight",
            "all weights of sms; at least one must be greater",
        ),
    ],
)
def test_an_incomplete_split_is_refused(a: dict[str, Any], b: dict[str, Any], field: str, says: str) -> None:
    both = {"kind": "console", "channels": ["sms"]}
    with pytest.raises(ConfigError) as caught:
        wired({"a": {**both, **a}, "b": {**both, **b}})
    assert caught.value.field == field
    assert says in caught.value.message


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("an unknown kind", {"kind": "fax"}, "providers.x.kind", "it must be one of console, file, scripted"),
    ("a kind that is a list", {"kind": ["file"]}, "providers.x.kind", "it must be one of"),
    ("a setting it does not take", {"kind": "file", "pth": "a"}, "providers.x", "pth"),
    ("a setting that is missing", {"kind": "file"}, "providers.x", "path"),
    (
        "an unknown channel",
        {"kind": "console", "channels": ["fax"]},
        "providers.x.channels",
        "'fax'; each channel must be one of",
    ),
    ("one channel as text", {"kind": "console", "channels": "email"}, "providers.x.channels", "list"),
    ("channels as a number", {"kind": "console", "channels": 5}, "providers.x.channels", "list"),
    ("no channels", {"kind": "console", "channels": []}, "providers.x.channels", "at least one"),
    ("nothing in flight", {"kind": "console", "max_in_flight": 0}, "providers.x.max_in_flight", "at least 1"),
    ("text in flight", {"kind": "console", "max_in_flight": "5"}, "providers.x.max_in_flight", "whole"),
    ("no rate", {"kind": "console", "rate_per_second": 0}, "providers.x.rate_per_second", "above 0"),
    ("a rate as text", {"kind": "console", "rate_per_second": "x"}, "providers.x.rate_per_second", "x"),
    ("a rate of nan", {"kind": "console", "rate_per_second": float("nan")}, "providers.x.rate_per", ""),
    ("an endless rate", {"kind": "console", "rate_per_second": float("inf")}, "providers.x.rate_per", ""),
    (
        "no burst",
        {"kind": "console", "rate_per_second": 5, "rate_burst": 0},
        "providers.x.rate",
        "at least 1",
    ),
    ("a burst without a rate", {"kind": "console", "rate_burst": 5}, "providers.x.rate_burst", "rate_per"),
    ("no host slots", {"kind": "console", "host_slots": 0}, "providers.x.host_slots", "at least 1"),
    ("host slots as text", {"kind": "console", "host_slots": "a"}, "providers.x.host_slots", "whole"),
    ("a negative weight", {"kind": "console", "weight": -1}, "providers.x.weight", "at least 0"),
    ("a weight as text", {"kind": "console", "weight": "3"}, "providers.x.weight", "whole"),
    ("half a weight", {"kind": "console", "weight": 0.5}, "providers.x.weight", "whole"),
    ("too heavy", {"kind": "console", "weight": 1_000_001}, "providers.x.weight", "between 0 and 1000000"),
]


@pytest.mark.parametrize(("table", "field", "says"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_provider_that_cannot_be_made_is_named(table: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        wired({"x": table})
    assert caught.value.field.startswith(field)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("routes", "field", "says"),
    [
        ({"fax": ["a"]}, "routes.fax", "each channel must be one of sms, email"),
        ({"sms": ["nobody"]}, "routes.sms", "'nobody'.*providers that do: a"),
        ({"email": ["smsonly"]}, "routes.email", "'smsonly'.*providers that do: a"),
    ],
)
def test_a_route_to_an_unknown_provider_is_named(routes: dict[str, Any], field: str, says: str) -> None:
    providers = {"a": {"kind": "console"}, "smsonly": {"kind": "console", "channels": ["sms"]}}
    with pytest.raises(ConfigError, match=f"{field}: .*{says}"):
        wired(providers, routes=routes)


def test_a_route_that_names_a_provider_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"routes\.sms"):
        wired({"a": {"kind": "console"}}, routes={"sms": ["a", "a"]})


def test_two_spellings_of_one_provider_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"providers\.sns: appears twice"):
        wired({"sns": {"kind": "console"}, "AWS_SNS": {"kind": "console"}})


# Sinks -------------------------------------------------------------------------------------------------


def test_a_sink_is_made_from_its_table() -> None:
    sinks = build_sinks(
        load_settings(flags={"sinks": {"more": {"kind": "log", "events": ["StatusChanged"]}}})
    )
    assert {name: given.events for name, given in sinks.items()} == {
        "log": {"NotificationFailed", "Alert"},
        "more": {"StatusChanged"},
    }
    assert all(isinstance(given.sink, LogSink) for given in sinks.values())


@pytest.mark.parametrize(
    ("table", "field", "says"),
    [
        ({"kind": "pigeon"}, "sinks.x.kind", "it must be one of log"),
        ({"kind": "log", "events": ["Alarm"]}, "sinks.x.events", "'Alarm'; each event must be one of Alert"),
        ({"kind": "log", "events": "Alert"}, "sinks.x.events", "list"),
        ({"kind": "log", "events": 5}, "sinks.x.events", "list"),
        ({"kind": "log", "level": "debug"}, "sinks.x.level", "log"),
    ],
)
def test_a_sink_that_cannot_be_made_is_named(table: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_sinks(load_settings(flags={"sinks": {"x": table}}))
    assert caught.value.field == field
    assert says in caught.value.message


def test_a_function_can_subscribe_only_to_existing_events() -> None:
    with pytest.raises(ConfigError, match="events: has 'Everything'"):
        build_callback_sink(print, ["Everything"])


# Engines -----------------------------------------------------------------------------------------------


def test_the_engine_s_settings_are_those_of_the_file() -> None:
    flags: dict[str, Any] = {
        "tenant": "acme",
        "preset": "simple",
        "worker_name": "w-7",
        "worker": {"poll_ms": 10, "lease_ms": "2m"},
        "slots": {"bulk": 3},
        "limits": {"fan_out": 5},
        "queue_names": {"bulk": "slow"},
        "retention": {"sent_ms": "1d"},
        "thresholds": {"retry_backlog": 7},
        "dedup_windows_ms": {"otp": "1m"},
        "spool": "spool.jsonl",
    }
    made = build_engine_settings(load_settings(flags=flags))
    assert (made.name, made.tenant, made.preset.name) == ("w-7", "acme", "simple")
    assert (made.worker.poll_ms, made.worker.lease_ms) == (10, 120_000)
    assert (made.slots.bulk, made.intake.limits.fan_out) == (3, 5)
    assert made.queue_names[Mode.BULK] == "slow"
    assert made.upkeep.retention.sent_ms == 86_400_000
    assert made.upkeep.thresholds.retry_backlog == 7
    assert made.intake.dedup_windows_ms == {"otp": 60_000}
    assert made.spool == Path("spool.jsonl")


def test_an_unnamed_worker_is_named_after_its_process() -> None:
    assert build_engine_settings(load_settings()).name.endswith(f":{os.getpid()}")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="preset: is 'complex'; it must be one of priority, simple"):
        build_engine_settings(load_settings(flags={"preset": "complex"}))


def test_a_rule_that_contradicts_itself_is_refused_when_the_engine_is_made() -> None:
    for rule, field in (
        ({"name": "a", "base_ms": 10, "cap_ms": 5}, "policy.a.cap_ms"),
        ({"name": "a", "max_attempts": 0}, "policy.a.max_attempts"),
        ({"name": "a", "backoff": "fixed"}, "policy.a.steps_ms"),
        ({"name": "a", "timeout_ms": "2h", "max_age_ms": "1h"}, "policy.a.max_age_ms"),
        ({"name": "a", "factor": 0.5}, "policy.a.factor"),
        ({"name": "a", "base_ms": -1}, "policy.a.base_ms"),
    ):
        with pytest.raises(ConfigError) as caught:
            Homing("memory:", rules=[rule])
        assert caught.value.field == field


def test_the_worker_flag_must_not_be_a_table() -> None:
    with pytest.raises(ConfigError, match="worker"):
        Homing("memory:", worker={"poll_ms": "30s"})  # type: ignore[arg-type]


async def test_the_system_clock_advances() -> None:
    clock = SystemClock()
    before, now = clock.monotonic_ms(), clock.now_ms()
    await clock.sleep_ms(2)
    assert clock.monotonic_ms() > before
    assert clock.now_ms() >= now > 1_700_000_000_000


async def test_a_plain_function_has_as_many_threads_as_slots() -> None:
    def plain(delivery: Delivery) -> None:
        return None

    def careful(delivery: Delivery) -> None:
        return None

    async def quick(delivery: Delivery) -> None:
        return None

    vars(careful)["max_in_flight"] = 1
    roster = build_roster(load_settings(), {"plain": plain, "careful": careful, "quick": quick})
    assert {one.id: one.max_in_flight for one in roster} == {"plain": 32, "careful": 1, "quick": 128}
    assert list_provider("plain", plain, max_in_flight=5).max_in_flight == 5
