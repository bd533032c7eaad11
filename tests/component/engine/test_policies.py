"""Policies at work: which rule applies, changes at run time, and the output of `explain`."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from homing import ConfigError, Outcome, PolicyPatch, Reason, Rule, Status
from homing.compose import ProviderArgument
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Channel, Mode, Priority
from homing.core.ports.stores import Entry
from homing.core.retry.decide import RecipientFacts
from homing.core.retry.policy import Backoff, BounceFailover, Jitter, MatchKeys
from homing.core.retry.presets import find_preset
from homing.engine.operations.policies import EVERY_TENANT, RULES_MAX_AGE_MS, Policies
from homing.providers.local.scripted import HANG, ScriptedProvider
from homing.testing.builders import a_claim_request
from support.callback_provider import CallbackProvider, event_about, signed_callback
from support.engine_harness import (
    EngineHarness,
    K,
    RecipientHook,
    TimedProvider,
    mail,
    seconds,
    serving,
    status,
    steady,
)


def office(harness: EngineHarness, *rules: Rule, named: str = "priority") -> Policies:
    """Returns the interface that operators' tools use to change policies."""
    return Policies(
        find_preset(named),
        rules,
        registry=harness.store,
        clock=harness.clock,
        random_source=random.Random(99),
    )


def patience(name: str = "patience", **policy: Any) -> Rule:
    return Rule(name=name, policy=PolicyPatch(**policy))


async def test_a_rule_given_in_python_equals_one_from_a_file(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=K.TRANSIENT)
    rule = patience(max_attempts=2, base_ms=7000, jitter=Jitter.NONE)
    engine = await harness.open({"mail": provider}, rules=[rule])
    id = await mail(engine)
    await seconds(30)
    assert provider.gaps == [7.0]
    assert await status(engine, id) is Status.FAILED


@pytest.mark.source("001", "551-553")
async def test_the_backoff_may_be_a_function(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=K.TRANSIENT)
    rule = patience(
        max_attempts=4, backoff=Backoff.CALLABLE, call=lambda attempt: attempt**2 * 1000, jitter=Jitter.NONE
    )
    engine = await harness.open({"mail": provider}, rules=[rule])
    await mail(engine)
    await seconds(60)
    assert provider.gaps == [1.0, 4.0, 9.0]


@pytest.mark.parametrize("answer", [float("nan"), -5, "soon", None])
async def test_a_backoff_function_that_returns_nonsense_loses_nothing(
    harness: EngineHarness, answer: Any
) -> None:
    rule = patience(backoff=Backoff.CALLABLE, call=lambda attempt: answer, jitter=Jitter.NONE)
    engine = await harness.open({"mail": ScriptedProvider(script=[K.TRANSIENT])}, rules=[rule])
    id = await mail(engine)
    await seconds(5)
    found = await engine.get(id)
    assert found.status in (Status.RETRYING, Status.SENT)
    assert found.attempt_count >= 1


async def test_a_backoff_function_that_raises_loses_nothing(harness: EngineHarness) -> None:
    def broken(attempt: int) -> float:
        raise RuntimeError("no idea")

    rule = patience(backoff=Backoff.CALLABLE, call=broken, jitter=Jitter.NONE)
    engine = await harness.open({"mail": ScriptedProvider(script=[K.TRANSIENT])}, rules=[rule])
    id = await mail(engine)
    await seconds(5)
    history = await engine.history(id)
    assert history.notification.status is Status.RETRYING
    assert [a.outcome for a in history.attempts] == [K.TRANSIENT]


