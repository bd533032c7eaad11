"""What a failure that is told later means, by the same error table as one that is told at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from homing.core.model import OutcomeKind, Receipt, ReceiptEvent
from homing.providers.answers import Meaning

AT_FAULT = (OutcomeKind.BAD_RECIPIENT, OutcomeKind.DEAD_ADDRESS, OutcomeKind.OPTED_OUT)
"""The recipient is: no other provider would do better."""


def failed(
    receipt: Receipt, meaning: Meaning | None, error_code: str, error: str | None
) -> Iterator[Receipt]:
    """The receipt as a failure; who has opted out is unsubscribed by a second one.

    `meaning` is the table's line, where it has one; `error` is said where it has none.
    """
    kind = meaning.outcome if meaning else None
    yield replace(
        receipt,
        event=ReceiptEvent.FAILED,
        recipient_at_fault=kind in AT_FAULT,
        address_dead=kind is OutcomeKind.DEAD_ADDRESS,
        error_code=error_code,
        error=meaning.means if meaning else error,
    )
    if kind is OutcomeKind.OPTED_OUT:
        yield replace(
            receipt,
            event=ReceiptEvent.UNSUBSCRIBE,
            event_id=f"{receipt.event_id}:unsubscribe",
            unsubscribed_from_all=True,
        )
