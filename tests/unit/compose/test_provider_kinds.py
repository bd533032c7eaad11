"""Providers created by kind: what they get, what their class declares, and what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homing import Channel, ConfigError, Delivery, Outcome, OutcomeKind
from homing.compose import build_roster, factories, list_provider
from homing.compose.factories import PROVIDERS
from homing.core.routing.breaker import BreakerPolicy
from homing.engine.provider_roster import ProviderRoster
from homing.net.http_client import CurlTransport
from homing.providers.webhook.provider import WebhookProvider
from homing.settings import load_settings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def wired(providers: dict[str, Any], **flags: Any) -> ProviderRoster:
    return build_roster(load_settings(flags={"providers": providers, **flags}))


def test_all_providers_share_one_transport() -> None:
    found = wired(
        {"webhook": {"secret": SECRET}, "slack": {}, "second": {"kind": "webhook", "secret": SECRET}}
    )
    transports = {id(vars(listed.provider)["_transport"]) for listed in found}
    assert len(transports) == 1


def test_a_kind_has_its_own_channels_slots_and_breaker_and_settings_override_them() -> None:
    found = wired(
        {"webhook": {"secret": SECRET}, "slow": {"kind": "webhook", "secret": SECRET, "host_slots": 2}}
    )
    assert found["webhook"].channels == (Channel.WEBHOOK,)
    assert found["webhook"].host_slots == WebhookProvider.host_slots
    assert found["webhook"].breaker_policy == BreakerPolicy(), "for each endpoint"
    assert found["slow"].host_slots == 2
    assert wired({"slack": {"channels": ["chat", "queue"]}})["slack"].channels == (
        Channel.CHAT,
        Channel.QUEUE,
    )


def test_the_settings_of_a_breaker_override_single_fields_of_its_default() -> None:
    found = wired(
        {
            "mail": {"kind": "file", "path": "a", "channels": ["email"], "breaker": {"failures": 2}},
            "push": {"kind": "file", "path": "b", "channels": ["push"], "breaker": {"open_ms": "5m"}},
            "text": {"kind": "file", "path": "c", "channels": ["sms"], "breaker": "off"},
        }
    )
    assert found["mail"].breaker_policy == BreakerPolicy(failures=2)
    assert found["push"].breaker_policy == BreakerPolicy(failures=10, open_ms=300_000)
    assert found["text"].breaker_policy.off


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ("on", "breaker", "is 'on'; it must be \"off\" or a table [providers.x.breaker]"),
        (False, "breaker", "is False; it must be a table [providers.x.breaker]"),
        ({"failures": -1}, "breaker.failures", "is -1; it cannot be negative"),
        ({"open_ms": "soon"}, "breaker.open_ms", "is 'soon'; give milliseconds or text like 30s, 5m, 1h30m"),
        ({"ramp_per_second": 0}, "breaker.ramp_per_second", "is 0; it must be from 0.1 to 1000000"),
        ({"failurs": 3}, "breaker.failurs", "is not known; did you mean failures?"),
    ],
)
def test_invalid_settings_of_a_breaker_are_named(given: Any, field: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        wired({"x": {"kind": "console", "breaker": given}})
    assert str(caught.value) == f"providers.x.{field}: {problem}"


def test_a_provider_given_in_python_keeps_what_its_class_declares() -> None:
    listed = list_provider("hooks", WebhookProvider(CurlTransport(), secret=SECRET))
    assert (listed.channels, listed.host_slots) == ((Channel.WEBHOOK,), 64)
    assert list_provider("hooks", listed.provider, host_slots=3).host_slots == 3


@pytest.mark.parametrize("kind", ["AWS_SNS", "aws_sns", "SNS", "sns"])
def test_a_kind_may_be_spelled_as_in_the_sources(kind: str) -> None:
    keys = {"region": "eu-west-1", "access_key_id": "a", "secret_access_key": "b"}
    [listed] = wired({"out": {"kind": kind, **keys}})
    assert type(listed.provider).__name__ == "SnsProvider"


@pytest.mark.parametrize("option", ["transport", "now_ms"])
def test_an_injected_argument_is_not_a_setting(option: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"providers\.webhook\.{option}: is not a setting of webhook, which has"
    ):
        wired({"webhook": {"secret": SECRET, option: "mine"}})


def test_a_wrong_setting_is_named_with_its_provider_and_without_its_value() -> None:
    with pytest.raises(ConfigError, match=r"^providers\.hooks\.secret: is not valid base64") as raised:
        wired({"hooks": {"kind": "webhook", "secret": "whsec_!my-secret!"}})
    assert "my-secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"twilio": {}}, "twilio.account_sid: is missing; twilio needs account_sid"),
        ({"smtp": {}}, "smtp.host: is missing; smtp needs host and from_email"),
        (
            {"mail": {"kind": "smtp", "host": "localhost"}},
            "mail.from_email: is missing; smtp needs host and from_email",
        ),
    ],
)
def test_a_missing_setting_is_named_with_all_that_the_kind_needs(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        wired(given)
    assert str(caught.value) == f"providers.{problem}"


async def test_shared_parts_are_closed_after_the_providers_even_if_closing_one_fails() -> None:
    closed = []

    class Part:
        channels = (Channel.CHAT,)

        def __init__(self, name: str) -> None:
            self._name = name

        async def send(self, delivery: Delivery) -> Outcome:
            return Outcome(OutcomeKind.ACCEPTED)

        async def check(self) -> bool:
            return True

        async def close(self) -> None:
            closed.append(self._name)
            if self._name == "first":
                raise OSError

    listed = [list_provider(name, Part(name)) for name in ("first", "second")]
    await ProviderRoster(listed, shared=Part("shared")).close()
    assert closed == ["first", "second", "shared"]


def told(code: str) -> str:
    """Returns what a new interpreter prints."""
    imports = "import sys; from homing.compose import build_roster; from homing.settings import load_settings"
    lines = f"{imports}\n{code}"
    done = subprocess.run([sys.executable, "-c", lines], check=False, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "settings", "library", "extra"),
    [
        ("webhook", {"secret": SECRET}, "pycurl", "providers"),
        ("smtp", {"host": "mail.example.org", "from_email": "a@example.org"}, "aiosmtplib", "smtp"),
        ("apprise", {"urls": ["json://localhost"]}, "apprise", "apprise"),
        ("AWS_SNS", {"region": "r", "access_key_id": "a", "secret_access_key": "b"}, "botocore", "sns"),
    ],
)
def test_a_missing_library_is_named_with_the_extra_to_install(
    kind: str, settings: dict[str, Any], library: str, extra: str
) -> None:
    flags = {"providers": {kind: settings}}
    said = told(f"sys.modules[{library!r}] = None; build_roster(load_settings(flags={flags!r}))")
    assert "ConfigError: providers." in said
    assert f"pip install 'homing[{extra}]'" in said
    assert library in said


def test_no_provider_module_is_imported_before_it_is_used() -> None:
    seen = "print(*[m for m in sys.modules if m.startswith('homing.providers.') or m == 'pycurl'])"
    assert told(f"build_roster(load_settings()); {seen}").split() == [
        "homing.providers.local",
        "homing.providers.local.console",
    ]


@pytest.mark.parametrize(
    ("http", "says"),
    [
        ({"allow_networks": ["intranet"]}, r"^http\.allow_networks: contains 'intranet'"),
        ({"connect_timeout_ms": 0}, r"http\.connect_timeout_ms: is 0 ms; it must be at least 1 ms"),
        ({"max_connections": 0}, r"http\.max_connections: is 0"),
        ({"proxy": "x"}, r"http\.proxy"),
    ],
)
def test_wrong_settings_of_the_http_client_are_named(http: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wired({"webhook": {"secret": SECRET}}, http=http)


def test_every_kind_names_a_class_with_the_required_methods() -> None:
    for kind, address in PROVIDERS.items():
        made: Any = factories.import_object(address)
        assert all(callable(getattr(made, name)) for name in ("send", "check", "close")), kind
