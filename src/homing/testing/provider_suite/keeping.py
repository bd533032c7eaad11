"""What stays the same over attempts, what does not, and what never shows."""

from __future__ import annotations

import asyncio
import logging

import pytest

from homing.core.model import OutcomeKind
from homing.testing import faults
from homing.testing.provider_suite.harness import ProviderCase, stage


class KeepingTests:
    async def test_all_attempts_carry_the_same_key_and_body(self, case: ProviderCase) -> None:
        async with stage(case, faults.answer(503), faults.RESET_AFTER_READING) as scene:
            for attempt in (1, 2, 3):
                await scene.provider.send(scene.delivery(attempt=attempt))
            keys = [case.key(one) for one in scene.messages]
            assert len(keys) == 3
            assert len(set(keys)) == 1, "one notification, one idempotency key"

    async def test_another_notification_has_another_key(self, case: ProviderCase) -> None:
        async with stage(case) as scene:
            other = "018f4e6a-7c11-7d2a-9d3e-000000000002"
            await scene.provider.send(scene.delivery())
            await scene.provider.send(scene.delivery(notification_id=other, idempotency_key=other))
            first, second = (case.key(one) for one in scene.messages)
            assert first is None or first != second

    async def test_every_attempt_is_signed_afresh(self, case: ProviderCase) -> None:
        async with stage(case, faults.answer(503)) as scene:
            for attempt in (1, 2):
                await scene.provider.send(scene.delivery(attempt=attempt))
            first, second = (case.signature(one) for one in scene.messages)
            assert first is None or first != second

    async def test_credentials_never_show(self, case: ProviderCase, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        told = [faults.answer(401), faults.html(500), faults.GARBAGE]
        async with stage(case, *told, *(one.act for one in case.failures.values())) as scene:
            said = [repr(scene.provider), str(vars(scene.provider))]
            for attempt in range(1, 4 + len(case.failures)):
                outcome = await scene.provider.send(scene.delivery(attempt=attempt))
                said.append(repr(outcome))
            await scene.server.stop()
            said.append(repr(await scene.provider.send(scene.delivery())))
            for secret in case.secrets:
                assert secret not in "\n".join(said), "in an outcome or in repr"
                assert secret not in caplog.text, "in a log"

    async def test_many_at_once_get_their_own_answers(self, case: ProviderCase) -> None:
        async with stage(case) as scene:
            sends = [scene.provider.send(scene.delivery(idempotency_key=f"key-{n}")) for n in range(25)]
            outcomes = await asyncio.gather(*sends)
            assert {outcome.kind for outcome in outcomes} == {OutcomeKind.ACCEPTED}
            assert len(scene.messages) == 25
