"""Receipts for failures that a provider reports after accepting a message.

They are classified by the same error table as failures in the response to a send.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from homing.core.model import OutcomeKind, Receipt, ReceiptEvent
from homing.providers.answers import Meaning


def failed(
    receipt: Receipt, meaning: Meaning | None, error_code: str, error: str | None
) -> Iterator[Receipt]:
    """Yields the receipt as a failure and, if the recipient has opted out, a second one that unsubscribes.

    `meaning` is the table's entry for the code. If the table has none, `error` is used as the failure's text.
    """
    kind = meaning.outcome if meaning else None
    yield replace(
        receipt,
        event=ReceiptEvent.FAILED,
        outcome=kind,
        retry_after_ms=meaning.retry_after_ms if meaning else None,
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
