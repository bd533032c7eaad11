"""Nothing that a provider returns, logs, raises or shows contains a credential."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from homing.core.errors import CallbackRefused, HomingError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback
from homing.core.ports.providers import SupportsCallbackPreparation, SupportsCallbacks, SupportsLookup
from homing.engine.delivery.attempts import send_with_deadline
from homing.engine.provider_roster import Listed
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from homing.providers.smtp.connection import SmtpEnvelope
from homing.providers.webpush.encryption import PushSubscription
from support.all_providers import MARKS, NAMES, NOW_MS, OVER_HTTP, SETTINGS, a_delivery, a_provider, refusal

# Apprise loads all its plugins, and some of them load old libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MARK = MARKS[0]
GRANTED = HttpResponse(
    status=200, headers={}, body=b'{"access_token": "swordfish-token", "expires_in": 3599}'
)
TAKEN = (
    HttpResponse(status=200, headers={}, body=b"ok"),
    HttpResponse(status=201, headers={}, body=b'{"sid": "SM1", "name": "projects/p/messages/1", "id": "1"}'),
    HttpResponse(status=202, headers={"x-message-id": "1"}, body=b'{"id": "1", "status": "Running"}'),
)
REFUSED = tuple(
    HttpResponse(status=status, headers={}, body=b'{"message": "no", "error": {"message": "no"}}')
    for status in (301, 400, 401, 403, 404, 410, 429, 500)
)
FAILED = (
    TransportFailure(code="timeout", error="no answer", written=True),
    TransportFailure(code="connect", error="connection refused", written=False),
    TransportFailure(code="bad_request", error="odd", written=False),
)


class FakeServer:
    """Answers as configured, or raises with the whole request in its message, as a careless library might."""

    def __init__(self) -> None:
        self.says: HttpResponse | TransportFailure | None = None

    async def send(self, request: HttpRequest, *, timeout_ms: int) -> HttpResponse | TransportFailure:
        if "oauth2" in request.url:
            return GRANTED
        if self.says is None:
            raise RuntimeError(f"cannot write {request!r}")
        return self.says

    async def close(self) -> None: ...


def show(*seen: object) -> Iterator[str]:
    for one in seen:
        yield repr(one)
        yield str(one)
        if isinstance(one, BaseException):
            yield "".join(traceback.format_exception(one))


def revealed(*seen: object) -> list[str]:
    """Returns the beginning of each text that contains a secret."""
    return [text[:500] for text in show(*seen) if any(mark in text for mark in MARKS)]


async def everything_of(provider: Any, kind: str, wire: FakeServer) -> list[object]:
    """Returns everything that a provider reveals in every kind of case."""
    delivery = a_delivery(kind, timeout_ms=2_000)
    seen: list[object] = [provider, vars(provider), delivery]
    for says in (*TAKEN, *REFUSED, *FAILED, None) if kind in OVER_HTTP else (None,):
        wire.says = says
        listed = Listed(id=kind, provider=provider, kind=kind, channels=(delivery.channel,))
        outcome = await send_with_deadline(listed, delivery)
        assert isinstance(outcome, Outcome)
        seen.append(outcome)
    wire.says = REFUSED[0]
    try:
        seen.append(await provider.check())
    except HomingError as problem:
        seen.append(problem)
    if isinstance(provider, SupportsLookup):
        seen.append(await provider.look_up(delivery, None))
    if isinstance(provider, SupportsCallbacks):
        callback = Callback(url="https://h.example/x?key=no", headers={}, body=b"{}")
        if isinstance(provider, SupportsCallbackPreparation):
            await provider.prepare(callback, NOW_MS)
        with pytest.raises(CallbackRefused) as refused:
            provider.handle_callback(callback, NOW_MS)
        seen.append(refused.value)
    return seen


@pytest.mark.parametrize("kind", NAMES)
async def test_no_credential_leaves_a_provider(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wire = FakeServer()
    provider = a_provider(kind, wire)
    try:
        seen = await asyncio.wait_for(everything_of(provider, kind, wire), 60)
    finally:
        await provider.close()
    assert revealed(*seen, caplog.text, *caplog.records) == []


@pytest.mark.parametrize("kind", NAMES)
def test_no_credential_is_in_the_error_that_refuses_it(kind: str) -> None:
    secrets = [field for field, value in SETTINGS[kind].items() if any(mark in str(value) for mark in MARKS)]
    assert secrets
    for field in secrets:
        broken: tuple[Any, ...] = (f"{MARK}\n\x00 é", [MARK, 5], {MARK: 5}, f"file:{MARK}\x00")
        refusals = [refused for value in broken if (refused := refusal(kind, field, value)) is not None]
        assert len(refusals) >= 3, field
        assert revealed(*refusals) == []


def test_a_callback_s_repr_shows_neither_its_key_nor_its_body() -> None:
    headers = {"x-webhook-key": MARK}
    callback = Callback(url=f"https://h.example/?key={MARK}", headers=headers, body=MARK.encode())
    assert revealed(callback) == []


def test_the_repr_of_an_email_or_subscription_does_not_show_its_recipient() -> None:
    letter = SmtpEnvelope(sender="shop@example.com", recipient=MARK, data=MARK.encode(), id=MARK)
    subscription = PushSubscription(MARK, "https://push.example.net", MARK, MARK.encode(), MARK.encode())
    assert revealed(letter, subscription) == []
