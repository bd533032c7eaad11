"""Wrong settings of any provider are reported at start with the field's name and without the value."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from homing.compose.factories import PROVIDERS, build_from_settings, import_object
from homing.core.errors import ConfigError
from support.all_providers import NAMES, SETTINGS, a_provider, refusal
from support.email_deliveries import UNREACHABLE

# Apprise loads all its plugins, and some of them load old libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

INJECTED = ("transport", "now_ms")
CREDENTIALS = {
    "twilio": ("auth_token", "api_key_secret"),
    "sns": ("access_key_id", "secret_access_key", "session_token"),
    "sendgrid": ("api_key", "webhook_public_key"),
    "acs": ("access_key", "webhook_key", "connection_string"),
    "fcm": ("service_account", "callback_secret"),
    "smtp": ("password",),
    "webhook": ("secret", "secrets"),
    "slack": ("webhook_url",),
    "webpush": ("vapid_private_key",),
    "apprise": ("urls",),
}
MORE = {
    "connection_string": "endpoint=https://x.communication.azure.com;accesskey=c3dvcmRmaXNo",
    "secrets": [SETTINGS["webhook"]["secret"]],
}
EACH = [(kind, field) for kind, fields in CREDENTIALS.items() for field in fields]
WITH_A_BASE_URL = [kind for kind in NAMES if kind not in ("smtp", "apprise", "rabbitmq")]
WRONG: tuple[Any, ...] = (
    5, True, 3.5, [], {}, [1], ["x"], {"a": 1}, {"a": {}}, -1, 10**30, "", "\x00", "a\nb", "https://[", "é",
    "env:HOMING_NOT_SET", "file:/no/such/file", "file:", "file:a\x00b",
)  # fmt: skip


def own(kind: str) -> list[str]:
    return [name for name in signature(import_object(PROVIDERS[kind])).parameters if name not in INJECTED]


@pytest.mark.parametrize("kind", NAMES)
def test_a_setting_of_the_wrong_type_or_form_is_accepted_or_named(kind: str) -> None:
    for field in own(kind):
        for value in WRONG:
            refused = refusal(kind, field, value)
            # An error about related settings names one of them.
            certificates = dict.fromkeys(("ca_file", "cert_file", "key_file"), "url")
            together = {"host": "tls", "url_from_recipient": "urls", **certificates}.get(field, field)
            names = (f"providers.{kind}.{field}", f"providers.{kind}.{together}")
            assert refused is None or refused.field.startswith(names), (field, value)


@pytest.mark.parametrize(
    ("kind", "field", "value", "says"),
    [
        ("twilio", "sender", 15017122661, "give text"),
        ("twilio", "smart_encoded", "yes", "give true or false"),
        ("sendgrid", "categories", "news", "give a list"),
        ("fcm", "android", [], "give a table"),
        ("smtp", "port", "587", "give a whole number"),
        ("sns", "max_price", [], "give text or a number"),
    ],
)
def test_the_error_names_the_expected_type(kind: str, field: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^providers\.{kind}\.{field}: has the wrong type; {says}$"):
        a_provider(kind, UNREACHABLE, **{field: value})


@pytest.mark.parametrize(("kind", "field"), EACH)
def test_every_credential_may_come_from_the_environment_or_a_file(
    kind: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: Any = {**MORE, **SETTINGS[kind]}[field]
    several = isinstance(given, list)
    text = given[0] if several else given
    (tmp_path / "secret").write_text(f"{text}\n")
    monkeypatch.setenv("HOMING_TEST_SECRET", text)
    for where in ("env:HOMING_TEST_SECRET", f"file:{tmp_path / 'secret'}"):
        a_provider(kind, UNREACHABLE, **{field: [where] if several else where})


@pytest.mark.parametrize(("kind", "field"), EACH)
def test_a_missing_credential_is_an_error_at_start(kind: str, field: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for where in ("env:HOMING_NOT_SET", "file:/no/such/file", f"file:{tmp_path / 'empty'}"):
        given: Any = [where] if field == "secrets" else where
        with pytest.raises(ConfigError, match=rf"^providers\.{kind}\.{field}"):
            a_provider(kind, UNREACHABLE, **{field: given})


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("sendgrid", "api_key"),
        ("sns", "access_key_id"),
        ("sns", "session_token"),
    ],
)
@pytest.mark.parametrize("value", ["key\n", " key", "k\r\nX: y", "kéy", "k\x00"])
def test_a_credential_that_is_invalid_in_a_header_is_refused_at_start(
    kind: str, field: str, value: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"^providers\.{kind}\.{field}: .* not allowed in a header"
    ) as refused:
        a_provider(kind, UNREACHABLE, **{field: value})
    assert "k\r\n" not in str(refused.value)


def test_a_subuser_that_is_invalid_in_a_header_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_behalf_of"):
        a_provider("sendgrid", UNREACHABLE, on_behalf_of="a\nb")


@pytest.mark.parametrize("kind", WITH_A_BASE_URL)
@pytest.mark.parametrize(
    "url",
    [
        "api.example.org", "ftp://x", "https://", "https://x:0", "https://x:99999", "https://u:p@x", "https://x?a=b",
        "https://x#a", "https://x/ y", "https://x/{a}", "https://é.example", "https://[", "https://x/\n", "https://x/^",
    ],
)  # fmt: skip
def test_a_base_url_that_the_http_client_would_refuse_is_refused_at_start(kind: str, url: str) -> None:
    with pytest.raises(ConfigError, match=rf"^providers\.{kind}\.base_url: must be a URL like"):
        a_provider(kind, UNREACHABLE, base_url=url)


@pytest.mark.parametrize("kind", WITH_A_BASE_URL)
def test_every_provider_accepts_a_base_url(kind: str) -> None:
    for url in ("http://127.0.0.1:8080", "http://[::1]:8080/x/", "https://eu.api.example.org/v1"):
        a_provider(kind, UNREACHABLE, base_url=url)


@pytest.mark.parametrize("host", ["mail.example:587", "smtp://mail.example", "a b", "", "a/b", "[::1]"])
def test_a_mail_server_is_named_without_port_and_scheme(host: str) -> None:
    with pytest.raises(ConfigError, match="host: must be a host name or IP address"):
        a_provider("smtp", host=host, tls="tls")


@pytest.mark.parametrize("host", ["mail.example", "mail", "10.0.0.1", "::1", "mail.example.", "münchen.de"])
def test_a_mail_server_may_be_a_name_or_an_address(host: str) -> None:
    a_provider("smtp", host=host, tls="tls")


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_an_invalid_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="port: is"):
        a_provider("smtp", port=port)


def of_another_package(name: "OnlyForTypeCheckers" = None) -> Any:  # type: ignore[name-defined]  # noqa: F821, UP037
    """Annotated with names that only a type checker can resolve."""
    return name


def test_a_third_party_provider_may_have_any_annotations() -> None:
    known = {"theirs": f"{__name__}:of_another_package"}
    assert build_from_settings("providers", "theirs", "theirs", known, {"name": 5}) == 5
