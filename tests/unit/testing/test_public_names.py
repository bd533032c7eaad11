"""The names that `homing.testing` offers to the tests of applications."""

from __future__ import annotations

import homing.testing
from homing import Homing, Notification, OutcomeKind, Status
from homing.testing import ScriptedProvider, VirtualClock, VirtualLoop, run_virtual

HOUR_MS = 3_600_000


def test_every_public_name_exists_and_is_described() -> None:
    for name in homing.testing.__all__:
        assert hasattr(homing.testing, name)
        assert f"`{name}`" in (homing.testing.__doc__ or "")


def test_a_retry_after_minutes_is_tested_in_virtual_time() -> None:
    mail = ScriptedProvider("mail", [OutcomeKind.TRANSIENT])

    async def scenario(loop: VirtualLoop) -> Notification:
        clock = VirtualClock(loop)
        async with Homing("memory:", providers={"mail": mail}, worker=True, clock=clock) as engine:
            sent = await engine.send("ada@example.org", channel="email", body="Hello")
            return await engine.wait(sent.id, timeout_ms=HOUR_MS)

    assert run_virtual(scenario).status is Status.SENT
    assert len(mail.sent) == 2
