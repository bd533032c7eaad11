"""Stored recipients, preferences and suppressions, and their effect on sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from homing import Channel, Homing, InvalidRequest, NotFound, Reason, Status, VersionConflict
from homing.core.ports.stores import Entry
from homing.core.recipients.profiles import Device, QuietWindow, RecipientProfile
from homing.providers.local.scripted import ScriptedProvider
from support.engine_harness import ADA, EngineHarness, K, seconds, serving, status

ADA_FILED: dict[str, Any] = {
    "id": "u-1",
    "email": "Ada@example.org",
    "phone": "+1 (555) 0100",
    "locale": "de-DE",
    "timeZone": "Europe/Berlin",
    "quietHours": {"start": "21:00", "end": "08:00"},
    "devices": [{"token": "t-1", "platform": "ios"}, {"token": "t-2", "platform": "android"}],
}


@pytest.fixture
async def engine(harness: EngineHarness) -> Homing:
    return await harness.open(
        {"any": serving("any", ScriptedProvider(), "email", "sms", "push")}, working=False
    )


async def test_a_recipient_reads_back_with_author_and_version(engine: Homing) -> None:
    written = await engine.recipients.put(ADA_FILED, who="crm")
    assert written == await engine.recipients.get("u-1")
    assert (written.phone, written.locale, written.time_zone) == ("+15550100", "de-DE", "Europe/Berlin")
    assert written.quiet_hours == QuietWindow("21:00", "08:00")
    assert written.devices == (Device("t-1", "ios", True), Device("t-2", "android", True))
    assert (written.version, written.updated_by) == (1, "crm")
    assert written.updated_at is not None


async def test_snake_case_and_structs_are_accepted_too(engine: Homing) -> None:
    await engine.recipients.put({"id": "u-1", "time_zone": "Asia/Kathmandu"}, who="crm")
    struct = RecipientProfile(id="u-2", time_zone="Asia/Kathmandu")
    await engine.recipients.put(struct, who="crm")
    first, second = await engine.recipients.list()
    assert first.time_zone == second.time_zone == "Asia/Kathmandu"


async def test_a_write_over_another_version_is_refused_and_changes_nothing(engine: Homing) -> None:
    first = await engine.recipients.put({"id": "u-1", "email": ADA}, who="a")
    await engine.recipients.put({"id": "u-1", "email": "new@example.org"}, who="b")
    with pytest.raises(VersionConflict, match="version 1"):
        await engine.recipients.put(
            {"id": "u-1", "email": "late@example.org", "version": first.version, "devices": [{"token": "t"}]},
            who="a",
        )
    found = await engine.recipients.get("u-1")
    assert (found.email, found.version, found.devices) == ("new@example.org", 2, ())


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({}, "recipient.id"),
        ({"id": " "}, "recipient.id"),
        ({"id": "a\nb"}, "recipient.id"),
        ({"id": "x" * 321}, "recipient.id"),
        ({"id": 5}, "recipient.id"),
        ({"id": "u", "email": "nobody"}, "recipient.email"),
        ({"id": "u", "phone": "call me"}, "recipient.phone"),
        ({"id": "u", "url": "ftp://x"}, "recipient.url"),
        ({"id": "u", "locale": "not a locale"}, "recipient.locale"),
        ({"id": "u", "timeZone": "Mars/Olympus"}, "recipient.timeZone"),
        ({"id": "u", "timeZone": "../../etc/passwd"}, "recipient.timeZone"),
        ({"id": "u", "timeZone": "Europe"}, "recipient.timeZone"),
        ({"id": "u", "timeZone": ""}, "recipient.timeZone"),
        ({"id": "u", "quietHours": {"start": "9", "end": "10:00"}}, "recipient.quietHours.start"),
        ({"id": "u", "quietHours": {"start": "09:00"}}, "recipient.quietHours.end"),
        ({"id": "u", "devices": [{"token": ""}]}, "recipient.devices[0].token"),
        ({"id": "u", "devices": [{"token": "t"}, {"token": "t"}]}, "recipient.devices[1].token"),
        ({"id": "u", "devices": [{"token": "t", "platform": "x" * 51}]}, "recipient.devices[0].platform"),
        ({"id": "u", "devices": [{"token": f"t{n}"} for n in range(51)]}, "recipient.devices"),
        ({"id": "u", "emial": ADA}, "recipient.emial"),
    ],
)
async def test_an_invalid_recipient_is_refused_with_its_field(
    engine: Homing, said: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await engine.recipients.put(said, who="crm")
    assert refused.value.field == field
    assert await engine.recipients.list() == ()


async def test_a_write_records_its_author(engine: Homing) -> None:
    with pytest.raises(InvalidRequest, match="who"):
        await engine.recipients.put({"id": "u"}, who=" ")


async def test_recipients_are_listed_page_by_page(engine: Homing) -> None:
    for n in range(5):
        await engine.recipients.put({"id": f"u-{n}"}, who="crm")
    first = await engine.recipients.list(limit=3)
    rest = await engine.recipients.list(after=first[-1].id, limit=3)
    assert [one.id for one in (*first, *rest)] == [f"u-{n}" for n in range(5)]
    with pytest.raises(InvalidRequest, match="limit"):
        await engine.recipients.list(limit=0)


async def test_tenants_do_not_see_each_other_s_recipients(engine: Homing) -> None:
    other = engine.recipients.of("acme")
    await engine.recipients.put(ADA_FILED, who="crm")
    await engine.recipients.prefer("u-1", category="news", allowed=False, who="crm")
    await engine.recipients.suppress("email", ADA, who="crm")
    with pytest.raises(NotFound):
        await other.get("u-1")
    assert (await other.list(), await other.preferences("u-1"), await other.suppressions()) == ((), (), ())
    assert not await other.delete("u-1")
    assert not await other.lift("email", ADA)
    await other.put({"id": "u-1"}, who="them")
    assert (await engine.recipients.get("u-1")).devices[0].token == "t-1"


async def test_deleting_a_recipient_deletes_devices_and_preferences_but_not_suppressions(
    harness: EngineHarness, engine: Homing
) -> None:
    people = engine.recipients
    await people.put(ADA_FILED, who="crm")
    await people.prefer("u-1", category="news", allowed=False, who="crm")
    await people.prefer("u-10", category="news", allowed=False, who="crm")
    await people.suppress("email", ADA, who="crm")
    assert await people.delete("u-1")
    assert not await people.delete("u-1")
    assert await harness.store.list_entries("default", "device") == ()
    assert await people.preferences("u-1") == ()
    assert len(await people.preferences("u-10")) == 1
    assert len(await people.suppressions()) == 1


# Devices --------------------------------------------------------------------------------------------


async def test_a_push_goes_to_every_active_device_and_a_failed_one_repeats_no_other(
    poll_rarely: None, harness: EngineHarness
) -> None:
    provider = ScriptedProvider(script=[K.TRANSIENT])
    engine = await harness.open(
        {"fcm": serving("fcm", provider, "push"), "any": serving("any", provider, "email")}
    )
    await engine.recipients.put(ADA_FILED, who="crm")
    await engine.recipients.put_device("u-1", "t-1", active=False, who="crm")
    await engine.recipients.put_device("u-1", "t-3", platform="web", who="app")
    sent = await engine.send({"id": "u-1"}, channel="both", body="x")
    found = [await engine.get(id) for id in sent.notification_ids]
    assert [(one.channel, one.recipient.device_token) for one in found[1:]] == [
        (Channel.PUSH, "t-3"),
        (Channel.PUSH, "t-2"),
    ]
    assert {one.batch_id for one in found} == {sent.batch_id}
    await seconds(3600)
    addresses = [one.address for one in provider.sent]
    assert (len(addresses), sorted(set(addresses))) == (4, ["Ada@example.org", "t-2", "t-3"])


async def test_a_push_on_no_other_channel_goes_to_every_device_too(harness: EngineHarness) -> None:
    engine = await harness.open({"fcm": serving("fcm", ScriptedProvider(), "push")}, working=False)
    await engine.recipients.put(ADA_FILED, who="crm")
    await engine.recipients.put_device("u-1", "t-3", platform="web", who="app")
    sent = await engine.send({"id": "u-1"}, channel="push", body="x")
    tokens = [(await engine.get(id)).recipient.device_token for id in sent.notification_ids]
    assert sorted(map(str, tokens)) == ["t-1", "t-2", "t-3"]


async def test_a_push_with_a_token_or_a_synchronous_one_goes_to_one_device(engine: Homing) -> None:
    await engine.recipients.put(ADA_FILED, who="crm")
    named = await engine.send({"id": "u-1", "device_token": "t-9"}, channel="push", body="x")
    assert (await engine.get(named.id)).recipient.device_token == "t-9"
    now = await engine.send({"id": "u-1"}, channel="push", body="x", synchronous=True)
    assert (await engine.get(now.id)).recipient.device_token == "t-1"


async def test_at_most_ten_devices_of_a_recipient_are_used(engine: Homing) -> None:
    devices = [{"token": f"t-{n}"} for n in range(50)]
    await engine.recipients.put({"id": "u-1", "devices": devices}, who="crm")
    sent = await engine.send([{"id": "u-1"}, {"device_token": "t-x"}], channel="push", body="x")
    assert len(sent.notification_ids) == 11


async def test_a_dead_token_stays_dead_when_the_recipient_is_written_again(harness: EngineHarness) -> None:
    provider = ScriptedProvider(script=[K.DEAD_ADDRESS])
    engine = await harness.open({"fcm": serving("fcm", provider, "push")})
    await engine.recipients.put(ADA_FILED, who="crm")
    await engine.send({"id": "u-1", "device_token": "t-1"}, channel="push", body="x")
    await seconds(2)
    for _ in range(2):
        assert [one.active for one in (await engine.recipients.get("u-1")).devices] == [False, True]
        await engine.recipients.put(ADA_FILED, who="crm")
    found = await engine.recipients.put_device("u-1", "t-1", who="app")
    assert [one.active for one in found.devices] == [True, True]
    assert found.devices[0].platform == "ios"


async def test_a_device_belongs_to_the_recipient_who_signed_in_last(engine: Homing) -> None:
    people = engine.recipients
    await people.put(ADA_FILED, who="crm")
    await people.put({"id": "u-2", "devices": [{"token": "t-1"}]}, who="crm")
    assert [one.token for one in (await people.get("u-1")).devices] == ["t-2"]
    await people.delete("u-1")
    assert [one.token for one in (await people.get("u-2")).devices] == ["t-1"]


async def test_devices_added_at_the_same_time_are_all_kept(engine: Homing) -> None:
    people = engine.recipients
    await people.put({"id": "u-1"}, who="crm")
    await asyncio.gather(*(people.put_device("u-1", f"t-{n}", who="app") for n in range(8)))
    assert sorted(one.token for one in (await people.get("u-1")).devices) == [f"t-{n}" for n in range(8)]


async def test_a_token_that_dies_while_a_device_is_added_stays_dead(
    harness: EngineHarness, engine: Homing
) -> None:
    people = engine.recipients
    await people.put(ADA_FILED, who="crm")
    dead = Entry(
        tenant="default", kind="device", key="t-1", value={"token": "t-1", "active": False}, version=-1
    )
    read = harness.store.get_many
    reads = 0

    async def get_many(*args: Any) -> Any:
        nonlocal reads
        found = await read(*args)
        reads += 1
        if reads == 4:  # put has read the devices and is about to write them
            await harness.store.put([dead], who="homing")
        return found

    harness.store.get_many = get_many  # type: ignore[method-assign, assignment]
    found = await people.put_device("u-1", "t-9", who="app")
    assert {one.token: one.active for one in found.devices} == {"t-9": True, "t-1": False, "t-2": True}
    assert reads > 6


# Preferences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "goes"),
    [
        ([("news", "email", False)], False),
        ([("news", "*", False)], False),
        ([("*", "email", False)], False),
        ([("*", "*", False)], False),
        ([("*", "*", False), ("news", "*", True)], True),
        ([("news", "*", False), ("news", "email", True)], True),
        ([("*", "email", True), ("news", "*", False)], False),
        ([("news", "sms", False), ("other", "*", False)], True),
    ],
)
async def test_the_most_specific_preference_wins(
    harness: EngineHarness, said: list[tuple[str, str, bool]], goes: bool
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    for category, channel, allowed in said:
        await engine.recipients.prefer("u-1", category=category, channel=channel, allowed=allowed, who="app")
    sent = await engine.send({"id": "u-1", "email": ADA}, channel="email", body="x", category="news")
    await seconds(2)
    found = await engine.get(sent.id)
    assert (found.status, found.reason) == (
        (Status.SENT, None) if goes else (Status.SKIPPED, Reason.UNSUBSCRIBED)
    )


async def test_preferences_are_listed_and_removed(engine: Homing) -> None:
    people = engine.recipients
    await people.prefer("u:1", category="a:b", channel="sms", allowed=False, who="app")
    await people.prefer("u", category="1:a:b", channel="sms", allowed=True, who="app")
    (one,) = await people.preferences("u:1")
    assert (one.recipient_id, one.category, one.channel, one.allowed) == ("u:1", "a:b", "sms", False)
    assert one.updated_by == "app"
    assert await people.forget_preference("u:1", category="a:b", channel="sms")
    assert not await people.forget_preference("u:1", category="a:b", channel="sms")
    assert len(await people.preferences("u")) == 1


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"id": "", "allowed": True}, "recipient.id"),
        ({"id": "u", "category": "two words", "allowed": True}, "category"),
        ({"id": "u", "channel": "pigeon", "allowed": True}, "channel"),
        ({"id": "u", "allowed": "no"}, "allowed"),
    ],
)
async def test_an_invalid_preference_is_refused(engine: Homing, said: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await engine.recipients.prefer(said.pop("id"), **said, who="app")
    assert refused.value.field == field


# Suppressions ---------------------------------------------------------------------------------------


async def test_unsubscribing_from_the_newsletter_never_blocks_a_login_code(harness: EngineHarness) -> None:
    engine = await harness.open({"sms": serving("sms", ScriptedProvider(), "sms")})
    await engine.recipients.suppress("sms", "+1 555-0100", category="news", why="STOP NEWS", who="support")
    news = await engine.send("+15550100", channel="sms", body="x", category="news")
    code = await engine.send("+15550100", channel="sms", body="123", type="otp", synchronous=True)
    await seconds(2)
    assert (await status(engine, news.id), code.status) == (Status.SKIPPED, "sent")


async def test_a_suppression_of_everything_blocks_everything(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    await engine.recipients.suppress("email", ADA, why="spam report", who="support")
    sent = await engine.send(
        ADA, channel="email", body="x", type="otp", priority="critical", synchronous=False
    )
    await seconds(2)
    assert (await engine.get(sent.id)).reason is Reason.SUPPRESSED
    assert await engine.recipients.lift("email", ADA)
    again = await engine.send(ADA, channel="email", body="x")
    await seconds(2)
    assert await status(engine, again.id) is Status.SENT


async def test_suppressions_are_listed_with_reason_and_author(engine: Homing) -> None:
    people = engine.recipients
    made = await people.suppress("webhook", "https://x.example:8080/a", category="n:1", why="gone", who="ops")
    assert (made.address, made.category) == ("https://x.example:8080/a", "n:1")
    assert (made.why, made.updated_by) == ("gone", "ops")
    await people.suppress("email", ADA, who="ops")
    await people.suppress("email", ADA, category="news", who="ops")
    await people.suppress("email", "bob@example.org", who="ops")
    assert len(await people.suppressions()) == 4
    assert [one.category for one in await people.suppressions("email", ADA)] == ["*", "news"]
    assert await people.suppressions("webhook") == (made,)
    (first,) = await people.suppressions("email", limit=1)
    assert [one.address for one in await people.suppressions("email", after=first.place)] == [
        ADA,
        "bob@example.org",
    ]
    assert not await people.lift("email", ADA, category="other")
    assert await people.lift("email", ADA, category="news")
    assert [one.category for one in await people.suppressions("email", ADA)] == ["*"]


@pytest.mark.parametrize(
    ("channel", "address", "more", "field"),
    [
        ("pigeon", "roof", {}, "channel"),
        ("*", "roof", {}, "channel"),
        ("email", "nobody", {}, "address"),
        ("email", " ", {}, "address"),
        ("push", "t" * 5000, {}, "address"),
        ("email", ADA, {"category": "no good"}, "category"),
        ("email", ADA, {"why": "a\nb"}, "why"),
        ("email", ADA, {"why": "w" * 501}, "why"),
        ("email", ADA, {"who": ""}, "who"),
    ],
)
async def test_an_invalid_suppression_is_refused(
    engine: Homing, channel: str, address: str, more: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await engine.recipients.suppress(channel, address, **{"who": "ops", **more})
    assert refused.value.field == field


async def test_suppressions_are_searched_by_address_and_channel(engine: Homing) -> None:
    with pytest.raises(InvalidRequest, match="channel"):
        await engine.recipients.suppressions(address=ADA)


async def test_very_long_tokens_and_urls_are_stored_like_any_other(harness: EngineHarness) -> None:
    long = "t" * 4000
    provider = ScriptedProvider(script=[K.DEAD_ADDRESS])
    engine = await harness.open({"fcm": serving("fcm", provider, "push")})
    people = engine.recipients
    await people.put({"id": "u-1", "devices": [{"token": long}]}, who="crm")
    assert (await people.get("u-1")).devices == (Device(long, "", True),)
    await engine.send({"id": "u-1"}, channel="push", body="x")
    await seconds(2)
    assert (await people.get("u-1")).devices == (Device(long, "", False),)
    again = await engine.send({"device_token": long}, channel="push", body="x")
    await seconds(2)
    assert (await engine.get(again.id)).reason is Reason.DEVICE_INACTIVE
    url = f"https://example.org/{long}"
    made = await people.suppress("webhook", url, who="ops")
    assert made.address == url
    assert await people.suppressions("webhook", url) == (made,)
    assert await people.lift("webhook", url)
    assert await people.delete_device("u-1", long, who="crm")
    assert (await people.get("u-1")).devices == ()