async def test_a_backoff_function_that_raises_does_not_prevent_settling_a_lost_lease(
    harness: EngineHarness,
) -> None:
    def broken(attempt: int) -> float:
        raise RuntimeError("no idea")

    rule = Rule(name="broken", type="odd", policy=PolicyPatch(backoff=Backoff.CALLABLE, call=broken))
    engine = await harness.open({"mail": ScriptedProvider(usual=HANG)}, rules=[rule, patience(base_ms=1000)])
    ids = [await mail(engine, type=type_) for type_ in ("odd", "plain", "plain")]
    await seconds(1)
    await engine.stop_worker(hard=True)
    other = await harness.open({"mail": ScriptedProvider()}, rules=[rule, patience(base_ms=1000)])
    await seconds(120)
    assert [await status(other, id) for id in ids[1:]] == [Status.SENT, Status.SENT]


@pytest.mark.source("001", "463-474")
@pytest.mark.source("003", "451-452")
async def test_a_change_applies_from_the_next_decision_on(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=9))
    id = await mail(engine)
    await seconds(15)
    assert len(provider.times) == 2
    await office(harness).set(
        patience("steady", max_attempts=3, base_ms=10_000, jitter=Jitter.NONE), who="ada"
    )
    await seconds(30)
    found = await engine.get(id)
    assert (found.status, found.attempt_count) == (Status.FAILED, 3)


async def test_rules_apply_even_if_what_is_read_along_with_them_cannot_be_read(
    harness: EngineHarness,
) -> None:
    """A store that fails between the two reads must not keep the previous rules in force."""
    policies = office(harness, patience(max_attempts=5))
    await office(harness, patience(max_attempts=5)).set(patience(max_attempts=7), who="ada")

    async def fail() -> None:
        raise StoreUnavailable

    policies.read_along = fail
    with pytest.raises(StoreUnavailable):
        await policies.refresh()
    keys = MatchKeys("default", "message", "", Channel.EMAIL, Priority.MEDIUM)
    assert policies.book.policy(keys, Mode.STANDARD).max_attempts == 7


async def test_every_change_is_recorded_with_who_when_before_and_after(harness: EngineHarness) -> None:
    policies = office(harness, patience(max_attempts=5))
    first = await policies.set(patience(max_attempts=7), who="ada", why="outage")
    await seconds(10)
    await policies.set(patience("second", base_ms=1), who="bob")
    await seconds(10)
    await policies.remove("patience", who="ada", why="over")
    last, middle, oldest = await policies.changes()
    assert oldest == first
    assert (oldest.rule, oldest.who, oldest.why) == ("patience", "ada", "outage")
    assert oldest.before is not None
    assert oldest.after is not None
    assert oldest.before["policy"] == {"max_attempts": 5}
    assert oldest.after["policy"] == {"max_attempts": 7}
    assert (middle.rule, middle.before, middle.who) == ("second", None, "bob")
    assert (last.rule, last.after, last.at - middle.at) == ("patience", None, 10_000)
    assert [rule.name for rule in policies.book.rules] == ["second"]
    assert len(await policies.changes(limit=2)) == 2


async def test_a_configured_rule_that_was_removed_stays_removed(harness: EngineHarness) -> None:
    await office(harness, patience(max_attempts=5)).remove("patience", who="ada")
    other = office(harness, patience(max_attempts=5))
    await other.refresh()
    assert other.book.rules == ()
    with pytest.raises(ConfigError, match="'patience' does not exist; rules in force: none"):
        await other.remove("patience", who="bob")


async def test_a_rule_that_contradicts_itself_or_the_preset_changes_nothing(harness: EngineHarness) -> None:
    policies = office(harness)
    with pytest.raises(ConfigError, match=r"policy\.bad\.cap_ms: is 5"):
        await policies.set(patience("bad", cap_ms=5, base_ms=10), who="ada")
    with pytest.raises(ConfigError, match=r"policy\.bad\.max_attempts"):
        await policies.set(patience("bad", max_attempts=0), who="ada")
    assert await policies.changes() == ()
    assert policies.book.rules == ()


