"""SNS with AWS's default credential chain. Stand-ins for AWS's own servers run on this machine."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.net.http_client import CurlTransport
from homing.providers.sns.provider import SnsProvider
from homing.testing.fault_server import (
    HANG_AFTER_READING,
    FaultServer,
    ReceivedRequest,
    ServerAction,
    answer,
)
from support.sms_deliveries import a_delivery, an_sns
from support.vector_files import vectors

WIRE = vectors("sns_wire")
TAKEN = answer(200, WIRE["success"]["body"].encode())
(EXPIRED,) = (
    answer(row["status"], row["body"].encode()) for row in WIRE["errors"] if row["code"] == "ExpiredToken"
)
ROLE = "/latest/meta-data/iam/security-credentials/"
MINUTE_MS = 60_000


class Clock:
    """The wall clock, which tests can move ahead."""

    ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class FakeAws:
    """SNS, the instance's metadata and the container's credentials, on one port."""

    def __init__(self) -> None:
        self.server = FaultServer(self._act)
        self.issued = 0
        """Number of credentials that were issued. Their ids are ASIA1, ASIA2 …"""
        self.lifetime_ms = 60 * MINUTE_MS
        self.metadata: ServerAction | None = None
        """Response to every request for metadata, if not the usual one."""
        self.expired_ids: set[str] = set()
        self.sns = TAKEN

    def _act(self, received: ReceivedRequest) -> ServerAction:
        if received.path == "/" and received.method == "POST":
            return EXPIRED if key_id(received) in self.expired_ids else self.sns
        if self.metadata is not None:
            return self.metadata
        if received.path == "/latest/api/token":
            return answer(200, b"imds-token", {"x-aws-ec2-metadata-token-ttl-seconds": "21600"})
        if received.path == ROLE:
            return answer(200, b"homing-role")
        assert received.path in (f"{ROLE}homing-role", "/container"), received.path
        return self._issue()

    def _issue(self) -> ServerAction:
        self.issued += 1
        expires_s = time.time() + self.lifetime_ms / 1000
        issued = {
            "Code": "Success",
            "AccessKeyId": f"ASIA{self.issued}",
            "SecretAccessKey": "secret",
            "Token": "session",
            "Expiration": f"{datetime.fromtimestamp(expires_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        return answer(200, json.dumps(issued).encode(), {"content-type": "application/json"})

    @property
    def ids(self) -> list[str]:
        """Key ids of the requests to SNS."""
        return [key_id(one) for one in self.server.received if one.path == "/" and one.method == "POST"]


def key_id(received: ReceivedRequest) -> str:
    found = re.search(r"Credential=([^/]+)/", received.headers["authorization"])
    assert found
    return found[1]


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hides the machine's own credentials."""
    for name in (
        "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "DEFAULT_PROFILE", "ROLE_ARN",
        "REGION", "DEFAULT_REGION", "WEB_IDENTITY_TOKEN_FILE", "CONTAINER_CREDENTIALS_FULL_URI",
        "CONTAINER_CREDENTIALS_RELATIVE_URI",
    ):  # fmt: skip
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
async def aws() -> AsyncIterator[FakeAws]:
    fake = FakeAws()
    async with fake.server:
        yield fake


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., SnsProvider]


@pytest.fixture
async def make(aws: FakeAws, clock: Clock) -> AsyncIterator[Make]:
    """Makes providers without keys in their settings."""
    transport = CurlTransport()
    made: list[SnsProvider] = []

    def make(**settings: Any) -> SnsProvider:
        given = {"base_url": aws.server.url, "access_key_id": "", "secret_access_key": "", "now_ms": clock}
        made.append(an_sns(transport, **{**given, **settings}))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()
    await transport.close()
    for thread in threading.enumerate():
        if thread.name.startswith("homing-aws"):  # its search must not reach the next test's servers
            await asyncio.to_thread(thread.join, 60)


def use_instance_role(monkeypatch: pytest.MonkeyPatch, aws: FakeAws) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", aws.server.url)


def write_profile(tmp_path: Path, profile: str, id: str) -> None:
    lines = f"[{profile}]\naws_access_key_id = {id}\naws_secret_access_key = secret\n"
    (tmp_path / "credentials").write_text(lines)


async def send(provider: SnsProvider, **fields: Any) -> Outcome:
    return await provider.send(a_delivery(**fields))


async def test_keys_come_from_the_environment(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "temporary")
    provider = make()
    assert (await send(provider)).kind is OutcomeKind.ACCEPTED
    assert aws.ids == ["AKIAENV"]
    assert aws.server.received[-1].headers["x-amz-security-token"] == "temporary"


@pytest.mark.parametrize("by", ["setting", "environment"])
async def test_keys_come_from_a_profile(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str
) -> None:
    write_profile(tmp_path, "mail", "AKIAPROFILE")
    if by == "environment":
        monkeypatch.setenv("AWS_PROFILE", "mail")
    assert (await send(make(profile="mail" if by == "setting" else ""))).kind is OutcomeKind.ACCEPTED
    assert aws.ids == ["AKIAPROFILE"]


async def test_keys_come_from_the_role_of_the_instance(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instance_role(monkeypatch, aws)
    # The metadata server runs on this event loop, so it can answer only if the search does not block it.
    provider = make()
    outcomes = await asyncio.gather(*(send(provider) for _ in range(20)))
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.ACCEPTED}
    assert aws.ids == ["ASIA1"] * 20
    assert aws.issued == 1, "all sends share one search"


async def test_keys_come_from_the_role_of_the_container(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{aws.server.url}/container")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod-identity")
    assert (await send(make())).kind is OutcomeKind.ACCEPTED
    assert aws.ids == ["ASIA1"]
    (asked,) = (one for one in aws.server.received if one.path == "/container")
    assert asked.headers["authorization"] == "pod-identity"


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


