"""Whatever the network does, the outcome says whether the message may have been taken."""

from __future__ import annotations

import asyncio

import pytest

from homing.core.model import Outcome, OutcomeKind
from homing.testing import faults
from homing.testing.faults import Act
from homing.testing.provider_suite.harness import ProviderCase, Stage, stage

IN_DOUBT: dict[str, Act] = {
    "reset after reading": faults.RESET_AFTER_READING,
    "closed without a word": faults.EMPTY,
    "garbage": faults.GARBAGE,
    "half a head": faults.HALF_A_HEAD,
}
TIMEOUTS_MS = (300, 3_000, 20_000)
"""A busy machine may need more than the first one to write a request."""


class BreakingTests:
    async def test_a_provider_that_is_away_was_not_written_to(self, case: ProviderCase) -> None:
        async with stage(case) as scene:
            await scene.server.stop()
            outcome = await scene.provider.send(scene.delivery())
            assert outcome.kind is OutcomeKind.TRANSIENT, outcome
            assert outcome.error_code == "connect"

    @pytest.mark.parametrize("name", IN_DOUBT)
    async def test_no_answer_after_the_request_was_read_leaves_doubt(
        self, case: ProviderCase, name: str
    ) -> None:
        async with stage(case, IN_DOUBT[name]) as scene:
            outcome = await scene.provider.send(scene.delivery())
            assert outcome.kind is OutcomeKind.AMBIGUOUS, outcome
            assert len(scene.messages) == 1

    async def test_a_pooled_connection_that_breaks_does_not_send_twice(self, case: ProviderCase) -> None:
        async with stage(case, case.success, faults.RESET_AFTER_READING) as scene:
            await scene.provider.send(scene.delivery())
            outcome = await scene.provider.send(scene.delivery(attempt=2))
            assert outcome.kind is OutcomeKind.AMBIGUOUS, outcome
            assert len(scene.messages) == 2

    async def test_time_that_runs_out_after_writing_leaves_doubt(self, case: ProviderCase) -> None:
        async with stage(case, case.success, *[faults.HANG_AFTER_READING] * len(TIMEOUTS_MS)) as scene:
            await scene.provider.send(scene.delivery())  # a token, where one is needed, is there now
            outcome = await _sent_until_time_runs_out(scene)
            assert outcome.kind is OutcomeKind.AMBIGUOUS, outcome
            assert outcome.error_code == "timeout"

    async def test_time_that_runs_out_before_writing_does_not(self, case: ProviderCase) -> None:
        async with stage(case) as scene:
            scene.server.on_connect = faults.HANG_BEFORE_READING
            https = case.make(scene.server.url.replace("http:", "https:"), scene.transport, lambda: 0)
            outcome = await https.send(scene.delivery(timeout_ms=300))
            await https.close()
            assert outcome.kind is OutcomeKind.TRANSIENT, outcome
            assert scene.messages == []

    async def test_a_dripping_answer_ends_with_the_time(self, case: ProviderCase) -> None:
        drips = faults.dripping(case.success, 2_000)
        async with stage(case, case.success, *[drips] * len(TIMEOUTS_MS)) as scene:
            await scene.provider.send(scene.delivery())
            outcome = await _sent_until_time_runs_out(scene)
            assert outcome.kind is OutcomeKind.AMBIGUOUS, outcome

    async def test_cancelling_a_send_breaks_it_off_and_the_next_one_works(self, case: ProviderCase) -> None:
        async with stage(case, faults.HANG_AFTER_READING) as scene:
            task = asyncio.create_task(scene.provider.send(scene.delivery(timeout_ms=60_000)))
            while not scene.messages:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await scene.provider.send(scene.delivery())).kind is OutcomeKind.ACCEPTED

    async def test_a_check_does_not_raise_whatever_answers(self, case: ProviderCase) -> None:
        for act in (faults.GARBAGE, faults.EMPTY, faults.html(500), faults.RESET_AFTER_READING):
            async with stage(case, act) as scene:
                assert await scene.provider.check() in (True, False)

    async def test_closing_twice_is_fine(self, case: ProviderCase) -> None:
        async with stage(case) as scene:
            await scene.provider.send(scene.delivery())
            await scene.provider.close()
            await scene.provider.close()


async def _sent_until_time_runs_out(scene: Stage) -> Outcome:
    """Sends with more and more time, until the server has read the request before the time was up."""
    before = len(scene.messages)
    for timeout_ms in TIMEOUTS_MS:
        outcome = await scene.provider.send(scene.delivery(timeout_ms=timeout_ms))
        if len(scene.messages) > before:
            break
    return outcome
