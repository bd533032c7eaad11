"""Turns the text of a search into filters, each of which a store can answer from an index or in one scan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from homing.core.errors import InvalidRequest
from homing.core.notifications import Channel, Filter, Notification, Recipient, Status
from homing.core.plain_values import is_storable
from homing.core.send_request import address_of

MAX_TEXT = 1_000

SHORTEST_ID_PREFIX = 4

_ID_PART = re.compile(r"[0-9a-f]{4,32}")

_PHONE = re.compile(r"\+[0-9 ().-]{5,30}")

_METADATA = re.compile(r"(?:metadata[ .:])?([^=\s]+)=(.*)", re.DOTALL)


METADATA_KEY = r"[A-Za-z0-9_.-]{1,64}"
"""Form of a metadata key that can be declared. The key becomes part of the definition of an index."""

MOST_METADATA_KEYS = 8
"""Maximum number of declared metadata keys. Each of them makes accepting a little slower."""


def check_metadata_keys(keys: Collection[str]) -> None:
    """Raises `InvalidRequest` if there are too many keys, or one that cannot be declared."""
    if len(keys) > MOST_METADATA_KEYS:
        raise InvalidRequest(
            "metadata_keys", f"has {len(keys)} keys; at most {MOST_METADATA_KEYS} are allowed"
        )
    for key in keys:
        if re.fullmatch(METADATA_KEY, key) is None:
            raise InvalidRequest(
                "metadata_keys",
                f"has {key[:100]!r}; a key consists of at most 64 ASCII letters, digits, dots, - and _",
            )


class SearchKind(StrEnum):
    """What a text is compared with."""

    ID = "id"
    """The id of the notification, or its beginning."""
    ADDRESS = "address"
    RECIPIENT = "recipient"
    """The id of the recipient."""
    BATCH = "batch"
    PROVIDER_MESSAGE = "provider_message"
    """The id that a provider gave to the message."""
    METADATA = "metadata"


class SearchResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """One page of a search, newest first."""

    items: tuple[Notification, ...]
    cursor: str | None = None
    """Requests the next page. None on the last one."""
    complete: bool = True
    """False if the search ended at its limit of time or rows, so that older notifications were not compared.
    The next page continues there."""
    compared_with: tuple[SearchKind, ...] = ()
    """What the text was compared with. Empty if there was no text."""


class BatchView(Struct, frozen=True, kw_only=True, rename="camel"):
    """The notifications that one request was fanned out into, counted by status."""

    batch_id: str
    accepted_at: datetime
    total: int
    """Number of notifications that were counted."""
    statuses: dict[Status, int]
    """Status → number of notifications, in the order of the life cycle. Statuses without any are missing."""
    channels: dict[Channel, int]
    """Channel → number of notifications."""
    complete: bool
    """False if the batch has more notifications than were counted."""


def count_batch(batch_id: str, found: Sequence[Notification], *, complete: bool) -> BatchView:
    """Counts the notifications of a batch, of which there is at least one."""
    statuses, channels = Counter(one.status for one in found), Counter(one.channel for one in found)
    return BatchView(
        batch_id=batch_id,
        accepted_at=min(one.created_at for one in found),
        total=len(found),
        statuses={status: statuses[status] for status in Status if status in statuses},
        channels={channel: channels[channel] for channel in Channel if channel in channels},
        complete=complete,
    )


def plan_search(text: str, chosen: Filter) -> dict[SearchKind, Filter]:
    """Returns one filter for each kind of thing that the text may be. `chosen` applies to all of them.

    `key=value`, or `metadata key=value`, is compared with the metadata. Any other text is compared with ids,
    addresses, recipients, batches and providers' message ids, all of which have indexes.
    """
    text = text.strip()
    if len(text) > MAX_TEXT or not is_storable(text):
        raise InvalidRequest("q", f"must have at most {MAX_TEXT} characters, and no NUL")
    metadata = _METADATA.fullmatch(text)
    if metadata is not None and not _is_url(text):
        pair = {metadata[1]: metadata[2].strip()}
        return {SearchKind.METADATA: replace(chosen, metadata={**chosen.metadata, **pair})}
    found = {
        SearchKind.ADDRESS: replace(chosen, address=_address(text)),
        SearchKind.RECIPIENT: replace(chosen, recipient_id=text),
        SearchKind.BATCH: replace(chosen, batch_id=text),
        SearchKind.PROVIDER_MESSAGE: replace(chosen, provider_message_id=text),
    }
    prefix = id_prefix(text)
    return found if prefix is None else {SearchKind.ID: replace(chosen, id_prefix=prefix), **found}


def id_prefix(text: str) -> str | None:
    """Returns the text as the beginning of an id, or None if no id begins so or it is too short."""
    digits = text.replace("-", "").lower()
    if _ID_PART.fullmatch(digits) is None:
        return None
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(part for part in parts if part)


def has_index(filter: Filter) -> bool:
    """Returns True if a store finds the matches by an index, without comparing all other notifications."""
    return any(
        field is not None
        for field in (
            filter.address,
            filter.recipient_id,
            filter.batch_id,
            filter.provider_message_id,
            filter.id_prefix,
        )
    )


def needs_scan(filter: Filter) -> bool:
    """Returns True if notifications must be compared one by one, which takes long if few match.

    A store finds notifications of some statuses without that, and those that match no condition at all.
    """
    alone = Filter(statuses=filter.statuses, acknowledged=filter.acknowledged)
    return not has_index(filter) and filter != alone


def _is_url(text: str) -> bool:
    """Returns True for a URL, which may contain `=` in its query and `@` in its path."""
    return "://" in text


def _address(text: str) -> str:
    """Returns the text as notifications store it, if it is an email address or a phone number."""
    try:
        if "@" in text and not _is_url(text):
            return address_of(Recipient(email=text), Channel.EMAIL)
        if _PHONE.fullmatch(text) is not None:
            return address_of(Recipient(phone=text), Channel.SMS)
    except InvalidRequest:
        pass
    return text
