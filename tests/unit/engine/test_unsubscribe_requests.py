"""Which messages get an unsubscribe link, and what a link does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.errors import LinkRefused
from homing.core.lifecycle.claims import Claim
from homing.core.notifications import Channel, Mode, Recipient
from homing.core.recipients.unsubscribe_links import Subscription
from homing.core.retry.decide import RecipientFacts
from homing.engine.intake.unsubscribe_links import UnsubscribeLinks, UnsubscribeLinkSettings

SETTINGS = UnsubscribeLinkSettings(
    public_url="https://x.example/", exempt_categories={"invoice"}, secret="s" * 32
)
ADA = Recipient(id="ada")


class OwnDirectory:
    """A user's directory that supports unsubscribing."""

    def __init__(self) -> None:
        self.ended: list[Subscription] = []

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        return {}

    async def facts(self, claims: Sequence[Claim]) -> Mapping[str, RecipientFacts]:
        return {}

    async def unsubscribe(self, subscription: Subscription) -> None:
        self.ended.append(subscription)


def links(directory: Any, **changes: Any) -> UnsubscribeLinks:
    registry: Any = None  # the secret is in the settings
    return UnsubscribeLinks(registry, directory, replace(SETTINGS, **changes))


async def link(made: UnsubscribeLinks, **changes: Any) -> str | None:
    fields = {"category": "news", "channel": Channel.EMAIL, "mode": Mode.BULK, "recipient": ADA, **changes}
    return await made.link("acme", address="ada@example.org", **fields)


async def test_a_link_names_the_recipient_by_id_or_else_by_address() -> None:
    made = links(directory := OwnDirectory())
    for recipient in (ADA, Recipient(email="ada@example.org")):
        found = await link(made, recipient=recipient)
        assert found is not None
        base, _, token = found.rpartition("/")
        assert base == "https://x.example/unsubscribe"
        await made.unsubscribe(token)
    assert [(one.recipient_id, one.address, one.category) for one in directory.ended] == [
        ("ada", None, "news"),
        (None, "ada@example.org", "news"),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"category": "invoice"},
        {"channel": Channel.SMS},
        {"mode": Mode.SYNCHRONOUS},
        {"category": "x" * 4000},
    ],
    ids=["exempt", "sms", "synchronous", "too long"],
)
async def test_some_messages_get_no_link(changes: dict[str, Any]) -> None:
    assert await link(links(OwnDirectory()), **changes) is None


async def test_there_are_no_links_without_a_public_url_or_a_directory_that_supports_them() -> None:
    for made in (links(OwnDirectory(), public_url=""), links(object())):
        assert not made.offers
        assert await link(made) is None


async def test_a_link_stays_valid_without_a_public_url_but_not_without_support() -> None:
    found = await link(links(OwnDirectory()))
    assert found is not None
    token = found.rpartition("/")[2]
    await links(directory := OwnDirectory(), public_url="").unsubscribe(token)
    assert len(directory.ended) == 1
    with pytest.raises(LinkRefused, match="no longer possible"):
        await links(object()).unsubscribe(token)
    with pytest.raises(LinkRefused):
        await links(OwnDirectory(), secret="t" * 32).unsubscribe(token)


async def test_a_user_s_own_directory_changes_nothing_in_the_store() -> None:
    made = links(OwnDirectory())
    found = await link(made)
    assert found is not None
    assert await made.changes(await made.subscription(found.rpartition("/")[2])) is False