async def test_keys_come_from_a_web_identity(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moto_url: str
) -> None:
    (tmp_path / "identity").write_text("a-service-account-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "identity"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/homing")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto_url)
    assert (await send(make())).kind is OutcomeKind.ACCEPTED
    assert re.fullmatch(r"ASIA[A-Z0-9]+", aws.ids[0])


async def test_keys_come_from_a_role_that_a_profile_assumes_in_the_region_of_the_provider(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moto_url: str
) -> None:
    write_profile(tmp_path, "base", "AKIABASE")
    lines = "[profile mail]\nrole_arn = arn:aws:iam::123456789012:role/homing\nsource_profile = base\n"
    (tmp_path / "config").write_text(lines)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto_url)
    outcome = await send(make(profile="mail"))
    assert outcome.kind is OutcomeKind.ACCEPTED, outcome
    assert re.fullmatch(r"ASIA[A-Z0-9]+", aws.ids[0])


async def test_temporary_keys_are_refreshed_while_the_old_ones_are_in_use(
    aws: FakeAws, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instance_role(monkeypatch, aws)
    provider = make()
    await send(provider)
    clock.ahead_ms = 49 * MINUTE_MS
    await send(provider)
    assert aws.issued == 1, "not yet due"
    clock.ahead_ms = 51 * MINUTE_MS
    await send(provider)
    assert aws.ids == ["ASIA1"] * 3, "the old keys are still in use"
    async with asyncio.timeout(30):
        while aws.ids[-1] != "ASIA2":
            await send(provider)
    assert aws.issued == 2


async def test_expired_keys_are_never_used(
    aws: FakeAws, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instance_role(monkeypatch, aws)
    provider = make()
    await send(provider)
    clock.ahead_ms = 60 * MINUTE_MS
    await send(provider)
    assert aws.ids == ["ASIA1", "ASIA2"]


async def test_a_failed_refresh_does_not_stop_sends_before_the_expiry(
    aws: FakeAws, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instance_role(monkeypatch, aws)
    provider = make()
    await send(provider)
    aws.metadata = answer(500)
    for ahead in (51, 59):
        clock.ahead_ms = ahead * MINUTE_MS
        assert (await send(provider)).kind is OutcomeKind.ACCEPTED
    assert aws.ids == ["ASIA1"] * 3


async def test_rejected_keys_are_searched_for_again(aws: FakeAws, make: Make, tmp_path: Path) -> None:
    write_profile(tmp_path, "default", "AKIAOLD")
    provider = make()
    await send(provider)
    aws.expired_ids = {"AKIAOLD"}
    outcome = await send(provider)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.PROVIDER_FAULT, "ExpiredToken")
    write_profile(tmp_path, "default", "AKIANEW")
    outcomes = await asyncio.gather(send(provider), send(provider))
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.ACCEPTED] * 2
    assert aws.ids[-1] == "AKIANEW"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDenied", OutcomeKind.PROVIDER_FAULT),
        ("Throttling", OutcomeKind.TRANSIENT),
        ("IDPCommunicationError", OutcomeKind.TRANSIENT),
    ],
)
async def test_only_a_refusal_of_the_role_is_permanent(
    aws: FakeAws,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: str,
    kind: OutcomeKind,
) -> None:
    """STS also uses status 400 for errors that pass."""
    (tmp_path / "identity").write_text("a-service-account-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "identity"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/homing")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"{aws.server.url}/sts")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    error = f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"
    aws.metadata = answer(400, error.encode(), {"content-type": "text/xml"})
    assert (await send(make())).kind is kind
    assert aws.ids == []


async def test_without_credentials_nothing_is_sent(aws: FakeAws, make: Make) -> None:
    provider = make()
    outcome = await send(provider)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.PROVIDER_FAULT, "credentials_missing")
    assert not await provider.check()
    assert aws.server.received == []


async def test_a_profile_that_does_not_exist_is_named(aws: FakeAws, make: Make) -> None:
    outcome = await send(make(profile="nobody"))
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.PROVIDER_FAULT, "credentials_missing")
    assert "nobody" in (outcome.error or "")


async def test_a_health_check_searches_for_credentials(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instance_role(monkeypatch, aws)
    assert await make().check()
    assert aws.ids == ["ASIA1"]


@pytest.mark.parametrize("code", ["ExpiredToken", "UnrecognizedClientException", "SignatureDoesNotMatch"])
async def test_a_health_check_fails_if_sns_rejects_the_credentials(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    error = f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"
    aws.sns = answer(403, error.encode(), {"content-type": "text/xml"})
    assert not await make().check()


async def test_a_send_waits_for_credentials_only_half_of_its_time(
    aws: FakeAws, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instance_role(monkeypatch, aws)
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "30")
    aws.metadata = HANG_AFTER_READING
    outcome = await send(make(), timeout_ms=200)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.TRANSIENT, "credentials_unavailable")
    assert "100 ms" in (outcome.error or "")
    assert aws.ids == []
    await aws.server.stop()


async def test_secrets_stay_hidden(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish")
    provider = make()
    await send(provider)
    assert "swordfish" not in repr(provider) + repr(vars(provider))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"access_key_id": "AKIA"}, "secret_access_key"),
        ({"secret_access_key": "secret"}, "access_key_id"),
        ({"session_token": "token"}, "access_key_id"),
        ({"access_key_id": "AKIA", "secret_access_key": "secret", "profile": "mail"}, "profile"),
    ],
)
async def test_incomplete_or_contradicting_settings_are_refused(
    make: Make, settings: dict[str, str], field: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(**settings)
    assert refused.value.field == field
