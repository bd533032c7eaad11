"""Callbacks: verified, completed, applied; in any order, with repeats, and never if forged."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from homing import (
    Callback,
    CallbackRefused,
    CallbackUnreadable,
    Delivery,
    Homing,
    InvalidRequest,
    Outcome,
)
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.receipts import ParsedCallback, ReceiptEvent
from homing.core.notifications import Reason, Status
from homing.core.retry.policy import BounceFailover
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.virtual_time import VirtualLoop
from support.callback_provider import LOST_ANSWER, CallbackProvider, event_about, signed_callback
from support.engine_harness import ADA, EngineHarness, K, Silent, mail, seconds, serving, status, steady

E = ReceiptEvent
HOLD = steady(on_timeout="hold")


async def sent_mail(harness: EngineHarness, **settings: Any) -> tuple[Homing, CallbackProvider, str]:
    """Sends one email that the provider accepts."""
    postman = CallbackProvider("post")
    engine = await harness.open({"post": postman}, **settings)
    id = await mail(engine)
    await seconds(1)
    return engine, postman, id


async def test_a_delivery_is_applied_and_counted(harness: EngineHarness) -> None:
    engine, postman, id = await sent_mail(harness)
    events = [event_about(postman.sent[0], E.SENT), event_about(postman.sent[0], E.DELIVERED)]
    result = await engine.handle_callback("post", signed_callback(events))
    assert (result.applied, result.unchanged, result.orphaned) == (2, 0, 0)
    assert await status(engine, id) is Status.DELIVERED
    again = await engine.handle_callback("POST", signed_callback(events))
    assert (again.applied, again.unchanged) == (0, 2)


@pytest.mark.parametrize(("events", "claims"), [([E.SENT, E.DELIVERED], 0), ([E.FAILED], 1), ([E.FAILED], 0)])
async def test_only_a_failure_that_is_news_makes_the_worker_look_for_due_notifications(
    harness: EngineHarness, events: list[ReceiptEvent], claims: int
) -> None:
    engine, postman, _ = await sent_mail(harness, rules=steady())
    callback = signed_callback([event_about(postman.sent[0], event) for event in events])
    if events == [E.FAILED] and not claims:
        await engine.handle_callback("post", callback)
    await seconds(0.3)
    before = harness.store.calls["claim"]
    await engine.handle_callback("post", callback)
    await seconds(0.3)  # the worker polls once per second
    assert harness.store.calls["claim"] == before + claims


async def test_an_unsigned_callback_changes_nothing(harness: EngineHarness) -> None:
    engine, postman, id = await sent_mail(harness)
    before = await engine.history(id)
    with pytest.raises(CallbackRefused):
        await engine.handle_callback(
            "post", signed_callback([event_about(postman.sent[0], E.DELIVERED)], secret=b"guessed")
        )
    assert await engine.history(id) == before


async def test_one_bad_event_never_fails_its_batch(harness: EngineHarness) -> None:
    engine, postman, id = await sent_mail(harness)
    good = event_about(postman.sent[0], E.DELIVERED)
    bad = [None, {"event": "ping"}, {**good, "event_id": "\x00"}, {**good, "event_id": "e" * 999}]
    result = await engine.handle_callback("post", signed_callback([*bad, good]))
    assert (result.applied, result.ignored, result.unreadable) == (1, 1, 3)
    assert await status(engine, id) is Status.DELIVERED


async def test_an_event_that_the_store_refuses_never_fails_its_batch(harness: EngineHarness) -> None:
    engine, postman, id = await sent_mail(harness)
    harness.store.connection.execute(
        "CREATE TEMP TRIGGER refuse BEFORE INSERT ON homing_receipts WHEN NEW.event_id LIKE 'bad%'"
        " BEGIN SELECT RAISE(ABORT, 'refused by a test'); END"
    )
    good = event_about(postman.sent[0], E.DELIVERED)
    bad = [{**good, "event_id": f"bad-{number}"} for number in range(3)]
    result = await engine.handle_callback("post", signed_callback([*bad, good]))
    assert (result.applied, result.unreadable) == (1, 3)
    assert await status(engine, id) is Status.DELIVERED


async def test_an_invalid_notification_id_is_ignored_and_the_message_id_is_used(
    harness: EngineHarness,
) -> None:
    engine, postman, id = await sent_mail(harness)
    event = event_about(postman.sent[0], E.DELIVERED, notification_id="order-7\x00", attempt=10**12)
    event["provider_message_id"] = "post-1"
    assert (await engine.handle_callback("post", signed_callback([event]))).applied == 1
    assert await status(engine, id) is Status.DELIVERED


async def test_a_callback_that_the_provider_cannot_read_is_to_be_repeated_later(
    harness: EngineHarness,
) -> None:
    engine, _, _ = await sent_mail(harness)
    with pytest.raises(CallbackUnreadable):
        await engine.handle_callback("post", signed_callback([{"event": "no such event"}]))


async def test_a_very_large_callback_is_not_even_read(harness: EngineHarness) -> None:
    engine, postman, id = await sent_mail(harness)
    events = [event_about(postman.sent[0], E.DELIVERED, error="x" * 9_000_000)]
    with pytest.raises(CallbackUnreadable, match="8388608 bytes"):
        await engine.handle_callback("post", signed_callback(events))
    assert await status(engine, id) is Status.SENT


async def test_a_provider_without_callbacks_raises_an_error(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(), "post": CallbackProvider()})
    for name, problem in (("mail", "does not support callbacks"), ("nobody", "is not configured")):
        with pytest.raises(InvalidRequest, match=f"{name}.*{problem}.*post"):
            await engine.handle_callback(name, signed_callback([]))


@pytest.mark.parametrize("event", [E.QUEUED, E.SENT])
async def test_a_message_reported_as_taken_is_not_sent_again(
    harness: EngineHarness, event: ReceiptEvent
) -> None:
    postman = CallbackProvider("post", [LOST_ANSWER])
    engine = await harness.open({"post": postman}, rules=steady())
    id = await mail(engine)
    await seconds(1)
    assert await status(engine, id) is Status.RETRYING
    await engine.handle_callback("post", signed_callback([event_about(postman.sent[0], event)]))
    await seconds(30)
    assert await status(engine, id) is Status.SENT
    assert len(postman.sent) == 1


async def test_the_key_for_the_provider_changes_after_a_reported_failure_and_only_then(
    harness: EngineHarness,
) -> None:
    postman = CallbackProvider("post", [LOST_ANSWER])
    engine = await harness.open({"post": postman}, rules=steady())
    id = await mail(engine)
    await seconds(30)
    assert [one.idempotency_key for one in postman.sent] == [id, id]
    failed = event_about(postman.sent[1], E.FAILED, outcome="transient")
    await engine.handle_callback("post", signed_callback([failed]))
    await seconds(30)
    first, second, third = (one.idempotency_key for one in postman.sent)
    assert first == second != third


async def test_the_rule_at_the_settlement_decides_about_a_later_receipt(harness: EngineHarness) -> None:
    first, second = CallbackProvider("first"), CallbackProvider("second")
    rules = [*steady(), {"name": "orders", "type": "order", "bounce_failover": "always"}]
    engine = await harness.open({"first": first, "second": second}, rules=rules)
    await mail(engine, type="order")
    await seconds(1)
    rule = next(one for one in engine.policies.book.rules if one.name == "orders")
    changed = replace(rule.policy, bounce_failover=BounceFailover.UNLESS_RECIPIENT)
    await engine.policies.set(replace(rule, policy=changed), who="ada")
    await seconds(30)
    bounce = event_about(first.sent[0], E.FAILED, outcome="dead_address")
    await engine.handle_callback("first", signed_callback([bounce]))
    await seconds(1)
    assert len(second.sent) == 1


@pytest.mark.source("002", "29", "297-298", "313-320")
async def test_a_bounce_moves_to_the_next_provider_at_once(harness: EngineHarness) -> None:
    """At the same moment, because the worker is woken."""
    first, second = CallbackProvider("first"), CallbackProvider("second")
    engine = await harness.open({"first": first, "second": second})
    id = await mail(engine)
    await seconds(1)
    await engine.handle_callback(
        "first", signed_callback([event_about(first.sent[0], E.FAILED, error="mailbox busy\x07")])
    )
    await seconds(0.05)
    assert [delivery.attempt for delivery in second.sent] == [2]
    found = await engine.history(id)
    assert found.causes[0].why == "mailbox busy "


async def test_a_bounced_push_stays_with_the_provider_that_knows_the_device(harness: EngineHarness) -> None:
    first, second = CallbackProvider("first"), CallbackProvider("second")
    providers = {"first": serving("first", first, "push"), "second": serving("second", second, "push")}
    engine = await harness.open(providers, rules=steady())
    await engine.send({"deviceToken": "t-1"}, channel="push", body="Hello")
    await seconds(1)
    await engine.handle_callback("first", signed_callback([event_about(first.sent[0], E.FAILED)]))
    await seconds(1)
    assert (len(first.sent), len(second.sent)) == (1, 0), "it waits for its backoff"
    await seconds(10)
    assert (len(first.sent), len(second.sent)) == (2, 0)


@pytest.mark.parametrize(
    ("preset", "ends_as", "sends"), [("priority", Status.FAILED, 0), ("channel", Status.SENT, 1)]
)
async def test_a_hard_bounce_fails_over_only_if_the_preset_says_so(
    harness: EngineHarness, preset: str, ends_as: Status, sends: int
) -> None:
    first, second = CallbackProvider("first"), CallbackProvider("second")
    engine = await harness.open({"first": first, "second": second}, preset=preset)
    id = await mail(engine)
    await seconds(1)
    bounce = event_about(first.sent[0], E.FAILED, outcome="dead_address")
    await engine.handle_callback("first", signed_callback([bounce]))
    await seconds(1)
    assert (await status(engine, id), len(second.sent)) == (ends_as, sends)


async def test_the_rule_of_the_notification_decides_whether_a_hard_bounce_fails_over(
    harness: EngineHarness,
) -> None:
    first, second = CallbackProvider("first"), CallbackProvider("second")
    rules = [*steady(), {"name": "orders", "type": "order", "bounce_failover": "always"}]
    engine = await harness.open({"first": first, "second": second}, rules=rules)
    order, news = await mail(engine, type="order"), await mail(engine, type="news")
    await seconds(1)
    for delivery in tuple(first.sent):
        await engine.handle_callback(
            "first", signed_callback([event_about(delivery, E.FAILED, outcome="bad_recipient")])
        )
    await seconds(1)
    assert [delivery.notification_id for delivery in second.sent] == [order]
    assert (await status(engine, order), await status(engine, news)) == (Status.SENT, Status.FAILED)
    assert (await engine.explain(order)).resolution.policy.bounce_failover == "always"


async def test_a_changed_rule_applies_from_the_next_attempt_on(harness: EngineHarness) -> None:
    post = CallbackProvider("post")
    engine = await harness.open({"post": post}, rules=steady())
    await mail(engine)
    await seconds(1)
    [rule] = engine.policies.book.rules
    await engine.policies.set(replace(rule, policy=replace(rule.policy, base_ms=60_000)), who="ada")
    await engine.handle_callback(
        "post", signed_callback([event_about(post.sent[0], E.FAILED, outcome="transient")])
    )
    await seconds(9)
    assert len(post.sent) == 1
    await seconds(2)
    assert len(post.sent) == 2
    await engine.handle_callback(
        "post", signed_callback([event_about(post.sent[1], E.FAILED, outcome="transient")])
    )
    await seconds(59)
    assert len(post.sent) == 2
    await seconds(2)
    assert len(post.sent) == 3


async def test_bounces_at_both_providers_do_not_alternate_for_ever(harness: EngineHarness) -> None:
    first, second = CallbackProvider("first"), CallbackProvider("second")
    engine = await harness.open({"first": first, "second": second}, rules=steady())
    await mail(engine)
    await seconds(1)
    for post, delivery in ((first, 0), (second, 0)):
        event = event_about(post.sent[delivery], E.FAILED, outcome="transient")
        await engine.handle_callback(post.name, signed_callback([event]))
        await seconds(1)
    assert (len(first.sent), len(second.sent)) == (1, 1)
    await seconds(8)
    assert (len(first.sent), len(second.sent)) == (1, 1), "a new round waits for the backoff"
    await seconds(2)
    assert (len(first.sent), len(second.sent)) == (2, 1)


async def test_a_retry_that_waits_past_its_expiry_is_not_expired_before_its_time(
    harness: EngineHarness,
) -> None:
    postman = CallbackProvider("post")
    engine = await harness.open({"post": postman}, rules=steady(max_age_ms="2m"))
    before = await engine.get(await mail(engine))
    expires_at = before.created_at + timedelta(minutes=10)
    id = await mail(engine, expires_at=expires_at)
    await seconds(1)
    sent = next(one for one in postman.sent if one.notification_id == id)
    event = event_about(sent, E.FAILED, outcome="transient", retry_after_ms=1_800_000)
    await engine.handle_callback("post", signed_callback([event]))
    await seconds(200)
    done = await engine.get(id)
    assert (done.status, done.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)


@pytest.mark.parametrize("early", [True, False])
async def test_a_reported_provider_fault_raises_the_same_alert_as_a_failed_send(
    harness: EngineHarness, early: bool
) -> None:
    engine, postman, id = await sent_mail(harness)
    event = event_about(postman.sent[0], E.FAILED, outcome="provider_fault")
    if early:
        event |= {"notification_id": None, "provider_message_id": "not-known-yet"}
    for _ in range(2):
        await engine.handle_callback("post", signed_callback([event]))
        await seconds(2)
    [alert] = harness.alerts("ProviderFault")
    assert alert["provider"] == "post"
    assert await status(engine, id) is (Status.SENT if early else Status.FAILED)


async def test_an_alert_that_cannot_be_written_does_not_fail_the_callback(harness: EngineHarness) -> None:
    engine, postman, id = await sent_mail(harness)
    harness.store.away.add("emit")
    event = event_about(postman.sent[0], E.FAILED, outcome="provider_fault")
    assert (await engine.handle_callback("post", signed_callback([event]))).applied == 1
    assert await status(engine, id) is Status.FAILED
    harness.store.away.clear()
    await seconds(5)
    assert len(harness.alerts("ProviderFault")) == 1


async def test_an_invalid_class_or_delay_is_ignored(harness: EngineHarness) -> None:
    class Odd(CallbackProvider):
        def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
            heard = super().handle_callback(callback, now_ms)
            odd: Any = {"outcome": "nonsense", "retry_after_ms": "soon"}
            return replace(heard, receipts=tuple(replace(one, **odd) for one in heard.receipts))

    postman = Odd("post")
    engine = await harness.open({"post": postman}, rules=steady())
    await mail(engine)
    await seconds(1)
    assert (
        await engine.handle_callback("post", signed_callback([event_about(postman.sent[0], E.FAILED)]))
    ).applied == 1
    await seconds(11)
    assert len(postman.sent) == 2


async def test_an_event_and_a_class_may_be_given_by_name(harness: EngineHarness) -> None:
    class Named(CallbackProvider):
        def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
            heard = super().handle_callback(callback, now_ms)
            names: Any = [
                {"event": one.event.value, "outcome": None if one.outcome is None else one.outcome.value}
                for one in heard.receipts
            ]
            receipts = (replace(one, **n) for one, n in zip(heard.receipts, names, strict=True))
            return replace(heard, receipts=tuple(receipts))

    postman = Named("post")
    engine = await harness.open({"post": postman})
    for _ in range(2):
        await mail(engine)
    await seconds(1)
    first, second = postman.sent
    events = [event_about(first, E.DELIVERED), event_about(second, E.FAILED, outcome=K.BAD_CONTENT)]
    assert (await engine.handle_callback("post", signed_callback(events))).applied == 2
    assert await status(engine, first.notification_id) is Status.DELIVERED
    assert await status(engine, second.notification_id) is Status.FAILED


@pytest.mark.parametrize(
    "odd",
    [{"retry_after_ms": True}, {"error": Silent()}, {"error_code": 550}, {"outcome": Silent()}],
    ids=str,
)
async def test_an_odd_value_of_an_early_event_does_not_prevent_the_settlement(
    harness: EngineHarness, odd: Any
) -> None:
    class Early(CallbackProvider):
        """Reports each attempt before it answers."""

        def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
            heard = super().handle_callback(callback, now_ms)
            return replace(heard, receipts=tuple(replace(one, **odd) for one in heard.receipts))

        async def send(self, delivery: Delivery) -> Outcome:
            outcome = await super().send(delivery)
            if delivery.attempt == 1:
                await engine.handle_callback("post", signed_callback([event_about(delivery, E.FAILED)]))
            return outcome

    postman = Early("post")
    engine = await harness.open({"post": postman}, rules=steady())
    id = await mail(engine)
    await seconds(15)
    found = await engine.get(id)
    assert (found.status, found.attempt_count, len(postman.sent)) == (Status.SENT, 2, 2)


@pytest.mark.parametrize(
    "odd",
    [
        {"event_id": None},
        {"provider_message_id": 17},
        {"event": "no such event"},
        {"at": "today"},
        {"attempt": "1"},
        {"notification_id": 17},
        {"unsubscribed_from_all": "yes"},
        None,
    ],
    ids=str,
)
async def test_an_event_of_the_wrong_type_never_fails_its_batch(harness: EngineHarness, odd: Any) -> None:
    class Odd(CallbackProvider):
        def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
            heard = super().handle_callback(callback, now_ms)
            fields: Any = {"event_id": "bad", **(odd or {})}
            bad: Any = None if odd is None else replace(heard.receipts[0], **fields)
            return replace(heard, receipts=(bad, *heard.receipts))

    postman = Odd("post")
    engine = await harness.open({"post": postman})
    id = await mail(engine)
    await seconds(1)
    result = await engine.handle_callback(
        "post", signed_callback([event_about(postman.sent[0], E.DELIVERED)])
    )
    assert (result.applied, result.unreadable) == (1, 1)
    assert await status(engine, id) is Status.DELIVERED
    assert (await engine.list()).items


async def test_a_receipt_resolves_an_ambiguous_send(harness: EngineHarness) -> None:
    postman = CallbackProvider("post", [LOST_ANSWER])
    engine = await harness.open({"post": postman}, rules=HOLD)
    id = await mail(engine)
    await seconds(1)
    assert await status(engine, id) is Status.IN_DOUBT
    await engine.handle_callback("post", signed_callback([event_about(postman.sent[0], E.SENT)]))
    found = await engine.get(id)
    assert (found.status, found.provider_message_ids) == (Status.SENT, (f"m-{id}-1",))


async def test_an_unsubscribed_recipient_gets_nothing_more_of_that_category(harness: EngineHarness) -> None:
    engine, postman, _ = await sent_mail(harness)
    await engine.handle_callback("post", signed_callback([event_about(postman.sent[0], E.UNSUBSCRIBE)]))
    same = await mail(engine)
    other = await mail(engine, type="invoice")
    await seconds(1)
    assert await status(engine, same) is Status.SKIPPED
    assert await status(engine, other) is Status.SENT


async def test_a_recipient_unsubscribed_from_everything_gets_nothing_at_any_address(
    harness: EngineHarness,
) -> None:
    postman = CallbackProvider("post")
    engine = await harness.open({"post": postman})
    await engine.send({"id": "u-1", "email": ADA}, channel="email", body="Hello")
    await seconds(1)
    event = event_about(postman.sent[0], E.UNSUBSCRIBE, unsubscribed_from_all=True)
    await engine.handle_callback("post", signed_callback([event]))
    other = await engine.send(
        {"id": "u-1", "email": "ada@work.example"}, channel="email", type="invoice", body="Hello"
    )
    await seconds(1)
    assert await status(engine, other.id) is Status.SKIPPED


async def test_a_callback_during_a_store_outage_is_applied_when_it_is_repeated(
    harness: EngineHarness,
) -> None:
    engine, postman, id = await sent_mail(harness)
    callback = signed_callback([event_about(postman.sent[0], E.DELIVERED)])
    receipt, harness.store.receipt = harness.store.receipt, _away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await engine.handle_callback("post", callback)
    harness.store.receipt = receipt  # type: ignore[method-assign]
    assert (await engine.handle_callback("post", callback)).applied == 1
    assert await status(engine, id) is Status.DELIVERED


async def _away(batch: object) -> Any:
    raise StoreUnavailable


async def test_a_handshake_is_answered(harness: EngineHarness) -> None:
    class Shaking(CallbackProvider):
        def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
            return ParsedCallback(reply=b"yes", reply_type="application/json", reply_headers={"Allow": "all"})

    engine = await harness.open({"post": Shaking("post")})
    result = await engine.handle_callback("post", Callback(url="https://us.example/cb", method="OPTIONS"))
    assert (result.reply, result.reply_type) == (b"yes", "application/json")
    assert result.reply_headers == {"Allow": "all"}


@pytest.mark.parametrize("trouble", [None, "raise", "hang"])
async def test_a_provider_may_fetch_something_before_verification(
    harness: EngineHarness, trouble: str | None
) -> None:
    class Fetching(CallbackProvider):
        fetched = False

        async def prepare(self, callback: Callback, now_ms: int) -> None:
            if trouble == "raise":
                raise ConnectionError
            if trouble == "hang":
                await asyncio.Event().wait()
            self.fetched = True

        def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
            if not self.fetched:
                raise CallbackRefused
            return super().handle_callback(callback, now_ms)

    postman = Fetching("post")
    engine = await harness.open({"post": postman})
    await mail(engine)
    await seconds(1)
    callback = signed_callback([event_about(postman.sent[0], E.DELIVERED)])
    if trouble is None:
        assert (await engine.handle_callback("post", callback)).applied == 1
    else:
        with pytest.raises(CallbackRefused):
            await engine.handle_callback("post", callback)


async def test_a_large_callback_reaches_the_store_in_limited_steps(harness: EngineHarness) -> None:
    engine, postman, _ = await sent_mail(harness)
    sizes: list[int] = []
    real = harness.store.receipt

    async def counting(batch: Any) -> Any:
        sizes.append(len(batch))
        return await real(batch)

    harness.store.receipt = counting  # type: ignore[method-assign]
    events = [event_about(postman.sent[0], E.OPEN, number=number) for number in range(450)]
    assert (await engine.handle_callback("post", signed_callback(events))).applied == 450
    assert sizes == [200, 200, 50]


# Any order, repeats and delays ------------------------------------------------------------------------

STORIES = (E.QUEUED, E.SENT, E.DELIVERED, E.SPAM_REPORT, E.OPEN, E.CLICK)


async def _end(
    stories: list[list[ReceiptEvent]], doubts: list[bool], plan: list[Any]
) -> list[tuple[Any, ...]]:
    """Returns where each notification ends if its events arrive as planned."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    harness = EngineHarness(loop)
    try:
        postman = CallbackProvider("post", [LOST_ANSWER if doubt else "accepted" for doubt in doubts])
        engine = await harness.open({"post": postman}, rules=HOLD)
        ids = []
        for _ in stories:
            ids.append(await mail(engine))
            await seconds(1)
        events = [
            event_about(postman.sent[which], event)
            for which, story in enumerate(stories)
            for event in dict.fromkeys(story)
        ]
        for order, lost, forged in plan:
            for number in order:
                if number >= len(events):
                    continue
                if forged:
                    with pytest.raises(CallbackRefused):
                        await engine.handle_callback(
                            "post", signed_callback([event_about(postman.sent[0], E.FAILED)], b"forged")
                        )
                if not lost:
                    await engine.handle_callback("post", signed_callback([events[number]]))
        await engine.handle_callback("post", signed_callback(events[::-1]))  # lost callbacks are sent again
        found = [await engine.get(id) for id in ids]
        return [(n.status, n.reason, n.engagement, n.provider_message_ids) for n in found]
    finally:
        await harness.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(STORIES), max_size=4), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.tuples(st.permutations(range(8)), st.booleans(), st.booleans()), max_size=3),
)
def test_callbacks_in_any_order_with_repeats_and_losses_end_the_same_and_forged_ones_change_nothing(
    stories: list[list[ReceiptEvent]], doubts: list[bool], plan: list[Any]
) -> None:
    doubts = doubts[: len(stories)]
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        straight = runner.run(_end(stories, doubts, []))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        shuffled = runner.run(_end(stories, doubts, plan))
    assert shuffled == straight
