"""Nothing that a provider returns, logs, raises or shows contains a credential."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from homing.core.callbacks import Callback, CallbackRefused
from homing.core.model import Outcome
from homing.core.ports import Hears, LooksUp, Prepares
from homing.engine.answering import Deadlines, answer
from homing.engine.clock import SystemClock
from homing.engine.roster import Listed
from homing.providers.http import Answer, Failure, Request
from homing.providers.smtp_session import Letter
from homing.providers.webpush_keys import Subscription
from support.all_providers import MARKS, NAMES, NOW_MS, SETTINGS, a_delivery, a_provider, refusal

# Apprise loads all its plugins, and some of them load old libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MARK = MARKS[0]
GRANTED = Answer(status=200, headers={}, body=b'{"access_token": "swordfish-token", "expires_in": 3599}')
TAKEN = (
    Answer(status=200, headers={}, body=b"ok"),
    Answer(status=201, headers={}, body=b'{"sid": "SM1", "name": "projects/p/messages/1", "id": "1"}'),
    Answer(status=202, headers={"x-message-id": "1"}, body=b'{"id": "1", "status": "Running"}'),
)
REFUSED = tuple(
    Answer(status=status, headers={}, body=b'{"message": "no", "error": {"message": "no"}}')
    for status in (301, 400, 401, 403, 404, 410, 429, 500)
)
FAILED = (
    Failure(code="timeout", error="no answer", written=True),
    Failure(code="connect", error="nobody there", written=False),
    Failure(code="bad_request", error="odd", written=False),
)


class FakeServer:
    """Answers as configured, or raises with the whole request in its message, as a careless library might."""

    def __init__(self) -> None:
        self.says: Answer | Failure | None = None

    async def send(self, request: Request, *, timeout_ms: int) -> Answer | Failure:
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


def assert_nothing_shows(*seen: object) -> None:
    for text in show(*seen):
        for mark in MARKS:
            assert mark not in text, f"{mark} is in {text[:500]}"


async def everything_of(provider: Any, kind: str, wire: FakeServer) -> list[object]:
    """Returns everything that a provider reveals in every kind of case."""
    delivery = a_delivery(kind, timeout_ms=2_000)
    seen: list[object] = [provider, vars(provider), delivery]
    for says in (*TAKEN, *REFUSED, *FAILED, None) if kind not in ("smtp", "apprise") else (None,):
        wire.says = says
        listed = Listed(id=kind, provider=provider, kind=kind, channels=(delivery.channel,))
        clock = SystemClock()
        deadline = Deadlines(clock).at(clock.monotonic_ms() + delivery.timeout_ms)
        outcome = await answer(listed, delivery, deadline)
        assert isinstance(outcome, Outcome)
        seen.append(outcome)
    wire.says = REFUSED[0]
    seen.append(await provider.check())
    if isinstance(provider, LooksUp):
        seen.append(await provider.look_up(delivery, None))
    if isinstance(provider, Hears):
        callback = Callback(url="https://h.example/x?key=no", headers={}, body=b"{}")
        if isinstance(provider, Prepares):
            await provider.prepare(callback, NOW_MS)
        with pytest.raises(CallbackRefused) as refused:
            provider.hear(callback, NOW_MS)
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
    assert_nothing_shows(*seen, caplog.text, *caplog.records)


@pytest.mark.parametrize("kind", NAMES)
def test_no_credential_is_in_the_error_that_refuses_it(kind: str) -> None:
    secrets = [field for field, value in SETTINGS[kind].items() if any(mark in str(value) for mark in MARKS)]
    assert secrets
    for field in secrets:
        broken: tuple[Any, ...] = (f"{MARK}\n\x00 é", [MARK, 5], {MARK: 5}, f"file:{MARK}\x00")
        refusals = [refused for value in broken if (refused := refusal(kind, field, value)) is not None]
        assert len(refusals) >= 3, field
        assert_nothing_shows(*refusals)


def test_a_callback_s_repr_shows_neither_its_key_nor_its_body() -> None:
    headers = {"x-webhook-key": MARK}
    assert_nothing_shows(Callback(url=f"https://h.example/?key={MARK}", headers=headers, body=MARK.encode()))


def test_the_repr_of_an_email_or_subscription_does_not_show_its_recipient() -> None:
    letter = Letter(sender="shop@example.com", recipient=MARK, data=MARK.encode(), id=MARK)
    subscription = Subscription(MARK, "https://push.example.net", MARK, MARK.encode(), MARK.encode())
    assert_nothing_shows(letter, subscription)
