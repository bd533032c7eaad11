"""From attempt to attempt: backoff, failover, Retry-After, doubt, and the end of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from homing import Outcome, Reason, Status
from homing.providers.scripted import HANG, ScriptedProvider

from .support import HOUR, MINUTE, K, Timed, World, mail, seconds, status, steady


async def test_what_a_provider_takes_is_sent(world: World) -> None:
    provider = ScriptedProvider("mail")
    engine = await world.open({"mail": provider})
    id = await mail(engine)
    await seconds(1)
    done = await engine.get(id)
    assert done.status is Status.SENT
    assert done.sent_at is not None
    assert done.attempt_count == 1
    assert done.provider_names == ("mail",)
    assert done.provider_message_ids == ("mail-1",)
    assert done.next_retry_at is None


async def test_speed(world: World) -> None:
    engine = await world.open()
    await seconds(24 * HOUR)
