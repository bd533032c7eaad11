"""Tests with network faults: the outcome must show whether the message may have been accepted."""

from __future__ import annotations

import asyncio

import pytest

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.testing import fault_server
from homing.testing.fault_server import ServerAction
from homing.testing.provider_suite.harness import ProviderCase, ProviderTestbed, open_testbed

# Failures after which the message may have been accepted. Key: name of the test case.
IN_DOUBT: dict[str, ServerAction] = {
    "reset after reading": fault_server.RESET_AFTER_READING,
    "closed without a response": fault_server.EMPTY,
    "garbage": fault_server.GARBAGE,
    "half a head": fault_server.HALF_A_HEAD,
}

TIMEOUTS_MS = (300, 3_000, 20_000)
"""Timeouts to try in turn: a busy machine may not write the request within the first one."""


class NetworkFaultTests:
    """Tests with broken connections and timeouts."""

    async def test_a_refused_connection_is_transient(self, case: ProviderCase) -> None:
        async with open_testbed(case) as testbed:
            await testbed.server.stop()
            outcome = await testbed.provider.send(testbed.delivery())
            assert outcome.kind is OutcomeKind.TRANSIENT, outcome
            assert outcome.error_code == "connect"

    @pytest.mark.parametrize("name", IN_DOUBT)
    async def test_no_response_after_the_request_was_read_is_ambiguous(
        self, case: ProviderCase, name: str
    ) -> None:
        async with open_testbed(case, IN_DOUBT[name]) as testbed:
            outcome = await testbed.provider.send(testbed.delivery())
            assert outcome.kind is OutcomeKind.AMBIGUOUS, outcome
            assert len(testbed.messages) == 1

    async def test_a_broken_pooled_connection_does_not_send_twice(self, case: ProviderCase) -> None:
        async with open_testbed(case, case.success, fault_server.RESET_AFTER_READING) as testbed:
            await testbed.provider.send(testbed.delivery())
            outcome = await testbed.provider.send(testbed.delivery(attempt=2))
            assert outcome.kind is OutcomeKind.AMBIGUOUS, outcome
            assert len(testbed.messages) == 2

    async def test_a_timeout_after_writing_is_ambiguous(self, case: ProviderCase) -> None:
        async with open_testbed(
            case, case.success, *[fault_server.HANG_AFTER_READING] * len(TIMEOUTS_MS)
        ) as testbed:
            await testbed.provider.send(
                testbed.delivery()
            )  # fetches an access token if the provider needs one
            outcome = await _send_until_timeout(testbed)
            assert outcome.kind is OutcomeKind.AMBIGUOUS, outcome
            assert outcome.error_code == "timeout"

    async def test_a_timeout_before_writing_is_transient(self, case: ProviderCase) -> None:
        async with open_testbed(case) as testbed:
            testbed.server.on_connect = fault_server.HANG_BEFORE_READING
            https = case.make(testbed.server.url.replace("http:", "https:"), testbed.transport, lambda: 0)
            outcome = await https.send(testbed.delivery(timeout_ms=300))
            await https.close()
            assert outcome.kind is OutcomeKind.TRANSIENT, outcome
            assert testbed.messages == []

    async def test_a_response_sent_byte_by_byte_times_out(self, case: ProviderCase) -> None:
        drips = fault_server.drip(case.success, 2_000)
        async with open_testbed(case, case.success, *[drips] * len(TIMEOUTS_MS)) as testbed:
            await testbed.provider.send(testbed.delivery())
            outcome = await _send_until_timeout(testbed)
            assert outcome.kind is OutcomeKind.AMBIGUOUS, outcome

    async def test_a_cancelled_send_ends_and_the_next_send_works(self, case: ProviderCase) -> None:
        async with open_testbed(case, fault_server.HANG_AFTER_READING) as testbed:
            task = asyncio.create_task(testbed.provider.send(testbed.delivery(timeout_ms=60_000)))
            while not testbed.messages:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await testbed.provider.send(testbed.delivery())).kind is OutcomeKind.ACCEPTED

    async def test_a_check_never_raises(self, case: ProviderCase) -> None:
        for act in (
            fault_server.GARBAGE,
            fault_server.EMPTY,
            fault_server.html_page(500),
            fault_server.RESET_AFTER_READING,
        ):
            async with open_testbed(case, act) as testbed:
                assert await testbed.provider.check() in (True, False)

    async def test_a_provider_can_be_closed_twice(self, case: ProviderCase) -> None:
        async with open_testbed(case) as testbed:
            await testbed.provider.send(testbed.delivery())
            await testbed.provider.close()
            await testbed.provider.close()


async def _send_until_timeout(testbed: ProviderTestbed) -> Outcome:
    """Sends with growing timeouts until the server has read a request in time. Returns the last outcome."""
    before = len(testbed.messages)
    for timeout_ms in TIMEOUTS_MS:
        outcome = await testbed.provider.send(testbed.delivery(timeout_ms=timeout_ms))
        if len(testbed.messages) > before:
            break
    return outcome
