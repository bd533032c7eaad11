"""What a send does: fan-out, idempotency, dedup windows, times, providers, known recipients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from homing import (
    Channel,
    ConfigError,
    Homing,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    Priority,
    Recipient,
    Status,
)
from homing.core.errors import TemplateNotFound
from homing.core.notifications import Content, Mode
from homing.core.ports.plug_ins import Rendered
from homing.core.ports.stores import Entry
from homing.engine.plug_in_calls import PlugInExit
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.virtual_time import START_MS
from support.engine_harness import (
    ADA,
    PHONE,
    EngineHarness,
    K,
    TimedProvider,
    mail,
    seconds,
    serving,
    status,
    steady,
    stored,
)

NOW = datetime.fromtimestamp(START_MS / 1000, UTC)


async def idle(harness: EngineHarness, **settings: Any) -> Homing:
    """Opens an engine that accepts but delivers nothing, so that everything stays as it was accepted."""
    return await harness.open({"any": ScriptedProvider()}, working=False, **settings)


async def test_every_field_of_the_request_is_stored(harness: EngineHarness) -> None:
    engine = await idle(harness)
    sent = await engine.send(
        {"id": "u-1", "email": "Ada@Example.ORG", "locale": "de-DE", "time_zone": "Europe/Berlin"},
        channel="email",
        type="order_confirmed",
        priority="high",
        origin="orders",
        subject="Order 7",
        body="On its way",
        html="<p>On its way</p>",
        metadata={"entry_id": 7, "tags": ["a", None, 1.5]},
    )
    assert (sent.status, sent.queue_name, sent.duplicate) == ("queued", "homing-priority", False)
    found = await engine.get(sent.id)
    assert found.status is Status.PENDING
    assert found.batch_id == sent.batch_id
    assert (found.channel, found.mode, found.priority) == (Channel.EMAIL, Mode.PRIORITY, Priority.HIGH)
    assert (found.type, found.category, found.origin) == ("order_confirmed", "order_confirmed", "orders")
    assert found.recipient == Recipient(
        id="u-1", email="Ada@Example.ORG", locale="de-DE", time_zone="Europe/Berlin"
    )
    assert found.content == Content(subject="Order 7", body="On its way", html="<p>On its way</p>")
    assert found.metadata == {"entry_id": 7, "tags": ["a", None, 1.5]}
    assert found.locale == "de-DE"
    assert found.created_at == found.next_retry_at == NOW
    assert found.attempt_count == 0


@pytest.mark.parametrize(
    ("fields", "queue", "mode"),
    [
        ({"priority": "critical"}, "homing-priority", Mode.PRIORITY),
        ({"priority": "normal"}, "homing-standard", Mode.STANDARD),
        ({"priority": "low"}, "homing-bulk", Mode.BULK),
        ({"bulk": True}, "homing-bulk", Mode.BULK),
        ({"type": "otp", "synchronous": False}, "homing-standard", Mode.STANDARD),
    ],
)
async def test_the_mode_follows_from_the_request(
    harness: EngineHarness, fields: dict[str, Any], queue: str, mode: Mode
) -> None:
    engine = await idle(harness)
    sent = await engine.send(ADA, channel="email", body="x", **fields)
    assert sent.queue_name == queue
    assert (await engine.get(sent.id)).mode is mode


async def test_queue_names_can_be_chosen(harness: EngineHarness) -> None:
    engine = await idle(harness, queue_names={"standard": "listo-notifications-queue"})
    sent = await engine.send(ADA, channel="email", body="x")
    assert sent.queue_name == "listo-notifications-queue"


async def test_recipients_times_channels_share_one_batch(harness: EngineHarness) -> None:
    engine = await idle(harness)
    people = [{"email": f"p{n}@example.org", "deviceToken": f"token-{n}"} for n in range(3)]
    sent = await engine.send(people, channels=["email", "push"], body="x")
    assert len(set(sent.notification_ids)) == 6
    found = [await engine.get(id) for id in sent.notification_ids]
    assert {n.batch_id for n in found} == {sent.batch_id}
    assert [(n.channel, n.recipient.email) for n in found] == [
        (channel, f"p{n}@example.org") for n in range(3) for channel in (Channel.EMAIL, Channel.PUSH)
    ]
    with pytest.raises(ValueError, match="6 notifications"):
        _ = sent.id


async def test_both_means_email_and_push_and_a_failure_of_one_never_repeats_the_other(
    harness: EngineHarness,
) -> None:
    letters = ScriptedProvider("letters")
    pushes = TimedProvider("pushes", [K.TRANSIENT, K.TRANSIENT])
    engine = await harness.open(
        {"letters": serving("letters", letters), "pushes": serving("pushes", pushes, "push")}, rules=steady()
    )
    sent = await engine.send({"email": ADA, "deviceToken": "t-1"}, channel="both", title="Hi", body="x")
    await seconds(60)
    assert [await status(engine, id) for id in sent.notification_ids] == [Status.SENT, Status.SENT]
    assert len(letters.sent) == 1
    assert len(pushes.sent) == 3


async def test_a_repeated_channel_is_one_notification(harness: EngineHarness) -> None:
    engine = await idle(harness)
    sent = await engine.send({"email": ADA, "deviceToken": "t"}, channel="email", channels=["both"], body="x")
    assert len(sent.notification_ids) == 2


# Idempotency -------------------------------------------------------------------------------------------


async def test_the_same_key_and_body_return_the_same_ids(harness: EngineHarness) -> None:
    engine = await idle(harness)
    first = await engine.send([ADA, "bob@example.org"], channel="email", body="x", idempotency_key="k-1")
    await seconds(3600)
    again = await engine.send([ADA, "bob@example.org"], channel="email", body="x", idempotency_key="k-1")
    assert (again.batch_id, again.notification_ids) == (first.batch_id, first.notification_ids)
    assert again.duplicate
    assert not first.duplicate
    assert await stored(harness) == 2


async def test_the_same_key_with_another_body_is_a_conflict(harness: EngineHarness) -> None:
    engine = await idle(harness)
    await mail(engine, idempotency_key="k-1")
    with pytest.raises(IdempotencyConflict, match="k-1"):
        await mail(engine, idempotency_key="k-1", body="Something else")
    assert await stored(harness) == 1


async def test_the_order_of_keys_in_a_mapping_does_not_change_the_body(harness: EngineHarness) -> None:
    engine = await idle(harness)
    first = await mail(engine, idempotency_key="k", metadata={"a": 1, "b": {"c": 2, "d": 3}})
    assert await mail(engine, idempotency_key="k", metadata={"b": {"d": 3, "c": 2}, "a": 1}) == first


async def test_idempotency_keys_belong_to_their_tenant(harness: EngineHarness) -> None:
    one, two = await idle(harness, tenant="one"), await idle(harness, tenant="two")
    assert await mail(one, idempotency_key="k") != await mail(two, idempotency_key="k", body="other")


async def test_concurrent_sends_with_one_key_store_one_notification(harness: EngineHarness) -> None:
    engine = await idle(harness)
    ids = await asyncio.gather(*(mail(engine, idempotency_key="k-1") for _ in range(20)))
    assert len(set(ids)) == 1
    assert await stored(harness) == 1


async def test_a_repeat_with_a_relative_time_is_the_same_request(harness: EngineHarness) -> None:
    engine = await idle(harness)
    fields: dict[str, Any] = {"send_at": timedelta(minutes=5), "expires_at": timedelta(hours=1)}
    first = await mail(engine, idempotency_key="k-1", **fields)
    await seconds(2)
    assert await mail(engine, idempotency_key="k-1", **fields) == first


# Dedup windows -----------------------------------------------------------------------------------------


async def test_within_its_type_s_window_the_same_message_is_accepted_once(harness: EngineHarness) -> None:
    engine = await idle(harness, dedup_windows_ms={"reminder": "5m"})
    first = await mail(engine, type="reminder")
    again = await engine.send(ADA, channel="email", body="Hello", type="reminder")
    assert (again.id, again.duplicate) == (first, True)
    assert await mail(engine, type="reminder", body="Another text") != first
    assert await mail(engine, type="reminder", to="bob@example.org") != first
    assert await mail(engine, type="other") != first
    await seconds(5 * 60)
    assert await mail(engine, type="reminder") != first
    assert await stored(harness) == 5


@pytest.mark.source("003", "438")
async def test_a_dedup_key_defines_what_is_the_same_message(harness: EngineHarness) -> None:
    engine = await idle(harness)
    first = await mail(engine, dedup_key="order-7", body="one")
    assert await mail(engine, dedup_key="order-7", body="two") == first
    assert await mail(engine, dedup_key="order-8", body="one") != first
    assert await mail(engine, dedup_key="order-7", to="bob@example.org") != first


# Times -------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_before_its_scheduled_time(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider})
    soon = await mail(engine, send_at=timedelta(minutes=2))
    then = await mail(engine, send_at=NOW + timedelta(minutes=5))
    past = await mail(engine, send_at=NOW - timedelta(days=1))
    await seconds(119)
    assert [await status(engine, id) for id in (soon, then, past)] == ["pending", "pending", "sent"]
    assert (await engine.get(soon)).send_at == NOW + timedelta(minutes=2)
    await seconds(300)
    assert provider.times == [0.0, 120.0, 300.0]


async def test_a_notification_not_sent_by_its_expiry_expires(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    id = await mail(engine, expires_at=timedelta(minutes=1))
    await seconds(61)
    engine.start_worker()
    await seconds(10)
    assert await status(engine, id) is Status.EXPIRED
    assert provider.sent == []


# Providers and recipients ------------------------------------------------------------------------------


@pytest.mark.source("002", "196-197")
@pytest.mark.parametrize("spelling", ["sns", "AWS_SNS", "AWS SNS", "aws-sns", "SNS", " Sns "])
async def test_a_forced_provider_may_be_spelt_as_in_the_sources(
    harness: EngineHarness, spelling: str
) -> None:
    providers = {"twilio": ScriptedProvider("t"), "sns": ScriptedProvider("s")}
    engine = await harness.open(providers)
    sent = await engine.send(PHONE, channel="sms", body="x", provider=spelling)
    await seconds(1)
    found = await engine.get(sent.id)
    assert (found.pinned, found.provider_names) == (True, ("sns",))


@pytest.mark.parametrize("listed_as", ["AWS_SNS", "sns", "SNS"])
async def test_a_provider_may_be_listed_under_the_sources_spelling(
    harness: EngineHarness, listed_as: str
) -> None:
    engine = await harness.open({listed_as: ScriptedProvider()})
    sent = await engine.send(PHONE, channel="sms", body="x", provider="AWS_SNS")
    await seconds(1)
    assert (await engine.get(sent.id)).provider_names == ("sns",)


async def test_a_provider_whose_id_looks_like_an_alias_keeps_its_id(harness: EngineHarness) -> None:
    providers = {"sns": ScriptedProvider("s"), "aws-sns": ScriptedProvider("a")}
    engine = await harness.open(providers, routes={"sms": ["aws-sns", "sns"]})
    for name, used in {"aws-sns": "aws-sns", "AWS-SNS": "aws-sns", "AWS SNS": "sns", "sns": "sns"}.items():
        sent = await engine.send(PHONE, channel="sms", body="x", provider=name)
        await seconds(1)
        assert (await engine.get(sent.id)).provider_names == (used,)
        await engine.force_breaker(name, None, who="ada")


async def test_a_known_recipient_id_is_enough(harness: EngineHarness) -> None:
    engine = await idle(harness)
    value = {"email": ADA, "phone": PHONE, "deviceToken": "t-1", "locale": "de-DE"}
    await harness.store.put([Entry(tenant="default", kind="recipient", key="u-1", value=value)], who="test")
    sent = await engine.send({"id": "u-1"}, channels=["email", "sms"], body="x")
    letter, text = [await engine.get(id) for id in sent.notification_ids]
    assert letter.recipient.email == ADA
    assert text.recipient.phone == PHONE
    assert letter.locale == "de-DE"


async def test_the_request_overrides_the_stored_recipient(harness: EngineHarness) -> None:
    engine = await idle(harness)
    entry = Entry(tenant="default", kind="recipient", key="u-1", value={"email": "old@example.org"})
    await harness.store.put([entry], who="test")
    sent = await engine.send({"id": "u-1", "email": "new@example.org"}, channel="email", body="x")
    assert (await engine.get(sent.id)).recipient.email == "new@example.org"


class MinimalTemplates:
    """Minimal templates."""

    async def render(
        self, tenant: str, template_key: str, channel: Channel, locale: str | None, data: Mapping[str, Any]
    ) -> Rendered:
        if template_key != "greeting":
            raise TemplateNotFound("templateKey", f"{template_key!r} does not exist in {locale}")
        content = Content(subject=f"Hi {data['name']}", body=f"{tenant} {channel} {locale}")
        return Rendered(content=content, locale=locale or "en-US", version="7")


@pytest.mark.source("002", "100", "374-384", "389-391")
async def test_a_template_is_rendered_before_anything_is_stored(harness: EngineHarness) -> None:
    engine = await idle(harness, renderer=MinimalTemplates())
    to = {"email": ADA, "locale": "de-DE"}
    sent = await engine.send(to, channel="email", template_key="greeting", data={"name": "Ada"})
    found = await engine.get(sent.id)
    assert found.content == Content(subject="Hi Ada", body="default email de-DE")
    assert (found.template_key, found.locale, found.type) == ("greeting", "de-DE", "greeting")
    assert found.template_version == "7"
    with pytest.raises(TemplateNotFound, match="'farewell' does not exist in de-DE"):
        await engine.send(to, channel="email", template_key="farewell")
    assert await stored(harness) == 1


async def test_rendered_content_is_checked_like_any_other(harness: EngineHarness) -> None:
    engine = await idle(harness, renderer=MinimalTemplates())
    for name, field in (("Ada\r\nBcc: all", "content.subject"), ("x" * 300_000, "content")):
        with pytest.raises(InvalidRequest) as caught:
            await engine.send(ADA, channel="email", template_key="greeting", data={"name": name})
        assert caught.value.field in (field, "data")
    assert await stored(harness) == 0


async def test_texts_of_the_renderer_are_stored_as_plain_text(harness: EngineHarness) -> None:
    """Template engines mark safe text with a class of their own."""

    class Safe(str):
        __slots__ = ()

    class SafeTemplates(MinimalTemplates):
        async def render(self, *arguments: Any, **fields: Any) -> Rendered:
            rendered = await super().render(*arguments, **fields)
            content = replace(
                rendered.content, subject=Safe(rendered.content.subject), html=Safe("<b>Hi</b>")
            )
            return replace(rendered, content=content, locale=Safe("de-DE"), version=Safe("7"))

    engine = await idle(harness, renderer=SafeTemplates())
    sent = await engine.send(ADA, channel="email", template_key="greeting", data={"name": "Ada"})
    found = await engine.get(sent.id)
    assert (found.content.subject, found.content.html) == ("Hi Ada", "<b>Hi</b>")
    assert (found.locale, found.template_version) == ("de-DE", "7")


def rendered(**fields: Any) -> Any:
    """Returns what a careless renderer may return."""
    return Rendered(**{"content": Content(body="Hi"), "locale": None, **fields})


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "the renderer returned a NoneType instead of Rendered"),
        ("Hi", "the renderer returned a str instead of Rendered"),
        (rendered(locale=7), "the renderer returned a locale of type int; it must be text"),
        (rendered(version=7), "the renderer returned a version of type int; it must be text"),
        (rendered(locale="\ud800"), "locale: has a NUL or an unpaired surrogate"),
        (rendered(version="1\x00"), "version: has a NUL or an unpaired surrogate"),
    ],
)
async def test_an_invalid_result_of_the_renderer_refuses_the_request(
    harness: EngineHarness, result: Any, problem: str
) -> None:
    class CarelessTemplates:
        async def render(self, *arguments: Any, **fields: Any) -> Any:
            return result

    engine = await idle(harness, renderer=CarelessTemplates())
    with pytest.raises(InvalidRequest, match=problem):
        await engine.send(ADA, channel="email", template_key="greeting")
    assert await stored(harness) == 0


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_a_renderer_that_would_end_the_process_ends_only_its_request(
    harness: EngineHarness, error: BaseException
) -> None:
    class ExitingTemplates:
        async def render(self, *arguments: Any, **fields: Any) -> Any:
            raise error

    engine = await idle(harness, renderer=ExitingTemplates())
    with pytest.raises(PlugInExit):
        await asyncio.create_task(engine.send(ADA, channel="email", template_key="greeting"))
    good = {"recipient": ADA, "channel": "email", "content": {"body": "x"}}
    bad = {"recipient": ADA, "channel": "email", "template_key": "t"}
    results = [one async for one in engine.send_many([good, bad, good])]
    assert [type(one).__name__ for one in results] == ["SendResult", "Rejection", "SendResult"]


async def test_a_request_without_a_channel_needs_a_template_that_is_managed_here(
    harness: EngineHarness,
) -> None:
    engine = await idle(harness, renderer=MinimalTemplates())
    with pytest.raises(InvalidRequest) as caught:
        await engine.send(ADA, template_key="greeting", data={"name": "Ada"})
    assert caught.value.field == "channel"
    assert await stored(harness) == 0


async def test_a_send_wakes_the_worker(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider})
    await seconds(0.5)
    await mail(engine)
    await seconds(0.1)
    assert provider.times == [0.5]


async def test_no_tenant_sees_another_tenant_s_notifications(harness: EngineHarness) -> None:
    one, two = await idle(harness, tenant="one"), await idle(harness, tenant="two")
    id = await mail(one)
    for ask in (two.get, two.history, two.explain, two.retry_info, two.cancel, two.retry, two.resend):
        with pytest.raises(NotFound, match=id):
            await ask(id)
    assert (await two.list()).items == ()
    assert set((await two.queue_counts()).values()) == {0}
    assert await status(one, id) is Status.PENDING


# Channels that the request leaves out -----------------------------------------------------------------


BOTH_ADDRESSES = {"email": ADA, "device_token": "token-1"}


@pytest.mark.source("001", "102")
async def test_under_preset_simple_a_request_without_a_channel_goes_to_both(harness: EngineHarness) -> None:
    engine = await harness.open(email_and_push(), preset="simple", working=False)
    sent = await engine.send(BOTH_ADDRESSES, title="Hi", body="x")
    assert [(await engine.get(id)).channel for id in sent.notification_ids] == [Channel.EMAIL, Channel.PUSH]
    (mail_only,) = (await engine.send({"email": ADA}, title="Hi", body="x")).notification_ids
    assert (await engine.get(mail_only)).channel is Channel.EMAIL


async def test_other_presets_reject_a_request_without_a_channel_unless_the_settings_name_one(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(email_and_push(), working=False)
    with pytest.raises(InvalidRequest, match="channel: is missing"):
        await engine.send(BOTH_ADDRESSES, body="x")
    chosen = await harness.open(email_and_push(), working=False, default_channel="push")
    sent = await chosen.send(BOTH_ADDRESSES, title="Hi", body="x")
    assert (await chosen.get(sent.id)).channel is Channel.PUSH
    with pytest.raises(ConfigError, match="default_channel: is 'pigeon'; it must be one of"):
        await harness.open(email_and_push(), default_channel="pigeon")


async def test_both_means_the_channels_that_the_recipient_has_an_address_for(harness: EngineHarness) -> None:
    engine = await harness.open(email_and_push(), working=False)
    people = [{"email": ADA}, {"device_token": "token-2"}, BOTH_ADDRESSES]
    sent = await engine.send(people, channel="both", title="Hi", body="x")
    channels = [(await engine.get(id)).channel.value for id in sent.notification_ids]
    assert channels == ["email", "push", "email", "push"]
    with pytest.raises(InvalidRequest, match=r"recipient\.email: is empty; email needs it"):
        await engine.send({"phone": PHONE}, channel="both", body="x")
    with pytest.raises(InvalidRequest, match=r"recipient\.deviceToken: is empty; push needs it"):
        await engine.send({"email": ADA}, channels=("email", "push"), body="x")


async def test_a_request_without_a_channel_is_repeated_by_its_key(harness: EngineHarness) -> None:
    engine = await harness.open(email_and_push(), preset="simple", working=False)
    first, again = [
        await engine.send(BOTH_ADDRESSES, title="Hi", body="x", idempotency_key="k") for _ in range(2)
    ]
    assert first.notification_ids == again.notification_ids
    assert again.duplicate


async def test_it_is_repeated_by_its_key_whatever_the_default_channel_is_by_then(
    harness: EngineHarness,
) -> None:
    answers = []
    for settings in ({"default_channel": "email"}, {"default_channel": "both"}, {}):
        engine = await harness.open(email_and_push(), working=False, **settings)
        answers.append(await engine.send(BOTH_ADDRESSES, title="Hi", body="x", idempotency_key="k"))
    assert [one.duplicate for one in answers] == [False, True, True]
    assert len({one.notification_ids for one in answers}) == 1
    with pytest.raises(IdempotencyConflict):
        await engine.send(BOTH_ADDRESSES, title="Hi", body="another", idempotency_key="k")


def email_and_push() -> dict[str, Any]:
    return {
        "mail": serving("mail", ScriptedProvider("mail")),
        "app": serving("app", ScriptedProvider("app"), "push"),
    }
