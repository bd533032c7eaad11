"""A repeated request gets the answer of the first one, even if it would not be accepted any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from homing import Homing, IdempotencyConflict, InvalidRequest, Recipient
from homing.core.errors import StoreUnavailable, TemplateNotFound
from homing.core.notifications import Channel, Content
from homing.core.ports.plug_ins import Rendered
from homing.engine.intake.accept import Rejection, SendResult
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.virtual_time import START_MS
from support.engine_harness import ADA, PHONE, EngineHarness, RecipientHook, seconds, serving, stored
from support.local_broker import LocalBridge

SOON = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(minutes=1)


class RemovableTemplate:
    """Renders the template `greeting` as long as it exists."""

    exists = True

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        if not self.exists:
            raise TemplateNotFound("templateKey", f"{template_key!r} does not exist")
        return Rendered(content=Content(body="Hello"), locale="en", version="1")


class OneRecipient(RecipientHook):
    """Knows the recipient `u-1` as long as it exists."""

    exists = True

    def __init__(self) -> None:
        super().__init__(lambda claims: {})

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        return {id: Recipient(id=id, email=ADA) for id in ids if self.exists}


async def idle(harness: EngineHarness, **settings: Any) -> Homing:
    """Opens an engine that accepts but delivers nothing."""
    return await harness.open({"any": ScriptedProvider()}, working=False, **settings)


async def keyed(engine: Homing, **fields: Any) -> SendResult:
    """Sends an email with an idempotency key."""
    request = {"recipient": ADA, "channel": "email", "body": "Hello", "idempotency_key": "k-1", **fields}
    return await engine.send(request.pop("recipient"), **request)


def same_batch(again: SendResult, first: SendResult) -> bool:
    return again.duplicate and (again.batch_id, again.notification_ids, again.queue_name) == (
        first.batch_id,
        first.notification_ids,
        first.queue_name,
    )


async def test_after_its_expiry_a_repeat_gets_the_first_answer(harness: EngineHarness) -> None:
    engine = await idle(harness)
    first = await keyed(engine, expires_at=SOON, priority="high")
    await seconds(3600)
    assert same_batch(await keyed(engine, expires_at=SOON, priority="high"), first)
    assert await stored(harness) == 1


async def test_without_a_key_an_expired_request_is_rejected_as_before(harness: EngineHarness) -> None:
    engine = await idle(harness)
    await keyed(engine, expires_at=SOON)
    await seconds(3600)
    for fields in ({"idempotency_key": None}, {"idempotency_key": "k-2"}):
        with pytest.raises(InvalidRequest, match="expiresAt"):
            await keyed(engine, expires_at=SOON, **fields)


async def test_an_invalid_request_with_the_key_of_another_is_a_conflict(harness: EngineHarness) -> None:
    engine = await idle(harness)
    await keyed(engine)
    await seconds(3600)
    with pytest.raises(IdempotencyConflict, match="k-1"):
        await keyed(engine, expires_at=SOON)


async def test_a_key_of_another_tenant_answers_nothing(harness: EngineHarness) -> None:
    one, two = await idle(harness, tenant="one"), await idle(harness, tenant="two")
    await keyed(one, expires_at=SOON)
    await seconds(3600)
    with pytest.raises(InvalidRequest, match="expiresAt"):
        await keyed(two, expires_at=SOON)


async def test_after_its_template_was_deleted_a_repeat_gets_the_first_answer(harness: EngineHarness) -> None:
    templates = RemovableTemplate()
    engine = await idle(harness, renderer=templates)
    fields = {"body": None, "template_key": "greeting", "data": {"name": "Ada"}}
    first = await keyed(engine, **fields)
    templates.exists = False
    assert same_batch(await keyed(engine, **fields), first)
    with pytest.raises(TemplateNotFound):
        await keyed(engine, **fields, idempotency_key="k-2")


async def test_after_its_recipient_was_removed_a_repeat_gets_the_first_answer(harness: EngineHarness) -> None:
    recipients = OneRecipient()
    engine = await idle(harness, directory=recipients)
    first = await keyed(engine, recipient={"id": "u-1"})
    recipients.exists = False
    assert same_batch(await keyed(engine, recipient={"id": "u-1"}), first)


async def test_after_its_provider_was_removed_a_repeat_gets_the_first_answer(harness: EngineHarness) -> None:
    both = {"one": ScriptedProvider(), "two": ScriptedProvider()}
    before = await harness.open(both, working=False)
    first = await keyed(before, provider="two")
    after = await harness.open({"one": ScriptedProvider()}, working=False)
    assert same_batch(await keyed(after, provider="two"), first)


async def test_after_a_limit_was_lowered_a_repeat_gets_the_first_answer(harness: EngineHarness) -> None:
    fields: dict[str, Any] = {"body": "x" * 500, "metadata": {"note": "y" * 500, "tuple": (1, 2)}}
    first = await keyed(await idle(harness), **fields)
    after = await idle(harness, limits={"content_bytes": 100, "metadata_bytes": 100})
    assert same_batch(await keyed(after, **fields), first)


async def test_a_repeat_within_a_batch_gets_the_first_answer_with_one_lookup(harness: EngineHarness) -> None:
    engine = await idle(harness)
    requests = [
        {
            "recipient": {"email": f"{n}@example.org"},
            "channel": "email",
            "content": {"body": "x"},
            "idempotencyKey": f"k-{n}",
            "expiresAt": SOON,
        }
        for n in range(50)
    ]
    first = [one async for one in engine.send_many(requests)]
    await seconds(3600)
    fresh = {"recipient": {"email": ADA}, "channel": "email", "content": {"body": "new"}}
    harness.store.calls.clear()
    again = [
        one async for one in engine.send_many([*requests, fresh, {**requests[0], "idempotencyKey": "n"}])
    ]
    for one, other in zip(again, first, strict=False):
        assert isinstance(one, SendResult)
        assert isinstance(other, SendResult)
        assert same_batch(one, other)
    assert isinstance(again[50], SendResult)
    assert not again[50].duplicate
    assert isinstance(again[51], Rejection)
    assert (again[51].index, again[51].field) == (51, "expiresAt")
    assert (harness.store.calls["known_requests"], harness.store.calls["accept"]) == (1, 1)
    assert await stored(harness) == 51


async def test_a_valid_batch_needs_no_lookup(harness: EngineHarness) -> None:
    engine = await idle(harness)
    await keyed(engine)
    await keyed(engine)
    assert harness.store.calls["known_requests"] == 0


async def test_a_synchronous_repeat_after_its_expiry_gets_the_first_delivery(harness: EngineHarness) -> None:
    provider = ScriptedProvider("sms")
    engine = await harness.open({"sms": serving("sms", provider, "sms")}, working=False)
    fields = {"recipient": PHONE, "channel": "sms", "synchronous": True, "expires_at": SOON}
    first = await keyed(engine, **fields)
    await seconds(3600)
    again = await keyed(engine, **fields)
    assert (again.id, again.status, again.provider_message_id) == (first.id, "sent", "sms-1")
    assert again.duplicate
    assert len(provider.sent) == 1


async def test_a_synchronous_repeat_with_another_body_is_a_conflict(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": serving("sms", ScriptedProvider("sms"), "sms")}, working=False)
    fields = {"recipient": PHONE, "channel": "sms", "synchronous": True}
    await keyed(engine, **fields)
    await seconds(3600)
    with pytest.raises(IdempotencyConflict):
        await keyed(engine, **fields, expires_at=SOON)


async def test_a_message_of_a_bridge_that_comes_again_after_its_expiry_is_a_duplicate(
    harness: EngineHarness,
) -> None:
    bridge = LocalBridge()
    engine = await harness.open(bridges={"local": bridge}, working=False)
    engine.bridges.start()
    message = {"recipient": ADA, "channel": "email", "content": {"body": "x"}, "expiresAt": SOON}
    for _ in range(2):
        bridge.broker.publish("m1", message)
        await seconds(3600)
    state = engine.snapshot().bridges["local"]
    assert (state.accepted, state.duplicates, state.rejected) == (1, 1, 0)
    assert bridge.broker.quarantined == {}


async def test_an_invalid_request_with_a_key_is_not_rejected_while_the_store_is_unavailable(
    harness: EngineHarness,
) -> None:
    """The caller may repeat an accepted request, so the answer is not known before the store is back."""
    engine = await idle(harness)
    first = await keyed(engine, expires_at=SOON)
    await seconds(3600)
    harness.store.away = {"everything"}
    with pytest.raises(StoreUnavailable):
        await keyed(engine, expires_at=SOON)
    harness.store.away = set()
    assert same_batch(await keyed(engine, expires_at=SOON), first)
