"""Batches: the notifications that one request was fanned out into, counted by status."""

from __future__ import annotations

import pytest

from homing.core.errors import NotFound
from homing.core.notifications import Channel, Status
from homing.core.request_decoding import read_request
from support.engine_harness import EngineHarness, TimedProvider, mail, seconds, serving


async def test_a_batch_is_counted_by_status_and_channel(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"post": serving("post", TimedProvider("post"), "email", "sms")}, working=False
    )
    done = await engine.submit(
        read_request(
            {
                "recipient": {"email": "ada@example.org", "phone": "+4930123456"},
                "channels": ["email", "sms"],
                "content": {"body": "Hello"},
            }
        )
    )
    await engine.process(ids=[done.notification_ids[0]])
    found = await engine.batch(done.batch_id)
    assert found.statuses == {Status.PENDING: 1, Status.SENT: 1}
    assert found.channels == {Channel.EMAIL: 1, Channel.SMS: 1}
    assert (found.total, found.complete) == (2, True)
    await seconds(1)
    await mail(engine)
    newest, before = await engine.batches()
    assert before == found
    assert newest.statuses == {Status.PENDING: 1}


async def test_another_tenants_batch_is_not_found(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    batch = (await engine.get(await mail(engine))).batch_id
    for api, id in ((engine.of("other"), batch), (engine, "01977420-dfe8-782e-af72-8b4fa42485e3")):
        with pytest.raises(NotFound):
            await api.batch(id)
    assert await engine.of("other").batches() == ()
