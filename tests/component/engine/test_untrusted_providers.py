"""A provider's result is untrusted input, and a provider may hang."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from homing import Outcome, OutcomeKind, Status
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.ports.providers import Delivery
from homing.engine.delivery.attempts import sanitize_outcome
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.callback_provider import CallbackProvider, event_about, signed_callback
from support.engine_harness import EngineHarness, K, mail, seconds, status, steady


class InvalidResultProvider:
    """Returns the given object once, then accepts everything."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked = 0
        self.closed = False

    async def send(self, delivery: Delivery) -> Any:
        self.asked += 1
        if self.asked > 1:
            return Outcome(K.ACCEPTED)
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    async def check(self) -> bool:
        return True

    async def close(self) -> None:
        self.closed = True
        raise RuntimeError("close fails too")


NONSENSE: Any = Outcome("nonsense")  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [None, "sent", 200, {"kind": "accepted"}, object(), [], NONSENSE])
async def test_a_result_of_the_wrong_type_is_ambiguous(harness: EngineHarness, answer: Any) -> None:
    engine = await harness.open({"mail": InvalidResultProvider(answer)}, rules=steady())
    id = await mail(engine)
    await seconds(20)
    first, second = (await engine.history(id)).attempts
    assert (first.outcome, first.error_code) == (K.AMBIGUOUS, "provider_error")
    assert second.outcome is K.ACCEPTED


async def test_an_outcome_given_by_name_counts_like_the_outcome(harness: EngineHarness) -> None:
    provider = InvalidResultProvider(Outcome("accepted", provider_message_id="m-1"))  # type: ignore[arg-type]
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine)
    await seconds(60)
    assert await status(engine, id) is Status.SENT
    assert provider.asked == 1


async def test_a_provider_that_raises_is_ambiguous(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.open(
        {"mail": InvalidResultProvider(RuntimeError("socket\r\nclosed"))}, rules=steady()
    )
    id = await mail(engine)
    await seconds(20)
    first, second = (await engine.history(id)).attempts
    assert (first.outcome, first.error_code) == (K.AMBIGUOUS, "provider_error")
    assert first.error is not None
    assert "RuntimeError" in first.error
    assert "\n" not in first.error
    assert second.outcome is K.ACCEPTED
    assert "provider mail raised" in caplog.text


async def test_a_provider_that_cancels_itself_loses_nothing(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": InvalidResultProvider(asyncio.CancelledError())}, rules=steady(timeout_ms="1s")
    )
    id = await mail(engine)
    await seconds(90)
    assert await status(engine, id) is Status.SENT


async def test_a_provider_that_cannot_be_closed_does_not_prevent_closing_the_engine(
    harness: EngineHarness,
) -> None:
    provider = InvalidResultProvider(None)
    engine = await harness.open({"mail": provider})
    await engine.close()
    assert provider.closed


async def test_errors_are_shortened_and_cleaned() -> None:
    outcome = sanitize_outcome(
        Outcome(
            K.TRANSIENT,
            error="line 1\r\nline 2\x00\x1b[31m" + "x" * 5000 + "\ud800",
            error_code="21\x85\u2028 FAKE LINE\x9b" + "c" * 5000,
            provider_message_id="id\n" * 1000,
        )
    )
    assert outcome.error is not None
    assert outcome.error.startswith("line 1 line 2 [31mxxx")
    assert len(outcome.error) <= 500
    assert (outcome.error_code or "").startswith("21  FAKE LINE cc")
    assert len(outcome.error_code or "") <= 100
    assert len(outcome.provider_message_id or "") <= 255
    assert "\n" not in (outcome.provider_message_id or "")


@pytest.mark.parametrize(
    ("given", "kept"),
    [(-5, None), (0, None), (7, 7), ("soon", None), (True, None), (None, None), (10**15, 10**15)],
)
async def test_an_invalid_retry_after_is_ignored(given: Any, kept: int | None) -> None:
    assert sanitize_outcome(Outcome(K.THROTTLED, retry_after_ms=given)).retry_after_ms == kept


async def test_ids_and_errors_that_are_not_text_become_text() -> None:
    odd: Any = Outcome(K.ACCEPTED, provider_message_id=17, error=ValueError("x"))  # type: ignore[arg-type]
    assert sanitize_outcome(odd) == Outcome(K.ACCEPTED, provider_message_id="17", error="x")


class BlankIds(CallbackProvider):
    """Gives all its messages the same blank id."""

    def __init__(self, blank: str) -> None:
        super().__init__("post", usual=Outcome(K.ACCEPTED, provider_message_id=blank))


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
async def test_messages_with_blank_ids_are_not_taken_for_one_message(
    harness: EngineHarness, blank: str
) -> None:
    provider = BlankIds(blank)
    engine = await harness.open({"post": provider}, rules=steady())
    id = await mail(engine)
    await seconds(1)
    for attempt in (1, 2):
        event = event_about(provider.sent[-1], ReceiptEvent.FAILED, outcome="transient")
        await engine.handle_callback("post", signed_callback([event]))
        await seconds(15)
        assert len(provider.sent) == attempt + 1
    assert (await engine.get(id)).attempt_count == 3


async def test_a_hanging_provider_delays_no_other(harness: EngineHarness) -> None:
    stuck, fine = ScriptedProvider("stuck", usual=HANG), ScriptedProvider("fine")
    engine = await harness.open({"stuck": stuck, "fine": fine}, rules=steady())
    hanging = [await mail(engine, provider="stuck") for _ in range(90)]
    await seconds(1)
    ids = [await mail(engine, provider="fine") for _ in range(50)]
    await seconds(2)
    assert {await status(engine, id) for id in ids} == {Status.SENT}
    assert {await status(engine, id) for id in hanging} == {Status.SENDING}


async def test_every_outcome_has_a_name() -> None:
    for kind in OutcomeKind:
        assert sanitize_outcome(Outcome(kind)).kind is kind
