"""The expected state of a notification can be copied, to go back with a store that loses commits."""

from __future__ import annotations

from copy import deepcopy

from msgspec.structs import fields
from simulation.shadow_state import ProviderCall, ShadowState

from homing.core.notifications import Channel, Mode, Priority, Status


def test_a_copy_does_not_change_with_its_original() -> None:
    shadow = ShadowState(
        id="n-1",
        tenant="t0",
        batch_id="b-1",
        mode=Mode.STANDARD,
        channel=Channel.SMS,
        type="order",
        category="order",
        origin="",
        priority=Priority.MEDIUM,
        address="+15550100",
        recipient_id=None,
        digest=b"",
        status=Status.SENDING,
        pinned=False,
        provider="ember",
        expires_at=None,
        aged_from=0,
        max_age_ms=1_000,
    )
    call = ProviderCall(
        provider="ember", process="p1", id="n-1", attempt=1, began_ms=0, due_ms=1_000, jumps=0
    )
    shadow.calls[1] = call
    copy, expected = shadow.copied(), deepcopy(shadow)
    call.over = True
    for field in fields(shadow):
        match getattr(shadow, field.name):
            case set() as values:
                values.add("new")
            case dict() as values:
                values["new"] = "new"
            case list() as values:
                values.append("new")
            case value:
                assert isinstance(value, str | bytes | int | tuple | None), field.name
    assert copy == expected != shadow