async def test_a_function_can_be_configured_but_not_stored(harness: EngineHarness) -> None:
    mine = patience("mine", backoff=Backoff.CALLABLE, call=abs)
    with pytest.raises(ConfigError, match="call: is a function"):
        await office(harness).set(mine, who="ada")
    removed = await office(harness, mine).remove("mine", who="ada")
    assert removed.before is not None
    assert removed.before["policy"]["call"] == "builtins:abs"


async def test_of_two_simultaneous_changes_the_second_is_refused(harness: EngineHarness) -> None:
    one, two = office(harness), office(harness)
    await one.set(patience("a", max_attempts=2), who="ada")
    await two.set(patience("b", max_attempts=3), who="bob")
    await one.refresh()
    assert [rule.name for rule in one.book.rules] == ["a", "b"]


async def test_another_operator_s_change_is_read_before_writing(harness: EngineHarness) -> None:
    one, two = office(harness), office(harness)
    raced = False

    class Racing:
        def __getattr__(self, name: str) -> Any:
            return getattr(harness.store, name)

        async def put(self, entries: Any, *, who: str) -> Any:
            nonlocal raced
            if not raced:
                raced = True
                await two.set(patience("a", max_attempts=5), who="bob")
            return await harness.store.put(entries, who=who)

    one._registry = Racing()
    change = await one.set(patience("a", max_attempts=2), who="ada")
    assert change.before is not None
    assert change.before["policy"] == {"max_attempts": 5}
    assert len(await one.changes()) == 2


async def test_rules_of_more_than_one_page_are_all_read(harness: EngineHarness) -> None:
    entries = [
        Entry(
            tenant=EVERY_TENANT,
            kind="policy",
            key=f"r{n:04d}",
            value={"rule": {"name": f"r{n:04d}", "type": f"t{n}", "policy": {"max_attempts": 2}}},
        )
        for n in range(1001)
    ]
    assert await harness.store.put(entries, who="test") is not None
    policies = office(harness)
    await policies.refresh()
    assert len(policies.book.rules) == 1001


async def test_a_stored_rule_that_is_invalid_here_stops_no_worker(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, preset="simple")
    await office(harness, named="broker").set(patience("brisk", cap_ms=3000), who="ada")
    await seconds(20)
    id = await mail(engine)
    await seconds(2)
    assert await status(engine, id) is Status.SENT


