"""The settings of a RabbitMQ connection: URLs, credentials, certificates, and errors without secrets."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from homing.bridges.rabbitmq import RabbitMqBridge
from homing.brokers.rabbitmq import RabbitMqLogin, read_server
from homing.brokers.redis import RedisLogin
from homing.compose.factories import find_options
from homing.core.errors import ConfigError
from homing.net.secrets import Secret
from homing.providers.rabbitmq.provider import RabbitMqProvider
from homing.sinks.rabbitmq import RabbitMqSink
from homing.sinks.redis import RedisSink
from homing.timers.redis import RedisTimer


def url_of(given: str, **options: Any) -> URL:
    return URL(read_server(given, **options).url.reveal(), encoded=True)


def test_a_url_without_details_has_rabbitmq_s_defaults() -> None:
    url = url_of("amqp://broker.example")
    assert (url.host, url.port, url.user, url.password) == ("broker.example", 5672, "guest", "guest")
    assert url.raw_path == "/%2F"
    assert dict(url.query) == {"heartbeat": "10", "auth": "plain", "name": "homing"}


def test_tls_has_its_own_port_and_verifies_certificates() -> None:
    server = read_server("amqps://broker.example")
    assert server.encrypted
    assert server.context is not None
    assert server.context.check_hostname
    assert url_of("amqps://broker.example").port == 5671


def test_the_settings_take_precedence_over_the_url() -> None:
    url = url_of("amqp://ada:one@broker:99/shop?heartbeat=30", username="bob", password="two@:/")
    assert (url.user, url.password, url.port, url.raw_path) == ("bob", "two@:/", 99, "/shop")
    assert url.query["heartbeat"] == "30"


def test_credentials_come_from_the_environment_and_from_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BROKER", "amqp://broker/")
    (tmp_path / "password").write_text("pass word\n")
    url = url_of("env:BROKER", username="ada", password=f"file:{tmp_path / 'password'}")
    assert (url.host, url.password) == ("broker", "pass word")


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30))
def test_any_password_survives(text: str) -> None:
    url = url_of("amqp://broker/", username="ada", password=Secret(text))
    assert url.password == text


@pytest.mark.parametrize(
    "url",
    [
        "http://ada:s3cret@broker/",
        "ada:s3cret@broker",
        "amqp://ada:s3cret@broker:port/",
        "amqp://ada:s3cret@broker:99999/",
        "amqp://ada:s3cret@broker:0/",
        "amqp://ada:s3cret@/",
        "amqp://ada:s3cret@[broker/",
        "amqp://ada:s3cret@broker/one/two",
        "amqp://ada:s3cret@broker/one#two",
        "amqp://ada:s3cret@broker/?ca_certs=x",
        "amqp://ada:s3cret@broker/?heartbeat=never",
    ],
)
def test_an_error_about_a_url_never_contains_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_server(url)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"heartbeat_s": 0}, "heartbeat_s"),
        ({"connect_timeout_ms": 0}, "connect_timeout_ms"),
        ({"auth": "magic"}, "auth"),
        ({"auth": "external"}, "cert_file"),
        ({"ca_file": "/ca.pem"}, "url"),
    ],
)
def test_an_impossible_setting_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_server("amqp://broker/", **options)
    assert caught.value.field == field


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    bad = str(tmp_path / "bad.pem")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"ca_file": bad}, "ca_file"),
        ({"ca_file": "/nowhere.pem"}, "ca_file"),
        ({"cert_file": bad}, "cert_file"),
        ({"key_file": bad}, "cert_file"),
    ]
    for options, field in cases:
        with pytest.raises(ConfigError) as caught:
            read_server("amqps://broker/", **options)
        assert caught.value.field == field


def test_a_client_certificate_can_be_the_login(tmp_path: Path) -> None:
    path = tmp_path / "client.pem"
    trustme.CA().issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(path)
    assert url_of("amqps://broker/", auth="external", cert_file=str(path)).query["auth"] == "external"


def test_the_place_in_errors_has_no_credentials() -> None:
    server = read_server("amqp://ada:s3cret@broker/shop")
    assert server.place == "broker:5672, virtual host 'shop'"
    assert "s3cret" not in repr(server)


def test_a_setting_that_no_connection_has_is_refused_as_in_a_plain_call() -> None:
    unknown: dict[str, Any] = {"usrname": "ada"}
    for kind in (RabbitMqProvider, partial(RabbitMqSink, queue="events"), RabbitMqBridge):
        with pytest.raises(TypeError, match="unexpected keyword argument 'usrname'"):
            kind(url="amqp://broker/", **unknown)
    for other in (RedisTimer, RedisSink):
        with pytest.raises(TypeError, match="unexpected keyword argument 'usrname'"):
            other("redis://broker/", **unknown)


def test_the_settings_of_a_connection_are_settings_of_everything_that_connects() -> None:
    for kind in (RabbitMqProvider, RabbitMqSink, RabbitMqBridge):
        assert find_options(kind).keys() >= {"url", *RabbitMqLogin.__annotations__}, kind
    for other in (RedisTimer, RedisSink):
        assert find_options(other).keys() >= {"url", *RedisLogin.__annotations__}, other
