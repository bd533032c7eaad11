"""An attempt has the whole timeout of its policy, and its error names that timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from homing import BreakerPolicy, Channel, DeliveryTimeout, Homing, Listed, OutcomeKind
from homing.net.http_client import CurlTransport
from homing.providers.slack.provider import SlackProvider
from homing.testing.fault_server import HANG_AFTER_READING, FaultServer

TIMEOUT_MS = 600
RULES = [{"name": "short", "timeout_ms": TIMEOUT_MS, "max_attempts": 1}]


@pytest.fixture
async def hanging() -> AsyncIterator[Listed]:
    """A real provider whose server reads the request and never answers."""
    async with FaultServer(lambda received: HANG_AFTER_READING) as server:
        transport = CurlTransport()
        provider = SlackProvider(
            transport, webhook_url="https://hooks.slack.com/services/T0/B0/x", base_url=server.url
        )
        yield Listed(
            id="slack", provider=provider, channels=(Channel.CHAT,), breaker=BreakerPolicy(failures=0)
        )
        await transport.close()


async def hang(_: object) -> None:
    await asyncio.sleep(60)


@pytest.mark.source("002", "65-68")
@pytest.mark.parametrize("kind", ["http", "function"])
async def test_an_attempt_is_not_cut_short(hanging: Listed, kind: str) -> None:
    provider = hanging if kind == "http" else hang
    async with Homing("memory:", providers={"slack": provider}, rules=RULES, worker=True) as homing:
        sent = await homing.send({"url": "https://hooks.slack.com/a"}, channel="chat", body="Hello")
        done = await homing.wait(sent.id)
        (attempt,) = (await homing.history(sent.id)).attempts
    assert (attempt.outcome, attempt.error_code) == (OutcomeKind.AMBIGUOUS, "timeout")
    assert done.last_error == attempt.error == f"no answer within {TIMEOUT_MS} ms"
    assert attempt.latency_ms >= TIMEOUT_MS


async def test_a_synchronous_send_has_its_two_seconds(hanging: Listed) -> None:
    async with Homing("memory:", providers={"slack": hanging}) as homing:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DeliveryTimeout, match="timed out after 2s") as late:
            await homing.send(
                {"url": "https://hooks.slack.com/a"}, channel="chat", body="Hello", synchronous=True
            )
        assert loop.time() - began > 1.85, "not a tenth less"
        found = await homing.get(late.value.notification_id)
    assert found.last_error == "no answer within 2000 ms"
