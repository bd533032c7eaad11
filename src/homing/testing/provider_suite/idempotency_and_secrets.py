"""Tests of idempotency keys, signatures, concurrent sends, and that credentials never leak."""

from __future__ import annotations

import asyncio
import logging

import pytest

from homing.core.notifications import OutcomeKind
from homing.testing import fault_server
from homing.testing.provider_suite.harness import ProviderCase, open_testbed


class RepeatedSendTests:
    """Tests that send several times through the same provider."""

    async def test_all_attempts_have_the_same_idempotency_key(self, case: ProviderCase) -> None:
        async with open_testbed(case, fault_server.answer(503), fault_server.RESET_AFTER_READING) as testbed:
            for attempt in (1, 2, 3):
                await testbed.provider.send(testbed.delivery(attempt=attempt))
            keys = [case.key(one) for one in testbed.messages]
            assert len(keys) == 3
            assert len(set(keys)) == 1, "all attempts of a notification must use the same idempotency key"

    async def test_different_notifications_have_different_idempotency_keys(self, case: ProviderCase) -> None:
        async with open_testbed(case) as testbed:
            other = "018f4e6a-7c11-7d2a-9d3e-000000000002"
            await testbed.provider.send(testbed.delivery())
            await testbed.provider.send(testbed.delivery(notification_id=other, idempotency_key=other))
            first, second = (case.key(one) for one in testbed.messages)
            assert first is None or first != second

    async def test_every_attempt_has_its_own_signature(self, case: ProviderCase) -> None:
        async with open_testbed(case, fault_server.answer(503)) as testbed:
            for attempt in (1, 2):
                await testbed.provider.send(testbed.delivery(attempt=attempt))
            first, second = (case.signature(one) for one in testbed.messages)
            assert first is None or first != second

    async def test_credentials_never_appear_in_outcomes_or_logs(
        self, case: ProviderCase, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        answers = [fault_server.answer(401), fault_server.html_page(500), fault_server.GARBAGE]
        async with open_testbed(case, *answers, *(one.act for one in case.failures.values())) as testbed:
            said = [repr(testbed.provider), str(vars(testbed.provider))]
            for attempt in range(1, 4 + len(case.failures)):
                outcome = await testbed.provider.send(testbed.delivery(attempt=attempt))
                said.append(repr(outcome))
            await testbed.server.stop()
            said.append(repr(await testbed.provider.send(testbed.delivery())))
            for secret in case.secrets:
                assert secret not in "\n".join(said), "a credential is in an outcome or in repr"
                assert secret not in caplog.text, "a credential is in the log"

    async def test_concurrent_sends_are_all_accepted(self, case: ProviderCase) -> None:
        async with open_testbed(case) as testbed:
            sends = [testbed.provider.send(testbed.delivery(idempotency_key=f"key-{n}")) for n in range(25)]
            outcomes = await asyncio.gather(*sends)
            assert {outcome.kind for outcome in outcomes} == {OutcomeKind.ACCEPTED}
            assert len(testbed.messages) == 25
