"""Settings: default.toml < homing.toml < HOMING_* < flags; errors name the setting and what is allowed."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from homing import ConfigError, Rule
from homing.settings import Settings, build_rule, default_settings_text, load_settings
from homing.settings.retry_scheduler import read_retry_scheduler_variables


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str) -> Path:
    path = Path("test.toml")
    path.write_text(text, encoding="utf-8")
    return path


def squared(attempt: int) -> float:
    """A backoff function that a rule below names."""
    return attempt**2 * 1000.0


# Where settings come from ------------------------------------------------------------------------------


def test_without_other_sources_the_default_file_applies() -> None:
    raw = tomllib.loads(default_settings_text())
    settings = load_settings()
    assert set(raw) <= set(Settings.__struct_fields__)
    assert (settings.store, settings.tenant, settings.preset) == ("homing.db", "default", "priority")
    assert settings.worker.poll_ms == 1000
    assert settings.retention.sent_ms == 7 * 86_400_000
    assert settings.limits.content_bytes == 256 * 1024
    assert settings.synchronous_types == ("otp", "2fa", "driver_assigned")
    assert settings.sinks == {"log": {"kind": "log", "events": ["NotificationFailed", "Alert"]}}


def test_each_source_overrides_the_previous_one() -> None:
    file = written('tenant = "file"\nstore = "file.db"\nspool = "file.spool"\n')
    env = {"HOMING_STORE": "env.db", "HOMING_SPOOL": "env.spool", "PATH": "/bin"}
    settings = load_settings(file, env=env, flags={"spool": "flag.spool", "tenant": None})
    assert (settings.tenant, settings.store, settings.spool) == ("file", "env.db", "flag.spool")


def test_a_homing_toml_in_the_current_folder_is_read_automatically() -> None:
    Path("homing.toml").write_text('tenant = "here"\n', encoding="utf-8")
    assert load_settings().tenant == "here"


POSTGRES = "postgresql://app@localhost/notifications"


@pytest.mark.source("004", "221")
@pytest.mark.parametrize("url", [POSTGRES, "postgres://app@localhost/notifications"])
def test_without_a_file_the_database_url_names_the_store(url: str) -> None:
    assert load_settings(database_url=url).store == url
    assert load_settings(database_url=url, env={"HOMING_STORE": "env.db"}).store == "env.db"
    assert load_settings(database_url=url, flags={"store": "flag.db"}).store == "flag.db"


def test_with_a_file_or_for_another_system_the_database_url_is_ignored() -> None:
    for url in ("", "mysql://app@localhost/shop", "sqlite:///shop.db"):
        assert load_settings(database_url=url).store == "homing.db"
    assert load_settings(written('tenant = "file"\n'), database_url=POSTGRES).store == "homing.db"
    Path("homing.toml").write_text('tenant = "here"\n', encoding="utf-8")
    assert load_settings(database_url=POSTGRES).store == "homing.db"


@pytest.mark.source("004", "204-205", "222")
def test_the_example_of_an_environment_has_only_settings_that_exist() -> None:
    lines = (Path(__file__).parents[3] / ".env.example").read_text(encoding="utf-8").splitlines()
    env = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    settings = load_settings(env=env, without_file=lambda: read_retry_scheduler_variables(env))
    assert settings.store == env["DATABASE_URL"]
    assert (settings.preset, settings.worker.poll_ms) == ("broker", 10_000)
    assert (settings.metrics.listen, settings.tracing.service_name) == ("127.0.0.1:8086", "retry-scheduler")
    assert (settings.log.format, settings.log.level) == ("json", "info")
    assert settings.bridges["rabbitmq"] == {
        "url": "amqp://localhost:5672",
        "queue": "retry.scheduled",
        "manual_review_queue": "manual-review.pending",
    }
    (rule,) = settings.rules
    assert rule.policy.given() == {"max_attempts": 4, "base_ms": 2_000, "cap_ms": 60_000}
    others = load_settings(without_file=lambda: read_retry_scheduler_variables({"DATABASE_URL": POSTGRES}))
    assert others.rules == settings.rules, "the example has the defaults"


def test_names_of_the_retry_scheduler_count_only_without_a_file_and_below_those_of_homing() -> None:
    env = {"RETRY_QUEUE": "mine", "HTTP_PORT": "9", "HOMING_BRIDGES__RABBITMQ__QUEUE": "ours"}
    names = partial(read_retry_scheduler_variables, env)
    settings = load_settings(env=env, without_file=names)
    assert (settings.bridges["rabbitmq"]["queue"], settings.metrics.listen) == ("ours", "127.0.0.1:9")
    assert load_settings(written('tenant = "file"\n'), without_file=names).bridges == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PORT", "65536"),
        ("HTTP_PORT", "-1"),
        ("BASE_DELAY_MS", "two"),
        ("MAX_DELAY_MS", "0"),
        ("DEFAULT_MAX_RETRIES", "1000"),
        ("DATABASE_URL", "mysql://db/x"),
    ],
)
def test_a_wrong_variable_of_the_retry_scheduler_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_retry_scheduler_variables({name: value})
    assert caught.value.field == name


def test_tables_are_merged_key_by_key() -> None:
    file = written("[slots]\nbulk = 3\n[providers.out]\nkind = 'file'\npath = 'a'\n")
    env = {"HOMING_SLOTS__STANDARD": "9", "HOMING_PROVIDERS__OUT__PATH": "b"}
    settings = load_settings(file, env=env, flags={"slots": {"priority": 5}})
    assert (settings.slots.priority, settings.slots.standard, settings.slots.bulk) == (5, 9, 3)
    assert settings.providers == {"out": {"kind": "file", "path": "b"}}


def test_variables_may_contain_numbers_lists_and_text() -> None:
    env = {
        "HOMING_SYNCHRONOUS_TYPES": '["alarm"]',
        "HOMING_THRESHOLDS__FAILURE_RATE": "2.5",
        "HOMING_WORKER__POLL_MS": "5m",
        "HOMING_TENANT": "42",
        "HOMING_STORE": "true",
    }
    settings = load_settings(env=env)
    assert settings.synchronous_types == ("alarm",)
    assert settings.thresholds.failure_rate == 2.5
    assert settings.worker.poll_ms == 300_000
    assert (settings.tenant, settings.store) == ("42", "true")


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("METRICS__LISTEN", "9464", "9464"),
        ("UNSUBSCRIBE__SECRET", "true", "true"),
        ("QUIET_HOURS__START", "22:00:00", "22:00:00"),
        ("QUEUE_NAMES__BULK", "1e3", "1e3"),
        ("METRICS__LISTEN", '"9464"', "9464"),
        ("UNSUBSCRIBE__SECRET", "env:SECRET", "env:SECRET"),
    ],
)
def test_a_variable_for_text_may_look_like_another_value(variable: str, value: str, text: str) -> None:
    found: Any = load_settings(env={f"HOMING_{variable}": value})
    for name in variable.lower().split("__"):
        found = getattr(found, name)
    assert found == text


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('tenant = "acme"\n')
    assert load_settings(env={"HOMING_CONFIG": str(file)}).tenant == "acme"
    other = tmp_path / "other.toml"
    other.write_text('tenant = "globex"\n')
    assert load_settings(other, env={"HOMING_CONFIG": str(file)}).tenant == "globex"


# Rules -------------------------------------------------------------------------------------------------


def test_a_rule_is_one_flat_table() -> None:
    settings = load_settings(
        written(
            """
            [[rules]]
            name = "incidents"
            type = "incident"
            channel = "sms"
            max_attempts = 5
            base_ms = "10m"
            steps_ms = ["1m", 120000]
            backoff = "fixed"
            """
        )
    )
    (rule,) = settings.rules
    assert (rule.name, rule.type, rule.channel, rule.tenant) == ("incidents", "incident", "sms", "*")
    assert rule.policy.given() == {
        "max_attempts": 5,
        "base_ms": 600_000,
        "steps_ms": (60_000, 120_000),
        "backoff": "fixed",
    }


def test_a_rule_given_in_python_is_used_unchanged() -> None:
    rule = Rule(name="x")
    assert load_settings(flags={"rules": [rule]}).rules == (rule,)


@pytest.mark.parametrize("call", [squared, f"{__name__}:squared"])
def test_a_rule_may_name_a_function(call: Any) -> None:
    rule = build_rule({"name": "mine", "backoff": "callable", "call": call}, "rules[0]")
    assert rule.policy.given()["call"](3) == 9000


@pytest.mark.parametrize("call", ["nowhere.at:all", "math", "math:pi", f"{__name__}:nothing", 5])
def test_a_missing_function_is_refused(call: Any) -> None:
    with pytest.raises(ConfigError, match=r"rules\[0\]\.call"):
        build_rule({"name": "mine", "backoff": "callable", "call": call}, "rules[0]")


# Errors ------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("a misspelt key", {"presett": "simple"}, "presett", "did you mean preset?"),
    ("a key of nothing", {"zzz": 1}, "zzz", "it must be one of store, tenant"),
    ("a misspelt key in a table", {"slots": {"bullk": 1}}, "slots.bullk", "did you mean bulk?"),
    ("a misspelt key in another", {"worker": {"pol_ms": 1}}, "worker.pol_ms", "did you mean poll_ms?"),
    ("a misspelt limit", {"limits": {"fanout": 1}}, "limits.fanout", "fan_out"),
    ("a misspelt age", {"retention": {"send_ms": 1}}, "retention.send_ms", "sent_ms"),
    ("a misspelt threshold", {"thresholds": {"retry_backlogs": 1}}, "thresholds.retry_backlogs", "backlog"),
    ("a misspelt queue", {"queue_names": {"buk": "x"}}, "queue_names.buk", "bulk"),
    (
        "a rule's misspelt key",
        {"rules": [{"name": "a", "max_atempts": 1}]},
        "rules[0].max_atempts",
        "max_att",
    ),
    ("a rule without a name", {"rules": [{"max_attempts": 1}]}, "rules[0].name", "needs a name"),
    ("a rule that is a number", {"rules": [5]}, "rules[0]", "[[rules]]"),
    ("rules that are a number", {"rules": 5}, "rules", "[[rules]]"),
    ("rules that are one table", {"rules": {"name": "x"}}, "rules", "[[rules]]"),
    (
        "a rule's number as text",
        {"rules": [{"name": "a", "max_attempts": "many"}]},
        "rules[0].max_attempts",
        "is 'many'; it must be an integer",
    ),
    (
        "a rule's unknown backoff",
        {"rules": [{"name": "a", "backoff": "cubic"}]},
        "rules[0].backoff",
        "is 'cubic'; it must be one of exponential, ",
    ),
    ("a rule's type that is a number", {"rules": [{"name": "a", "type": 5}]}, "rules[0].type", "be a string"),
    ("a rule's name that is a number", {"rules": [{"name": 5}]}, "rules[0].name", "be a string"),
    ("steps that are a table", {"rules": [{"name": "a", "steps_ms": {}}]}, "rules[0].steps_ms", "list"),
    ("a rule's unknown channel", {"rules": [{"name": "a", "channel": "fax"}]}, "policy.a.channel", "sms"),
    (
        "a rule's unknown priority",
        {"rules": [{"name": "a", "priority": "asap"}]},
        "policy.a.priority",
        "high",
    ),
    ("steps that are no list", {"rules": [{"name": "a", "steps_ms": 5}]}, "rules[0].steps_ms", "list"),
    ("a step that is no time", {"rules": [{"name": "a", "steps_ms": ["x"]}]}, "rules[0].steps_ms", "30s"),
    ("a table that is a number", {"slots": 5}, "slots", "must be a table [slots]"),
    ("text for a number", {"slots": {"bulk": "many"}}, "slots.bulk", "int"),
    ("a flag for a number", {"slots": {"bulk": True}}, "slots.bulk", "int"),
    ("a number for text", {"tenant": 5}, "tenant", "str"),
    ("no tenant", {"tenant": ""}, "tenant", "is empty"),
    ("no slots", {"slots": {"bulk": 0}}, "slots", "at least 1"),
    ("negative slots", {"slots": {"bulk": -1}}, "slots.bulk", "cannot be negative"),
    ("no poll", {"worker": {"poll_ms": 0}}, "worker.poll_ms", "at least 1"),
    ("a negative lease", {"worker": {"lease_ms": -1}}, "worker.lease_ms", "cannot be negative"),
    ("a negative age", {"retention": {"keys_ms": "-1"}}, "retention.keys_ms", "cannot be negative"),
    ("a negative threshold", {"thresholds": {"failure_rate": -1.0}}, "thresholds.failure_rate", "negative"),
    ("no recipients to fan out to", {"limits": {"fan_out": 0}}, "limits.fan_out", "at least 1"),
    ("a negative window", {"dedup_windows_ms": {"otp": -1}}, "dedup_windows_ms.otp", "cannot be negative"),
    ("a window that is no time", {"dedup_windows_ms": {"otp": "x"}}, "dedup_windows_ms.otp", "30s"),
    ("a provider that is a number", {"providers": {"x": 5}}, "providers.x", "table [providers.x]"),
    ("a sink that is text", {"sinks": {"x": "log"}}, "sinks.x", "table [sinks.x]"),
    ("a route that is text", {"routes": {"sms": "twilio"}}, "routes", "array"),
    ("types that are text", {"synchronous_types": "otp"}, "synchronous_types", "array"),
    ("a time that is not a number", {"worker": {"lease_ms": float("nan")}}, "worker.lease_ms", "30s"),
]


@pytest.mark.parametrize(("flags", "field", "says"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_setting_is_named_with_what_is_allowed(flags: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags=flags)
    assert caught.value.field.startswith(field)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("source", "said"), [("file", "test.toml"), ("env", "the environment"), ("flags", "the arguments")]
)
def test_a_misspelt_setting_is_reported_with_its_place(source: str, said: str) -> None:
    sources: dict[str, dict[str, Any]] = {
        "file": {"path": written('presset = "simple"')},
        "env": {"env": {"HOMING_PRESSET": "simple"}},
        "flags": {"flags": {"presset": "simple"}},
    }
    with pytest.raises(ConfigError, match=f"presset: is not known; did you mean preset.*{said}"):
        load_settings(**sources[source])


def test_a_variable_for_a_table_and_one_for_its_part_are_mutually_exclusive() -> None:
    for names in (("HOMING_SLOTS", "HOMING_SLOTS__BULK"), ("HOMING_SLOTS__BULK", "HOMING_SLOTS")):
        with pytest.raises(ConfigError, match="both set"):
            load_settings(env=dict.fromkeys(names, "5"))


def test_a_named_file_must_exist() -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        load_settings("missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_settings(Path.cwd())


def test_invalid_toml_is_reported_with_its_position() -> None:
    with pytest.raises(ConfigError, match=r"test\.toml: is not valid TOML: .*line 2"):
        load_settings(written('store = "x"\ntenant = \n'))
    Path("test.toml").write_bytes(b'store = "\xff"')
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_settings("test.toml")


def test_loading_twice_keeps_settings_separate() -> None:
    load_settings(flags={"slots": {"bulk": 1}, "providers": {"a": {"kind": "console"}}})
    assert load_settings().slots.bulk == 64
    assert load_settings().providers == {}


@pytest.mark.source("003", "43", "258-263", "398-402")
def test_preset_fixed_keeps_sent_notifications_for_a_day_unless_the_settings_say_otherwise() -> None:
    day_ms = 24 * 3_600_000
    assert load_settings(flags={"preset": "fixed"}).retention.sent_ms == day_ms
    assert load_settings(flags={"preset": "fixed"}).retention.others_ms == 30 * day_ms
    assert load_settings(flags={"preset": "simple"}).retention.sent_ms == 7 * day_ms
    given = load_settings(flags={"preset": "fixed", "retention": {"sent_ms": "2d"}})
    assert given.retention.sent_ms == 2 * day_ms
