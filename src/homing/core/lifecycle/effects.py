"""The reference data that outcomes and receipts write: dead addresses, opt-outs, spam reports, unsubscribes.

The functions are pure: they return the writes, and a store applies them in the transaction of the settlement
or receipt. The registry keys of devices, suppressions and preferences are defined here as well.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Protocol

from homing.core.lifecycle.outcomes import RegistryPut
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.notifications import Channel, OutcomeKind, Recipient

EVERY_CATEGORY = "*"

EVERY_CHANNEL = "*"

DEVICE, SUPPRESSION, PREFERENCE = "device", "suppression", "preference"

LONGEST_KEY = 500
"""Maximum number of characters of an address in a registry key, because an index entry of PostgreSQL holds
only about 2,700 bytes."""


class Addressed(Protocol):
    """A claim or row, with its tenant and the address it is sent to."""

    @property
    def tenant(self) -> str: ...
    @property
    def channel(self) -> Channel: ...
    @property
    def category(self) -> str: ...
    @property
    def address(self) -> str: ...


class Bounceable(Addressed, Protocol):
    """A row, which also has `bounce_always` from its last settlement."""

    @property
    def bounce_always(self) -> bool | None: ...


def outcome_effects(claim: Addressed, provider: str, kind: OutcomeKind) -> tuple[RegistryPut, ...]:
    """Returns the writes after an outcome.

    A dead device is deactivated. Other dead addresses, and those that opted out, are suppressed.
    """
    if kind is OutcomeKind.DEAD_ADDRESS:
        return (_deactivate(claim, provider),)
    if kind is OutcomeKind.OPTED_OUT:
        return (_suppress(claim, EVERY_CATEGORY, kind.value),)
    return ()


def always_fails_over(row_says: bool | None, receipt: Receipt) -> bool:
    """Returns True if a failure caused by the recipient fails over to the next provider anyway.

    `row_says` is the row's `bounce_always`. If it is None, the receipt's fallback decides.
    """
    return receipt.always_failover if row_says is None else row_says


def has_effects(receipt: Receipt) -> bool:
    """Returns True if a receipt may write reference data. For a dead address, the row decides as well."""
    if receipt.event is ReceiptEvent.FAILED:
        return receipt.address_dead
    return receipt.event in (ReceiptEvent.SPAM_REPORT, ReceiptEvent.UNSUBSCRIBE)


def receipt_effects(row: Bounceable, recipient: Recipient, receipt: Receipt) -> tuple[RegistryPut, ...]:
    """Returns the writes about the recipient that follow from a receipt about this notification."""
    if not has_effects(receipt):
        return ()
    # If a bounce always fails over, the address stays in use, because the next provider will try it.
    if receipt.event is ReceiptEvent.FAILED and always_fails_over(row.bounce_always, receipt):
        return ()
    match receipt.event:
        case ReceiptEvent.UNSUBSCRIBE:
            return _unsubscribe(row, recipient, receipt)
        case ReceiptEvent.SPAM_REPORT:
            return (_suppress(row, EVERY_CATEGORY, receipt.event.value),)
        case _:
            return (_deactivate(row, receipt.provider),)


def suppression_key(channel: Channel, address: str, category: str) -> str:
    """Returns the registry key of a suppression. Category `*` stands for all categories."""
    return f"{channel._value_}:{address_key(address)}:{key_part(category)}"


def suppression_keys(channel: Channel, address: str, category: str) -> tuple[str, str]:
    """Returns the keys of the suppressions that may apply: that for all categories, and that for this one."""
    of_all = suppression_key(channel, address, EVERY_CATEGORY)
    return of_all, of_all[: -len(EVERY_CATEGORY)] + key_part(category)


def address_key(address: str) -> str:
    """Returns an address as a registry key or part of one.

    An address that is too long for an index, such as a long URL or token, is replaced by its hash. The entry
    itself contains the full address.
    """
    if len(address) <= LONGEST_KEY:
        return address
    return f"sha256={sha256(address.encode()).hexdigest()}"


def preference_key(recipient_id: str, category: str, channel: str) -> str:
    """Returns the registry key of a preference. Category and channel `*` stand for all."""
    return f"{key_part(recipient_id)}:{key_part(category)}:{channel}"


def key_part(text: str) -> str:
    """Escapes `:` and `%` in a part of a registry key, so that parts joined by `:` can be split again."""
    if text.isidentifier():  # the usual case
        return text
    return text.replace("%", "%25").replace(":", "%3A")


def unescape_key_part(part: str) -> str:
    """Returns the text of an escaped part of a registry key."""
    return part.replace("%3A", ":").replace("%25", "%")


def _deactivate(what: Addressed, provider: str) -> RegistryPut:
    if what.channel is not Channel.PUSH:
        return _suppress(what, EVERY_CATEGORY, OutcomeKind.DEAD_ADDRESS.value)
    value: dict[str, Any] = {"token": what.address, "active": False, "why": f"dead at {provider}"}
    return RegistryPut(tenant=what.tenant, kind=DEVICE, key=address_key(what.address), value=value)


def _suppress(what: Addressed, category: str, why: str) -> RegistryPut:
    value = {"channel": what.channel.value, "address": what.address, "category": category, "why": why}
    key = suppression_key(what.channel, what.address, category)
    return RegistryPut(tenant=what.tenant, kind=SUPPRESSION, key=key, value=value)


def _unsubscribe(row: Addressed, recipient: Recipient, receipt: Receipt) -> tuple[RegistryPut, ...]:
    category = EVERY_CATEGORY if receipt.unsubscribed_from_all else row.category
    suppressed = _suppress(row, category, receipt.event.value)
    if recipient.id is None:
        return (suppressed,)
    preference = RegistryPut(
        tenant=row.tenant,
        kind=PREFERENCE,
        key=preference_key(recipient.id, category, row.channel),
        value={"allowed": False},
    )
    return suppressed, preference
