"""What outcomes and receipts write into the reference data: dead addresses, opt-outs, unsubscribes.

Pure: the writes are returned, and a store makes them in the transaction of the change itself.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Protocol

from homing.core.model import Channel, OutcomeKind, Receipt, ReceiptEvent, Recipient, RegistryPut

EVERY_CATEGORY = "*"
EVERY_CHANNEL = "*"
DEVICE, SUPPRESSION, PREFERENCE = "device", "suppression", "preference"
LONGEST_KEY = 500
"""Characters of an address in a key: PostgreSQL's indexes take some 2,700 bytes."""


class Addressed(Protocol):
    """A claim or a row: whose it is, and where it goes."""

    @property
    def tenant(self) -> str: ...
    @property
    def channel(self) -> Channel: ...
    @property
    def category(self) -> str: ...
    @property
    def address(self) -> str: ...


class Bounceable(Addressed, Protocol):
    """A row: besides, what its policy said about bounces when it was settled."""

    @property
    def bounce_always(self) -> bool | None: ...


def outcome_effects(claim: Addressed, provider: str, kind: OutcomeKind) -> tuple[RegistryPut, ...]:
    """A dead address is deactivated, an opt-out suppressed."""
    if kind is OutcomeKind.DEAD_ADDRESS:
        return (_dead(claim, provider),)
    if kind is OutcomeKind.OPTED_OUT:
        return (_suppressed(claim, EVERY_CATEGORY, kind.value),)
    return ()


def always_fails_over(row_says: bool | None, receipt: Receipt) -> bool:
    """Whether a failure that is the recipient's fault goes to the next provider all the same.

    `row_says` is the row's `bounce_always`. If it is None, the receipt's fallback decides.
    """
    return receipt.always_failover if row_says is None else row_says


def has_effects(receipt: Receipt) -> bool:
    """Whether a receipt may write reference data; for a dead address the row decides as well."""
    if receipt.event is ReceiptEvent.FAILED:
        return receipt.address_dead
    return receipt.event in (ReceiptEvent.SPAM_REPORT, ReceiptEvent.UNSUBSCRIBE)


def receipt_effects(row: Bounceable, recipient: Recipient, receipt: Receipt) -> tuple[RegistryPut, ...]:
    """The reference data that a receipt about this notification writes about its recipient."""
    if not has_effects(receipt):
        return ()
    # If a bounce always fails over, the address stays in use, because the next provider is to try it.
    if receipt.event is ReceiptEvent.FAILED and always_fails_over(row.bounce_always, receipt):
        return ()
    match receipt.event:
        case ReceiptEvent.UNSUBSCRIBE:
            return _unsubscribed(row, recipient, receipt)
        case ReceiptEvent.SPAM_REPORT:
            return (_suppressed(row, EVERY_CATEGORY, receipt.event.value),)
        case _:
            return (_dead(row, receipt.provider),)


def suppression_key(channel: Channel, address: str, category: str) -> str:
    """Where a suppression is filed; category `*` holds for all."""
    return f"{channel._value_}:{address_key(address)}:{key_part(category)}"


def suppression_keys(channel: Channel, address: str, category: str) -> tuple[str, str]:
    """Where suppressions of it may be filed: of all categories, and of its own."""
    of_all = suppression_key(channel, address, EVERY_CATEGORY)
    return of_all, of_all[: -len(EVERY_CATEGORY)] + key_part(category)


def address_key(address: str) -> str:
    """An address as a key, or as a part of one: itself, or its hash where no index would hold it.

    A URL or token may have thousands of characters; what is filed under the key has it in full.
    """
    if len(address) <= LONGEST_KEY:
        return address
    return f"sha256={sha256(address.encode()).hexdigest()}"


def preference_key(recipient_id: str, category: str, channel: str) -> str:
    """Where a recipient's preference is filed; `*` holds where there is none for the category or channel."""
    return f"{key_part(recipient_id)}:{key_part(category)}:{channel}"


def key_part(text: str) -> str:
    """Text as a part of a key: two different pairs of parts never make the same key."""
    if text.isidentifier():  # most are
        return text
    return text.replace("%", "%25").replace(":", "%3A")


def part_text(part: str) -> str:
    """The text of a part of a key."""
    return part.replace("%3A", ":").replace("%25", "%")


def _dead(what: Addressed, provider: str) -> RegistryPut:
    if what.channel is not Channel.PUSH:
        return _suppressed(what, EVERY_CATEGORY, OutcomeKind.DEAD_ADDRESS.value)
    value: dict[str, Any] = {"token": what.address, "active": False, "why": f"dead at {provider}"}
    return RegistryPut(tenant=what.tenant, kind=DEVICE, key=address_key(what.address), value=value)


def _suppressed(what: Addressed, category: str, why: str) -> RegistryPut:
    value = {"channel": what.channel.value, "address": what.address, "category": category, "why": why}
    key = suppression_key(what.channel, what.address, category)
    return RegistryPut(tenant=what.tenant, kind=SUPPRESSION, key=key, value=value)


def _unsubscribed(row: Addressed, recipient: Recipient, receipt: Receipt) -> tuple[RegistryPut, ...]:
    category = EVERY_CATEGORY if receipt.unsubscribed_from_all else row.category
    suppressed = _suppressed(row, category, receipt.event.value)
    if recipient.id is None:
        return (suppressed,)
    preference = RegistryPut(
        tenant=row.tenant,
        kind=PREFERENCE,
        key=preference_key(recipient.id, category, row.channel),
        value={"allowed": False},
    )
    return suppressed, preference
