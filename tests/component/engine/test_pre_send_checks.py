"""Checks before every attempt, with the store's own data or a user's recipient service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from homing import Delivery, Homing, HomingError, Outcome, OutcomeKind, Reason, Recipient, Status
from homing.core.errors import StoreRejected
from homing.core.lifecycle.claims import Claim
from homing.core.ports.stores import Entry
from homing.core.retry.decide import RecipientFacts
from homing.providers.local.scripted import ScriptedProvider
from support.engine_harness import (
    ADA,
    HOUR,
    EngineHarness,
    K,
    RecipientHook,
    Silent,
    TimedProvider,
    mail,
    seconds,
    serving,
    status,
    steady,
)


async def put(
    harness: EngineHarness, kind: str, key: str, value: dict[str, Any], tenant: str = "default"
) -> None:
    entry = Entry(tenant=tenant, kind=kind, key=key, value=value, version=-1)
    assert await harness.store.put([entry], who="test") is not None


async def ends(harness: EngineHarness, engine: Homing, id: str) -> tuple[Status, Reason | None, int]:
    await seconds(2)
    found = await engine.get(id)
    return found.status, found.reason, found.attempt_count


SKIPPED = [
    ("suppression", f"email:{ADA}:*", {}, Reason.SUPPRESSED),
    ("suppression", f"email:{ADA}:news", {}, Reason.SUPPRESSED),
    ("preference", "u-1:news:email", {"allowed": False}, Reason.UNSUBSCRIBED),
]


@pytest.mark.parametrize(("kind", "key", "value", "reason"), SKIPPED)
async def test_a_recipient_that_must_not_be_contacted_is_skipped_with_the_reason(
    harness: EngineHarness, kind: str, key: str, value: dict[str, Any], reason: Reason
) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider})
    await put(harness, kind, key, value)
    sent = await engine.send({"id": "u-1", "email": ADA}, channel="email", body="x", category="news")
    assert await ends(harness, engine, sent.id) == (Status.SKIPPED, reason, 0)
    assert provider.sent == []
    (cause,) = (await engine.history(sent.id)).causes
    assert (cause.kind, cause.name, cause.why) == ("guard", "skipped", reason.value)


async def test_a_suppression_applies_as_soon_as_it_is_stored(harness: EngineHarness) -> None:
    """Also the first suppression of a tenant, and several one after another."""
    engine = await harness.open({"mail": ScriptedProvider()})
    found = []
    for key in ("other@example.org", ADA, None):
        sent = await engine.send({"email": ADA}, channel="email", body="x")
        found.append((await ends(harness, engine, sent.id))[0])
        if key is not None:
            await put(harness, "suppression", f"email:{key}:*", {})
    assert found == [Status.SENT, Status.SENT, Status.SKIPPED]


@pytest.mark.parametrize(
    ("kind", "key", "value", "tenant"),
    [
        ("suppression", f"email:{ADA}:other", {}, "default"),
        ("suppression", f"sms:{ADA}:*", {}, "default"),
        ("suppression", f"email:{ADA}:*", {}, "another"),
        ("preference", "u-1:news:email", {"allowed": True}, "default"),
        ("preference", "u-2:news:email", {"allowed": False}, "default"),
        ("preference", "u-1:news:push", {"allowed": False}, "default"),
        ("device", ADA, {"active": False}, "default"),
    ],
)
async def test_suppressions_of_other_things_have_no_effect(
    harness: EngineHarness, kind: str, key: str, value: dict[str, Any], tenant: str
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    await put(harness, kind, key, value, tenant)
    sent = await engine.send({"id": "u-1", "email": ADA}, channel="email", body="x", category="news")
    assert (await ends(harness, engine, sent.id))[0] is Status.SENT


async def test_an_inactive_device_is_skipped(harness: EngineHarness) -> None:
    engine = await harness.open({"fcm": ScriptedProvider()})
    await put(harness, "device", "token-1", {"active": False})
    sent = await engine.send(
        [{"deviceToken": "token-1"}, {"deviceToken": "token-2"}], channel="push", body="x"
    )
    await seconds(2)
    assert [await status(engine, id) for id in sent.notification_ids] == [Status.SKIPPED, Status.SENT]
    assert (await engine.get(sent.notification_ids[0])).reason is Reason.DEVICE_INACTIVE


async def test_the_check_runs_before_every_attempt(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[K.TRANSIENT])
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine)
    await seconds(2)
    await put(harness, "suppression", f"email:{ADA}:*", {})
    await seconds(10)
    found = await engine.get(id)
    assert (found.status, found.reason, found.attempt_count) == (Status.SKIPPED, Reason.SUPPRESSED, 1)


class SwitchedOffWhileSending(TimedProvider):
    """Fails, and the device of the push is reported as inactive before the provider answers."""

    def __init__(self, switch_off: Callable[[], Awaitable[None]], *, kind: OutcomeKind = K.TRANSIENT) -> None:
        super().__init__("fcm", usual=kind)
        self._switch_off = switch_off

    async def send(self, delivery: Delivery) -> Outcome:
        await self._switch_off()
        return await super().send(delivery)


@pytest.mark.source("000", "17-22", "73-76", "92-93")
@pytest.mark.parametrize("kind", [K.TRANSIENT, K.THROTTLED, K.AMBIGUOUS, K.PROVIDER_FAULT])
async def test_a_device_that_is_inactive_when_a_push_fails_gets_no_retry(
    harness: EngineHarness, kind: OutcomeKind
) -> None:
    provider = SwitchedOffWhileSending(
        lambda: put(harness, "device", "token-1", {"active": False}), kind=kind
    )
    engine = await harness.open({"fcm": serving("fcm", provider, "push")}, rules=steady())
    sent = await engine.send({"deviceToken": "token-1"}, channel="push", body="x")
    await seconds(2)
    history = await engine.history(sent.id)
    found = history.notification
    assert (found.status, found.reason) == (Status.SKIPPED, Reason.DEVICE_INACTIVE)
    assert (found.attempt_count, found.next_retry_at) == (1, None)
    assert [attempt.outcome for attempt in history.attempts] == [kind]
    assert history.causes == (), "its attempt is the cause"
    counts = await engine.process(10)
    assert (counts.processed, counts.retried) == (0, 0)
    await seconds(60)
    assert len(provider.times) == 1


async def test_the_directory_is_asked_once_for_all_failed_pushes_of_a_settled_batch(
    harness: EngineHarness,
) -> None:
    asked: list[int] = []

    def facts(claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        asked.append(len(claims))
        if len(asked) == 1:
            return {}
        gone = RecipientFacts(skip=Reason.DEVICE_INACTIVE)
        return {claim.id: gone for claim in claims if claim.address.endswith("-odd")}

    providers = {"all": serving("all", TimedProvider(usual=K.TRANSIENT, latency_ms=50), "push", "email")}
    engine = await harness.open(providers, directory=RecipientHook(facts), rules=steady(), working=False)
    pushes = await engine.send(
        [{"deviceToken": f"t{n}-{'odd' if n % 2 else 'even'}"} for n in range(6)], channel="push", body="x"
    )
    letter = await mail(engine)
    counts = await engine.process(10)
    assert asked == [7, 6], "an email has no device"
    assert (counts.processed, counts.retried, counts.other) == (7, 4, 3)
    assert [await status(engine, id) for id in pushes.notification_ids] == [
        Status.RETRYING,
        Status.SKIPPED,
    ] * 3
    assert await status(engine, letter) is Status.RETRYING


@pytest.mark.parametrize(
    ("failure", "logged"),
    [
        ("raises", "down"),
        ("raises without a text", "Silent"),
        ("raises with an empty text", "RuntimeError"),
        ("hangs", None),
        ("nonsense", None),
    ],
)
async def test_if_the_directory_fails_after_an_attempt_the_retry_stays(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, failure: str, logged: str | None
) -> None:
    calls = 0

    async def facts(claims: Sequence[Claim]) -> Any:
        nonlocal calls
        calls += 1
        if calls != 2:
            return {}
        if failure == "hangs":
            await asyncio.sleep(HOUR)
        if failure == "raises":
            raise RuntimeError("down")
        if failure == "raises without a text":
            raise Silent
        if failure == "raises with an empty text":
            raise RuntimeError
        return "nonsense"

    provider = TimedProvider(script=[K.TRANSIENT])
    engine = await harness.open(
        {"fcm": serving("fcm", provider, "push")}, directory=RecipientHook(facts), rules=steady()
    )
    sent = await engine.send({"deviceToken": "token-1"}, channel="push", body="x")
    await seconds(5)
    assert await status(engine, sent.id) is Status.RETRYING
    if logged is not None:
        assert f"the recipient directory failed, 1 retries stay: {logged}" in caplog.messages
    await seconds(10)
    assert await status(engine, sent.id) is Status.SENT


async def test_a_dead_token_deactivates_its_device_for_the_next_notification(harness: EngineHarness) -> None:
    provider = ScriptedProvider(script=[K.DEAD_ADDRESS])
    engine = await harness.open({"fcm": serving("fcm", provider, "push")})
    first = await engine.send({"deviceToken": "token-1"}, channel="push", body="x")
    assert await ends(harness, engine, first.id) == (Status.FAILED, Reason.DEAD_ADDRESS, 1)
    device = (await harness.store.get_many("default", "device", ["token-1"]))["token-1"]
    assert device.value["active"] is False
    second = await engine.send({"deviceToken": "token-1"}, channel="push", body="x")
    assert await ends(harness, engine, second.id) == (Status.SKIPPED, Reason.DEVICE_INACTIVE, 0)


@pytest.mark.parametrize("kind", [K.OPTED_OUT, K.DEAD_ADDRESS])
async def test_a_recipient_that_opted_out_or_is_gone_gets_nothing_more(
    harness: EngineHarness, kind: Any
) -> None:
    provider = ScriptedProvider(script=[kind])
    engine = await harness.open({"sms": serving("sms", provider, "sms")})
    for expected in (Status.FAILED, Status.SKIPPED):
        sent = await engine.send("+1 (555) 0100", channel="sms", body="x")
        assert (await ends(harness, engine, sent.id))[0] is expected
    assert len(provider.sent) == 1


# A user's recipient service ----------------------------------------------------------------------------


async def test_a_hook_s_facts_decide(harness: EngineHarness) -> None:
    def facts(claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        return {c.id: RecipientFacts(skip=Reason.UNSUBSCRIBED) for c in claims if c.address == ADA}

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts))
    skipped, sent = await mail(engine), await mail(engine, to="bob@example.org")
    await seconds(2)
    assert (await status(engine, skipped), await status(engine, sent)) == (Status.SKIPPED, Status.SENT)


async def test_a_hook_can_postpone_and_the_attempt_is_returned(harness: EngineHarness) -> None:
    provider = TimedProvider()
    asked = 0

    def facts(claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        nonlocal asked
        asked += 1
        wait = RecipientFacts(postpone_ms=60_000, postpone_reason=Reason.QUIET_HOURS)
        return {c.id: wait for c in claims} if asked == 1 else {}

    engine = await harness.open({"mail": provider}, directory=RecipientHook(facts))
    id = await mail(engine)
    await seconds(30)
    found = await engine.get(id)
    assert (found.status, found.reason, found.attempt_count) == (Status.PENDING, Reason.QUIET_HOURS, 0)
    await seconds(35)
    found = await engine.get(id)
    assert (found.status, found.reason, found.attempt_count) == (Status.SENT, None, 1)
    assert provider.times == [60.0]


async def test_one_call_of_the_hook_covers_a_whole_batch(harness: EngineHarness) -> None:
    hook = RecipientHook(lambda claims: {})
    engine = await harness.open({"mail": ScriptedProvider()}, directory=hook, working=False)
    for n in range(90):
        await mail(engine, to=f"p{n}@example.org")
    engine.start_worker()
    await seconds(2)
    assert (await engine.queue_counts())["sent"] == 90
    assert hook.asked == 1


def raising(claims: Sequence[Claim]) -> Any:
    raise ConnectionError("their database is down")


@pytest.mark.parametrize(
    "trouble",
    [
        raising,
        lambda claims: None,
        lambda claims: [1, 2],
        lambda claims: {c.id: "no" for c in claims},
        lambda claims: asyncio.Event().wait(),
    ],
    ids=["raises", "answers nothing", "answers a list", "answers junk", "hangs"],
)
async def test_a_failing_hook_postpones_and_no_attempt_is_lost(harness: EngineHarness, trouble: Any) -> None:
    hook = RecipientHook(trouble)
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, directory=hook, rules=steady(max_attempts=1))
    id = await mail(engine)
    await seconds(30)
    assert provider.sent == []
    hook._facts = lambda claims: {}
    await seconds(30)
    found = await engine.get(id)
    assert (found.status, found.attempt_count) == (Status.SENT, 1)
    assert len((await engine.history(id)).attempts) == 1


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (ValueError("badly formed UUID"), "badly formed UUID"),
        (ValueError(), "ValueError"),
        (Silent(), "Silent"),
    ],
    ids=["text", "empty text", "no text"],
)
async def test_the_log_names_the_error_of_a_failing_hook(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, error: Exception, logged: str
) -> None:
    def facts(claims: Sequence[Claim]) -> Any:
        raise error

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts))
    await mail(engine)
    await seconds(1)
    assert f"the recipient directory failed, 1 notifications are postponed: {logged}" in caplog.messages


@pytest.mark.parametrize("error", [ValueError("badly formed UUID"), Silent()], ids=["text", "no text"])
async def test_a_hook_that_fails_for_some_recipients_delays_no_others(
    harness: EngineHarness, error: Exception
) -> None:
    def facts(claims: Sequence[Claim]) -> Any:
        if any(claim.address.startswith("bad") for claim in claims):
            raise error
        return {c.id: RecipientFacts(skip=Reason.UNSUBSCRIBED) for c in claims if c.address == ADA}

    hook = RecipientHook(facts)
    engine = await harness.open({"mail": ScriptedProvider()}, directory=hook, working=False)
    bad = [await mail(engine, to=f"bad{n}@example.org") for n in range(2)]
    skipped = await mail(engine)
    for n in range(60):
        await mail(engine, to=f"p{n}@example.org")
    engine.start_worker()
    await seconds(2)
    assert {await status(engine, id) for id in bad} == {Status.PENDING}
    assert await status(engine, skipped) is Status.SKIPPED
    assert (await engine.queue_counts())["sent"] == 60
    assert hook.asked <= 24


async def test_facts_may_have_the_values_of_their_json_form(harness: EngineHarness) -> None:
    named: dict[str, dict[str, Any]] = {
        "skipped@example.org": {"skip": "UNSUBSCRIBED"},
        "quiet@example.org": {"quiet_hours": {"start_ms": 0, "end_ms": 86_399_999}},
        "later@example.org": {"postpone_ms": 60_000, "postpone_reason": "QUIET_HOURS"},
        "odd@example.org": {"quiet_hours": {"from": "22:00"}},
    }

    def facts(claims: Sequence[Claim]) -> Any:
        return {c.id: RecipientFacts(**named[c.address]) for c in claims if c.address in named}

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts), working=False)
    ids = [await mail(engine, to=to) for to in (*named, ADA)]
    engine.start_worker()
    await seconds(2)
    found = [await engine.get(id) for id in ids]
    assert [(one.status, one.reason) for one in found] == [
        (Status.SKIPPED, Reason.UNSUBSCRIBED),
        (Status.PENDING, Reason.QUIET_HOURS),
        (Status.PENDING, Reason.QUIET_HOURS),
        (Status.PENDING, None),
        (Status.SENT, None),
    ]


async def test_a_hook_that_fails_for_everybody_is_asked_a_bounded_number_of_times(
    harness: EngineHarness,
) -> None:
    hook = RecipientHook(raising)
    engine = await harness.open({"mail": ScriptedProvider()}, directory=hook, working=False)
    for n in range(200):
        await mail(engine, to=f"p{n}@example.org")
    engine.start_worker()
    await seconds(4)
    assert (await engine.queue_counts())["pending"] == 200
    assert hook.asked <= 3 * 32, "the notifications are claimed in three batches"


async def test_a_recipient_that_the_store_of_a_hook_refuses_delays_no_others(harness: EngineHarness) -> None:
    def facts(claims: Sequence[Claim]) -> Any:
        if any(claim.address.startswith("bad") for claim in claims):
            raise StoreRejected
        return {}

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts), working=False)
    bad, good = await mail(engine, to="bad@example.org"), await mail(engine)
    engine.start_worker()
    await seconds(2)
    assert (await status(engine, bad), await status(engine, good)) == (Status.PENDING, Status.SENT)


@pytest.mark.parametrize(
    "bad", [range(0, 200, 5), range(40), range(160, 200)], ids=["every fifth", "the first", "the last"]
)
async def test_a_hook_that_fails_for_many_recipients_delays_no_others(
    harness: EngineHarness, bad: range
) -> None:
    def facts(claims: Sequence[Claim]) -> Any:
        if any(claim.address.startswith("bad") for claim in claims):
            raise KeyError("phone")
        return {}

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts), working=False)
    for n in range(200):
        await mail(engine, to=f"{'bad' if n in bad else 'good'}{n}@example.org")
        await seconds(0.01)  # they are claimed in this order
    engine.start_worker()
    await seconds(4)
    assert {name: number for name, number in (await engine.queue_counts()).items() if number} == {
        "pending": 40,
        "sent": 160,
    }


async def test_a_hook_that_hangs_for_one_recipient_delays_others_for_a_while_only(
    harness: EngineHarness,
) -> None:
    async def facts(claims: Sequence[Claim]) -> Any:
        if any(claim.address.startswith("bad") for claim in claims):
            await asyncio.sleep(HOUR)
        return {}

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts), working=False)
    for n in range(60):
        await mail(engine, to=f"{'bad' if n == 30 else 'good'}{n}@example.org")
    engine.start_worker()
    await seconds(60)
    counts = await engine.queue_counts()
    assert (counts["pending"], counts["sent"]) == (1, 59)


@pytest.mark.parametrize(("every", "fails"), [(40, False), (10, False), (4, False), (40, True)])
async def test_a_hook_that_hangs_for_several_recipients_does_not_stop_the_others(
    harness: EngineHarness, every: int, fails: bool
) -> None:
    """A claim takes 91 of them, so some of those for which it hangs are in every claim."""

    async def facts(claims: Sequence[Claim]) -> Any:
        if fails and any(claim.address.startswith("odd") for claim in claims):
            raise ValueError
        if any(claim.address.startswith("bad") for claim in claims):
            await asyncio.sleep(HOUR)
        return {}

    engine = await harness.open({"mail": ScriptedProvider()}, directory=RecipientHook(facts), working=False)
    names = ["bad" if n % every == 0 else "odd" if fails and n % 20 == 3 else "good" for n in range(200)]
    for n, name in enumerate(names):
        await mail(engine, to=f"{name}{n}@example.org")
    engine.start_worker()
    await seconds(180)
    assert (await engine.queue_counts())["sent"] == names.count("good")
    late = await mail(engine, to="good@example.org")
    await seconds(30)
    assert await status(engine, late) is Status.SENT


async def test_a_hook_that_hangs_for_everybody_is_asked_a_bounded_number_of_times(
    harness: EngineHarness,
) -> None:
    async def hanging(claims: Sequence[Claim]) -> Any:
        await asyncio.sleep(HOUR)

    hook = RecipientHook(hanging)
    engine = await harness.open({"mail": ScriptedProvider()}, directory=hook, working=False)
    ids = [await mail(engine, to=f"p{n}@example.org") for n in range(50)]
    engine.start_worker()
    await seconds(13)
    assert hook.asked <= 1 + 16
    assert {await status(engine, id) for id in ids} == {Status.PENDING}


async def test_a_hook_that_fails_slowly_delays_a_batch_by_ten_seconds_at_most(harness: EngineHarness) -> None:
    async def slowly(claims: Sequence[Claim]) -> Any:
        await asyncio.sleep(3)
        raise ConnectionError("their database is down")

    hook = RecipientHook(slowly)
    engine = await harness.open({"mail": ScriptedProvider()}, directory=hook, working=False)
    ids = [await mail(engine, to=f"p{n}@example.org") for n in range(50)]
    engine.start_worker()
    await seconds(11)
    assert hook.asked == 4
    assert {await status(engine, id) for id in ids} == {Status.PENDING}


async def test_expiry_and_age_apply_while_a_hook_fails(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider()}, directory=RecipientHook(raising), rules=steady(max_age_ms="5m")
    )
    old = await mail(engine)
    brief = await mail(engine, expires_at=timedelta(minutes=1))
    await seconds(90)
    assert await status(engine, brief) is Status.EXPIRED
    await seconds(300)
    found = await engine.get(old)
    assert (found.status, found.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)
    assert found.attempt_count == 0


class FailingDirectory(RecipientHook):
    """Cannot resolve ids."""

    def __init__(self, trouble: Any) -> None:
        super().__init__(lambda claims: {})
        self._trouble = trouble

    async def resolve(self, tenant: str, ids: Any) -> Any:
        answer = self._trouble(ids)
        return await answer if asyncio.iscoroutine(answer) else answer


@pytest.mark.parametrize(
    "trouble",
    [raising, lambda ids: None, lambda ids: [1], lambda ids: dict.fromkeys(ids, "ada")],
    ids=["raises", "answers nothing", "answers a list", "answers junk"],
)
async def test_a_service_that_cannot_resolve_ids_refuses_the_send_with_our_error(
    harness: EngineHarness, trouble: Any
) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider()}, directory=FailingDirectory(trouble), working=False
    )
    with pytest.raises(HomingError):
        await engine.send({"id": "u-1", "email": ADA}, channel="email", body="x")
    assert await harness.store.tallies(None) == ()


async def test_invalid_data_in_the_registry_refuses_the_send_with_our_error(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    await put(harness, "recipient", "u-1", {"email": 5})
    with pytest.raises(HomingError):
        await engine.send({"id": "u-1"}, channel="email", body="x")


async def test_a_hook_that_resolves_ids_provides_the_address(harness: EngineHarness) -> None:
    class Service(RecipientHook):
        async def resolve(self, tenant: str, ids: Any) -> dict[str, Recipient]:
            return {id: Recipient(id=id, email=f"{id}@{tenant}.example.org") for id in ids}

    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, directory=Service(lambda claims: {}), tenant="acme")
    await engine.send({"id": "ada"}, channel="email", body="x")
    await seconds(1)
    assert [d.address for d in provider.sent] == ["ada@acme.example.org"]


async def test_a_slow_claim_is_judged_at_the_time_of_its_lease(harness: EngineHarness) -> None:
    """While the worker waited for the claim, its own view of the time was from before the clock was set."""
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    id = await mail(engine, expires_at=timedelta(seconds=60))

    async def slow(name: str) -> None:
        if name == "claim":
            harness.store.on_call = None
            await asyncio.sleep(1)
            await engine.worker._breakers.refresh(at_once=True)  # as an attempt that starts meanwhile does
            harness.clock.jump(120_000)

    harness.store.on_call = slow
    engine.start_worker()
    await seconds(5)
    assert await status(engine, id) is Status.EXPIRED
    assert provider.sent == []