async def test_a_stored_entry_that_is_not_a_rule_stops_no_worker(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    value = {"rule": {"name": "x", "polcy": {}}}
    await harness.store.put([Entry(tenant=EVERY_TENANT, kind="policy", key="x", value=value)], who="?")
    await seconds(20)
    id = await mail(engine)
    await seconds(2)
    assert await status(engine, id) is Status.SENT


# Explain -----------------------------------------------------------------------------------------------


async def test_explain_shows_the_winning_rule_and_the_origin_of_each_number(harness: EngineHarness) -> None:
    rules = [
        {"name": "all", "max_attempts": 4},
        {"name": "orders", "type": "order", "origin": "shop", "base_ms": "7s"},
    ]
    engine = await harness.open(working=False, rules=rules)
    sent = await engine.send(
        "a@example.org", channel="email", body="x", type="order", origin="shop", priority="high"
    )
    found = (await engine.explain(sent.id)).resolution
    assert (found.rule, found.preset_rule, found.passed_over) == ("orders", "high", ("all",))
    assert found.sources["base_ms"] == "rule orders"
    assert found.sources["max_attempts"] == "preset priority/high"
    assert found.sources["timeout_ms"] == "mode priority"
    assert found.sources["max_age_ms"] == "default"
    assert found.policy.base_ms == 7000


async def test_an_engine_lists_its_policies_and_allows_changes(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    await engine.policies.set(patience(max_attempts=2), who="ada")
    id = await mail(engine)
    assert (await engine.retry_info(id)).max_attempts == 2


async def test_explain_sees_a_change_made_elsewhere(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    id = await mail(engine)
    await office(harness).set(patience("new", max_attempts=2), who="ada")
    explained = await engine.explain(id)
    assert explained.resolution.rule == "new"
    assert "attempt 1 of 2" in explained.next_step


# Changes made by other processes -------------------------------------------------------------------------


async def test_a_process_that_starts_reads_the_rules_at_once(harness: EngineHarness) -> None:
    id = await mail(await harness.open(working=False))
    await office(harness).set(patience(max_attempts=2), who="ada")
    engine = await harness.open(working=False)
    assert (await engine.retry_info(id)).max_attempts == 2
    keys = MatchKeys("default", "message", "", Channel.EMAIL, Priority.MEDIUM)
    await office(harness).set(patience(base_ms=7_000, backoff=Backoff.LINEAR), who="ada")
    again = await harness.open(working=False)
    assert again.calculate_delay(1, keys=keys) == timedelta(seconds=7)


async def test_a_process_without_a_worker_reads_a_change_within_five_seconds(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    id = await mail(engine)
    await office(harness).set(patience(max_attempts=2, max_age_ms=3_600_000), who="ada")
    await seconds(RULES_MAX_AGE_MS / 1000)
    assert (await engine.retry_info(id)).max_attempts == 2
    await office(harness).set(patience(max_attempts=3, max_age_ms=7_200_000), who="ada")
    await seconds(RULES_MAX_AGE_MS / 1000)
    assert await engine.select_pending(max_attempts=None, delay=timedelta(0)) != ()
    await office(harness).set(patience(max_attempts=4, max_age_ms=600_000), who="ada")
    await seconds(RULES_MAX_AGE_MS / 1000)
    row = harness.store._database.connection.execute(
        "SELECT max_age_ms FROM homing_notifications WHERE id = ?", (await mail(engine),)
    )
    assert row.fetchone() == (600_000,)


async def test_the_pending_notifications_are_selected_by_the_rules_in_force(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": TimedProvider(usual=K.TRANSIENT)}, working=False)
    id = await mail(engine)
    assert (await engine.process()).retried == 1
    for allowed, selected in ((1, []), (5, [id])):
        await office(harness).set(patience(max_attempts=allowed), who="ada")
        await seconds(RULES_MAX_AGE_MS / 1000)
        assert [one.id for one in await engine.select_pending(delay=timedelta(0))] == selected


@pytest.mark.parametrize(("allowed", "status"), [(1, Status.FAILED), (2, Status.RETRYING)])
async def test_a_process_without_a_worker_settles_lost_attempts_by_the_rules_in_force(
    harness: EngineHarness, allowed: int, status: Status
) -> None:
    engine = await harness.open({"mail": TimedProvider(usual=K.TRANSIENT)}, working=False)
    id = await mail(engine)
    await harness.store.claim(a_claim_request(lease_ms=10_000))
    await office(harness).set(patience(max_attempts=allowed), who="ada")
    await seconds(60)
    await engine.process()
    assert (await engine.get(id)).status is status


async def test_a_call_that_cannot_wait_sees_a_change_at_the_second_call(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    keys = MatchKeys("default", "message", "", Channel.EMAIL, Priority.MEDIUM)
    before = engine.calculate_delay(1, keys=keys)
    await office(harness).set(patience(base_ms=7_000, backoff=Backoff.LINEAR), who="ada")
    await seconds(RULES_MAX_AGE_MS / 1000)
    assert engine.calculate_delay(1, keys=keys) == before
    await seconds(0.1)
    assert engine.calculate_delay(1, keys=keys) == timedelta(seconds=7)


async def test_many_sends_read_the_rules_once_in_five_seconds(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    await seconds(60)
    harness.store.calls.clear()
    await asyncio.gather(*(mail(engine) for _ in range(20)))
    assert harness.store.calls["list_entries"] == 1


async def test_a_send_does_not_fail_because_the_rules_cannot_be_read(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    await seconds(60)
    harness.store.away = {"list_entries"}
    await mail(engine)
    await mail(engine)
    assert harness.store.calls["list_entries"] == 2, "one read at the start, and one that failed"
    harness.store.away = set()
    await office(harness).set(patience(max_attempts=2), who="ada")
    await seconds(RULES_MAX_AGE_MS / 1000)
    assert (await engine.retry_info(await mail(engine))).max_attempts == 2


async def test_a_slow_read_never_undoes_a_newer_one(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    policies, gate, held = engine.policies, asyncio.Event(), asyncio.Event()
    read = harness.store.list_entries

    async def read_slowly(*args: Any, **kwargs: Any) -> tuple[Entry, ...]:
        entries = await read(*args, **kwargs)
        if not held.is_set():
            held.set()
            await gate.wait()
        return entries

    harness.store.list_entries = read_slowly  # type: ignore[method-assign]
    old = asyncio.create_task(policies.refresh())
    await held.wait()
    await policies.set(patience(max_attempts=2), who="ada")
    gate.set()
    await old
    assert "patience" in {rule.name for rule in policies.book.rules}


@pytest.mark.parametrize("always", [True, False])
async def test_a_process_without_a_worker_applies_the_rules_in_force_to_a_callback(
    harness: EngineHarness, always: bool
) -> None:
    """The row has no bounce rules of its own, as after a settlement by an older release."""
    postman = CallbackProvider("post")
    other = serving("other", ScriptedProvider("other"))
    providers: dict[str, ProviderArgument] = {"post": postman, "other": other}
    worker = await harness.open(providers)
    service = await harness.open(providers, working=False)
    id = await mail(worker)
    await seconds(1)
    await worker.stop_worker()
    harness.store._database.connection.execute(
        "UPDATE homing_notifications SET bounce_always = NULL, bounce_min_ms = NULL, bounce_max_ms = NULL"
    )
    if always:
        await worker.policies.set(patience(bounce_failover=BounceFailover.ALWAYS), who="ada")
    await seconds(RULES_MAX_AGE_MS / 1000)
    bounce = event_about(postman.sent[0], ReceiptEvent.FAILED, outcome="bad_recipient")
    await service.handle_callback("post", signed_callback([bounce]))
    assert await status(service, id) is (Status.RETRYING if always else Status.FAILED)


async def test_explain_shows_what_happened_and_what_comes_next(harness: EngineHarness) -> None:
    first = ScriptedProvider("first", [K.TRANSIENT])
    providers = {"one": serving("one", first), "two": serving("two", ScriptedProvider("second"))}
    engine = await harness.open(providers, rules=steady(failover_after=2))
    id = await mail(engine)
    await seconds(1)
    told = await engine.explain(id)
    assert told.verdict == "1 attempt so far: first returned transient"
    assert told.next_step.startswith("attempt 2 of 6 at 2025-06-15T15:06:50")
    assert told.next_step.endswith("goes to one (then two at once, after 2 failures)")
    await seconds(15)
    told = await engine.explain(id)
    assert told.verdict == "sent by one at attempt 2"
    assert told.next_step == "no further attempt is planned"
    assert told.history.notification.id == id


async def test_explain_shows_what_is_spent_and_how_many_moves_were_made(harness: EngineHarness) -> None:
    throttled = Outcome(K.THROTTLED, retry_after_ms=3_600_000)
    providers = {
        "one": ScriptedProvider(script=[K.TRANSIENT]),
        "two": ScriptedProvider(script=[K.AMBIGUOUS]),
        "three": ScriptedProvider(script=[throttled]),
    }
    engine = await harness.open(providers, rules=steady())
    id = await mail(engine)
    await seconds(1)
    told = await engine.explain(id)
    assert told.next_step.startswith("attempt 3 (2 counted) of 6 at ")
    assert told.next_step.endswith("goes to two (then three at once, after 1 failure); spent: one")
    assert (told.history.notification.moves, told.history.notification.spent) == (1, ("one",))
    await seconds(15)
    assert (await engine.get(id)).provider_names == ("one", "two", "two")


async def test_explain_names_no_attempt_that_the_rule_in_force_no_longer_allows(
    harness: EngineHarness,
) -> None:
    providers = {"one": ScriptedProvider("one", usual=K.TRANSIENT), "two": ScriptedProvider("two")}
    engine = await harness.open({"one": providers["one"]}, rules=steady(max_attempts=5))
    id = await mail(engine)
    await seconds(15)
    await engine.policies.set(patience("steady", max_attempts=1, base_ms=10_000), who="ada")
    told = await engine.explain(id)
    assert told.next_step == "becomes a dead letter at 2025-06-15T15:07:00+00:00: the only attempt was made"
    await seconds(15)
    found = await engine.get(id)
    assert (found.status, found.reason, found.attempt_count) == (Status.FAILED, Reason.RETRIES_EXHAUSTED, 2)


async def test_explain_names_no_move_after_the_last_attempt_if_moves_wait_for_the_backoff(
    harness: EngineHarness,
) -> None:
    first, second = ScriptedProvider("one", usual=K.TRANSIENT), ScriptedProvider("two")
    rules = steady(max_attempts=2, failover_after=2, failover_wait="backoff")
    engine = await harness.open({"one": first, "two": second}, rules=rules)
    id = await mail(engine)
    await seconds(1)
    assert (await engine.explain(id)).next_step.endswith(" goes to one")
    await seconds(30)
    assert (await engine.get(id)).provider_names == ("one", "one")


@pytest.mark.parametrize(
    ("outcome", "rule", "verdict", "next_step"),
    [
        (HANG, {}, "sending", "attempt 1 is in flight at mail"),
        (K.AMBIGUOUS, {"on_timeout": "hold"}, "in_doubt (UNCONFIRMED)", "waits for a receipt"),
        (
            K.BAD_CONTENT,
            {},
            "failed after 1 attempt (BAD_CONTENT): scripted returned bad_content",
            "no further attempt",
        ),
        (
            K.TRANSIENT,
            {"max_attempts": 1},
            "failed after 1 attempt (RETRIES_EXHAUSTED)",
            "no further attempt",
        ),
    ],
)
async def test_explain_has_a_text_for_every_ending(
    harness: EngineHarness, outcome: Any, rule: dict[str, Any], verdict: str, next_step: str
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=outcome)}, rules=steady(**rule))
    id = await mail(engine)
    await seconds(1)
    told = await engine.explain(id)
    assert told.verdict.startswith(verdict)
    assert told.next_step.startswith(next_step)


async def test_explain_shows_why_a_notification_waits_and_that_its_age_ended_it(
    harness: EngineHarness,
) -> None:
    waits = RecipientFacts(postpone_ms=3_600_000, postpone_reason=Reason.NO_PROVIDER)
    hook = RecipientHook(lambda claims: {claim.id: waits for claim in claims})
    engine = await harness.open(
        {"mail": ScriptedProvider()}, directory=hook, rules=steady(max_age_ms="2m"), working=True
    )
    id = await mail(engine, provider="mail")
    await seconds(1)
    told = await engine.explain(id)
    assert "(no_provider) goes to mail" in told.next_step
    assert told.verdict == "pending (NO_PROVIDER)"
    await seconds(130)
    told = await engine.explain(id)
    assert told.verdict == "no provider accepted it within its maximum age, after 0 attempts"
    later = await mail(engine, send_at=timedelta(days=1))
    assert (await engine.explain(later)).verdict == "pending"


async def test_two_rules_with_one_name_are_refused_at_the_start(harness: EngineHarness) -> None:
    with pytest.raises(ConfigError, match=r"policy\.patience: appears twice"):
        await harness.open({"mail": ScriptedProvider()}, rules=[patience(), patience(max_attempts=2)])
