"""FCM with Google's default credentials. Stand-ins for Google's own servers run on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from google.auth import transport
from google.oauth2 import credentials

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.net.http_client import CurlTransport
from homing.providers.fcm.access_tokens import SCOPE
from homing.providers.fcm.provider import FcmProvider
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer
from support.push_deliveries import KEY_FILE, SENT, a_push

METADATA = "/computeMetadata/v1/instance/service-accounts/default"
FLAVOR = {"metadata-flavor": "Google", "content-type": "application/json"}
QUOTA_PROJECT = "GOOGLE_CLOUD_QUOTA_PROJECT"
MINUTE_MS = 60_000


class Clock:
    """The wall clock, which tests can move ahead."""

    ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class FakeGoogle:
    """FCM, the token server, the exchange of workload identities and the metadata server, on one port."""

    def __init__(self) -> None:
        self.server = FaultServer(self._act)
        self.issued = 0
        self.refuses: ServerAction | None = None
        """Response to every request for a token, if not the usual one."""
        self.rejected = ""
        """The token that FCM rejects."""

    def _act(self, received: ReceivedRequest) -> ServerAction:
        path = received.path.partition("?")[0].rstrip("/")
        if path.endswith("messages:send"):
            return answer(401) if bearer(received) == self.rejected else SENT
        if path in ("/token", "/sts", f"{METADATA}/token"):
            return self.refuses or self._issue()
        if path == METADATA:
            return answer(200, b'{"email": "homing@example.org", "scopes": []}', FLAVOR)
        if path == "/computeMetadata/v1/project/project-id":
            return answer(200, b"a-project", {"metadata-flavor": "Google", "content-type": "text/plain"})
        return answer(200, b"", {"metadata-flavor": "Google"})

    def _issue(self) -> ServerAction:
        self.issued += 1
        token = {
            "access_token": f"token-{self.issued}",
            "expires_in": 3600,
            "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
        return answer(200, json.dumps(token).encode(), FLAVOR)

    def asked(self, path: str) -> list[ReceivedRequest]:
        return [one for one in self.server.received if one.path.partition("?")[0] == path]

    @property
    def sends(self) -> list[ReceivedRequest]:
        """Requests to FCM."""
        return [one for one in self.server.received if one.path.endswith("messages:send")]

    @property
    def used(self) -> list[str]:
        """Tokens of the requests to FCM."""
        return [bearer(one) for one in self.sends]

    @property
    def charged(self) -> list[str | None]:
        """Projects whose quota the requests to FCM use."""
        return [one.headers.get("x-goog-user-project") for one in self.sends]


def bearer(received: ReceivedRequest) -> str:
    return received.headers["authorization"].removeprefix("Bearer ")


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hides the machine's own credentials."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", QUOTA_PROJECT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
async def google() -> AsyncIterator[FakeGoogle]:
    fake = FakeGoogle()
    async with fake.server:
        yield fake


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def fcm(google: FakeGoogle, clock: Clock) -> AsyncIterator[FcmProvider]:
    transport = CurlTransport()
    provider = FcmProvider(transport, project_id="my-project", base_url=google.server.url, now_ms=clock)
    yield provider
    await provider.close()
    await transport.close()
    for thread in threading.enumerate():
        if thread.name.startswith("homing-google"):  # its search must not reach the next test's servers
            await asyncio.to_thread(thread.join, 60)


def use_key_file(monkeypatch: pytest.MonkeyPatch, google: FakeGoogle, path: Path) -> None:
    path.write_text(json.dumps({**json.loads(KEY_FILE), "token_uri": f"{google.server.url}/token"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))


async def send(provider: FcmProvider) -> Outcome:
    return await provider.send(a_push())


async def test_tokens_come_from_the_key_file_that_the_environment_names(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    # The token server runs on this event loop, so it can answer only if the search does not block it.
    outcomes = await asyncio.gather(*(send(fcm) for _ in range(20)))
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.ACCEPTED}
    assert google.used == ["token-1"] * 20
    assert google.issued == 1, "all sends share one search"


def use_workload_identity(
    monkeypatch: pytest.MonkeyPatch, google: FakeGoogle, folder: Path, **more: str
) -> None:
    (folder / "identity").write_text("a-kubernetes-token")
    audience = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/p"
    description = {
        "type": "external_account",
        "audience": audience,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{google.server.url}/sts",
        "credential_source": {"file": str(folder / "identity")},
    }
    (folder / "adc.json").write_text(json.dumps({**description, **more}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "adc.json"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")


async def test_tokens_come_from_a_workload_identity_of_another_cloud(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_workload_identity(monkeypatch, google, tmp_path)
    outcome = await send(fcm)
    assert outcome.kind is OutcomeKind.ACCEPTED, outcome
    form = parse_qs(google.asked("/sts")[0].body.decode())
    assert form["subject_token"] == ["a-kubernetes-token"]
    assert form["scope"] == [SCOPE]


async def test_requests_name_the_quota_project_of_the_credentials_file(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_workload_identity(monkeypatch, google, tmp_path, quota_project_id="who-pays")
    google.rejected = "token-1"
    assert (await send(fcm)).kind is OutcomeKind.ACCEPTED
    assert google.charged == ["who-pays", "who-pays"], "a repeated request names it too"


async def test_requests_name_the_quota_project_of_the_environment(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    monkeypatch.setenv(QUOTA_PROJECT, "from-the-environment")
    assert (await send(fcm)).kind is OutcomeKind.ACCEPTED
    assert google.charged == ["from-the-environment"]


async def test_requests_name_no_quota_project_if_the_credentials_have_none(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    assert (await send(fcm)).kind is OutcomeKind.ACCEPTED
    assert google.charged == [None]


async def test_an_invalid_quota_project_is_a_provider_fault(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    monkeypatch.setenv(QUOTA_PROJECT, "two\r\nlines: x")
    outcome = await send(fcm)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.PROVIDER_FAULT, "token_refused")
    assert outcome.error is not None
    assert "quota project" in outcome.error
    assert google.sends == []


async def test_tokens_come_from_a_user_who_is_logged_in(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = {
        "type": "authorized_user",
        "client_id": "gcloud",
        "client_secret": "not-secret",
        "refresh_token": "from-the-login",
        "quota_project_id": "billed-project",
    }
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(user))
    # The address of the token server is a constant of google-auth.
    monkeypatch.setattr(credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{google.server.url}/token")
    outcome = await send(fcm)
    assert outcome.kind is OutcomeKind.ACCEPTED, outcome
    form = parse_qs(google.asked("/token")[0].body.decode())
    assert form["refresh_token"] == ["from-the-login"]
    # Without it, FCM refuses user credentials: their own project is not allowed to call it.
    assert google.server.received[-1].headers["x-goog-user-project"] == "billed-project"


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    monkeypatch.delattr(transport, "requests", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'homing\[fcm\]'"):
        FcmProvider(CurlTransport(), project_id="my-project")


async def run_alone(google: FakeGoogle, **environment: str) -> str:
    """Sends one push in a new interpreter, because google-auth reads some variables when it is imported."""
    code = (
        "import asyncio, sys\n"
        "from homing.net.http_client import CurlTransport\n"
        "from homing.providers.fcm.provider import FcmProvider\n"
        "from support.push_deliveries import a_push\n"
        "async def main():\n"
        "    transport = CurlTransport()\n"
        "    fcm = FcmProvider(transport, project_id='my-project', base_url=sys.argv[1])\n"
        "    outcome = await fcm.send(a_push())\n"
        "    print(outcome.kind.value, outcome.error_code)\n"
        "    await fcm.close()\n"
        "    await transport.close()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        google.server.url,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return printed.decode().strip()


async def test_tokens_come_from_the_metadata_server(google: FakeGoogle) -> None:
    host = google.server.url.removeprefix("http://")
    assert await run_alone(google, GCE_METADATA_HOST=host, GCE_METADATA_IP=host) == "accepted None"
    assert google.used == ["token-1"]
    assert "firebase.messaging" in google.server.received[-2].path


async def test_a_health_check_needs_a_token(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    assert not await fcm.check()
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    assert await fcm.check()


async def test_without_credentials_nothing_is_sent(google: FakeGoogle) -> None:
    assert await run_alone(google, NO_GCE_CHECK="true") == "provider_fault token_refused"
    assert google.used == []


async def test_tokens_are_refreshed_while_the_old_one_is_in_use(
    google: FakeGoogle, fcm: FcmProvider, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    await send(fcm)
    clock.ahead_ms = 54 * MINUTE_MS
    await send(fcm)
    assert google.issued == 1, "not yet due"
    clock.ahead_ms = 56 * MINUTE_MS
    await send(fcm)
    assert google.used == ["token-1"] * 3
    async with asyncio.timeout(30):
        while google.used[-1] != "token-2":
            await send(fcm)


async def test_an_expired_token_is_never_used(
    google: FakeGoogle, fcm: FcmProvider, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    await send(fcm)
    clock.ahead_ms = 60 * MINUTE_MS
    await send(fcm)
    assert google.used == ["token-1", "token-2"]


async def test_a_rejected_token_is_replaced(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    google.rejected = "token-1"
    assert (await send(fcm)).kind is OutcomeKind.ACCEPTED
    assert google.used == ["token-1", "token-2"]


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, b'{"error": "invalid_grant"}', OutcomeKind.PROVIDER_FAULT, "token_refused"),
        (503, b'{"error": "internal_failure"}', OutcomeKind.TRANSIENT, "token_unavailable"),
    ],
)
async def test_a_failure_of_the_token_server_is_permanent_or_transient(
    google: FakeGoogle,
    fcm: FcmProvider,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    status: int,
    body: bytes,
    kind: OutcomeKind,
    code: str,
) -> None:
    use_key_file(monkeypatch, google, tmp_path / "key.json")
    google.refuses = answer(status, body, {"content-type": "application/json"})
    outcome = await fcm.send(a_push(timeout_ms=60_000))
    assert (outcome.kind, outcome.error_code) == (kind, code), outcome
    assert google.used == []


@pytest.mark.parametrize("path", ["missing.json", "broken.json"])
async def test_a_file_that_cannot_be_read_is_a_provider_fault(
    google: FakeGoogle, fcm: FcmProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / path))
    outcome = await send(fcm)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.PROVIDER_FAULT, "token_refused")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({}, "service_account"),
        ({"project_id": "my-project", "token_uri": "https://example.org"}, "token_uri"),
        ({"project_id": "not a project"}, "project_id"),
    ],
)
async def test_incomplete_settings_are_refused(settings: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FcmProvider(CurlTransport(), **settings)  # type: ignore[arg-type]
    assert refused.value.field == field


async def test_the_project_may_come_from_the_environment(
    google: FakeGoogle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "from-the-environment")
    provider = FcmProvider(CurlTransport(), base_url=google.server.url)
    assert "/projects/from-the-environment/" in provider.build(a_push(), 0).url
