"""Planted bugs in the engine: requests, guard, deliverer, settler, breakers, capacity and relay."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import UNLIMITED
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, Reason
from homing.core.retry import policy
from homing.core.retry.decide import RecipientFacts
from homing.core.routing import breaker as core_breaker
from homing.core.routing.breaker import Breaker, BreakerGate, BreakerPolicy, Phase
from homing.core.routing.failover import pinned_outlet
from homing.core.routing.rate_limits import RateLimit
from homing.core.times import EPOCH
from homing.engine import provider_roster
from homing.engine.delivery import breakers, deliverer, guard, settler, worker
from homing.engine.delivery.capacity import Capacity
from homing.engine.delivery.concurrency_limit import ConcurrencyLimit
from homing.engine.delivery.outlets import Outlets
from homing.engine.intake import requests, synchronous_send
from homing.engine.intake.requests import Intake
from homing.engine.intake.store_deadline import StoreDeadline
from homing.engine.rate_tokens import RateTokens
from homing.engine.store_clock import StoreClock
from homing.engine.upkeep import heartbeats, outbox_relay
from homing.engine.upkeep.lost_commits import LostCommits
from homing.engine.upkeep.thresholds import ThresholdMonitor
from homing.providers.local.function import FunctionProvider
from simulation.plan import (
    NO_FAULTS,
    FaultPlan,
    SimulatedProviderPlan,
    SimulationPlan,
    build_crowded_plan,
    build_plan,
    plain_plan,
)
from simulation.planted import bugs

BUGS = bugs.BugList()


_DELIVERER = deliverer.Deliverer

_DELIVERY = (deliverer, "Delivery")

_LEASE_MS = (worker.Worker, "lease_ms")

_WRITE = (settler.Settler, "_write")


@BUGS.plant(
    "a lost lease gives its attempt back", "6", on=(_DELIVERER, "settle_lost"), plan=bugs.rough, seed=1_003
)
def lost_gives_back(real: Any) -> Any:
    return lambda self, claim: replace(real(self, claim), give_back=True)


@BUGS.plant(
    "a send starts even if its lease is too short",
    "5",
    on=(_DELIVERER, "_is_lease_long_enough"),
    plan=bugs.short_leases,
    seed=1_003,
)
def lease_too_short(real: Any) -> Any:
    return lambda self, claim, timeout_ms, mono_ms: True


@BUGS.plant(
    "the lease is not looked at again before the send",
    "5",
    on=(_DELIVERER, "_is_lease_long_enough"),
    plan=bugs.contested,
    seed=1_003,
)
def lease_not_looked_at_again(real: Any) -> Any:
    return lambda self, claim, timeout_ms, mono_ms: claim.lease_until - claim.started_at > timeout_ms


@BUGS.plant(
    "a send waits as long as the store takes", "27", on=(StoreDeadline, "limit"), plan=bugs.slow_store
)
def send_without_deadline(real: Any) -> Any:
    return lambda self, until: nullcontext()


@BUGS.plant(
    "a synchronous send waits as long as the store takes",
    "27",
    on=(synchronous_send.SynchronousSender, "_wait"),
    plan=bugs.slow_store,
)
def synchronous_without_deadline(real: Any) -> Any:
    async def wait(self: Any, send: Any, until_ms: int) -> None:
        await asyncio.wait({send})

    return wait


@BUGS.plant(
    "every lease is as long as the longest rule needs", "21", on=_LEASE_MS, plan=bugs.long_timeout, seed=1_003
)
def lease_of_the_longest_rule(real: Any) -> Any:
    return property(lambda self: self._policies.book.longest_timeout_ms + 10_000)


@BUGS.plant(
    "a slow claim makes the store's time run ahead",
    "8",
    "9",
    "21",
    on=(StoreClock, "sync"),
    plan=bugs.slow_claims,
    seed=1_002,
)
def time_runs_ahead(real: Any) -> Any:
    def sync(self: Any, store_now: int, asked_ms: int) -> None:
        real(self, store_now, asked_ms)
        self._earliest_offset_ms = store_now - asked_ms

    return sync


@BUGS.plant(
    "an attempt that could not start is left to its lease",
    "23",
    on=(_DELIVERER, "_extend"),
    plan=bugs.misbehaving,
)
def never_given_back(real: Any) -> Any:
    async def extend(self: Any, ready: Any, settle: Any, **options: Any) -> Any:
        return await real(self, ready, lambda settlement: None, **options)

    return extend


@BUGS.plant(
    "an attempt waits for a provider that ignores its cancellation",
    "5",
    "9",
    "23",
    on=(deliverer._TaskAttempt, "expire"),
    plan=bugs.misbehaving,
)
def deadline_by_good_will(real: Any) -> Any:
    def expire(self: Any, now_ms: int) -> None:
        self.due_ms = now_ms + 10**9
        self.task.cancel()

    return expire


@BUGS.plant(
    "an attempt past its deadline frees its slot while its provider runs on",
    "13",
    "5",
    on=(_DELIVERER, "abandon"),
    plan=bugs.misbehaving,
)
def slot_freed_too_early(real: Any) -> Any:
    def abandon(self: Any, attempt: Any, now_ms: int) -> None:
        real(self, attempt, now_ms)
        self.abandoned.remove(attempt.one.claim)
        self._concurrency_limits[attempt.one.claim.provider].release()

    return abandon


@BUGS.plant(
    "a provider that cancels itself ends its attempt without an outcome",
    "2",
    "9",  # the breaker does not learn of the failure
    on=(deliverer, "call_provider"),
    plan=bugs.misbehaving,
    seed=1_002,
)
def cancelled_by_itself(real: Any) -> Any:
    async def call_provider(listed: Any, delivery: Any) -> Any:
        outcome = await real(listed, delivery)
        if "CancelledError" in (outcome.error or ""):
            raise asyncio.CancelledError
        return outcome

    return call_provider


class _Exit(BaseException):
    """Stands for `SystemExit`, which would end the simulation."""


@BUGS.plant(
    "a provider that would end the process ends its attempt without an outcome",
    "2",
    "9",
    "12",
    on=(deliverer, "call_provider"),
    plan=bugs.misbehaving,
)
def exit_ends_the_attempt(real: Any) -> Any:
    async def call_provider(listed: Any, delivery: Any) -> Any:
        outcome = await real(listed, delivery)
        if "SystemExit" in (outcome.error or ""):
            raise _Exit
        return outcome

    return call_provider


@BUGS.plant(
    "a value that is no result counts as accepted",
    "9",
    "12",
    on=(FunctionProvider, "_call"),
    plan=bugs.misbehaving,
    seed=1_005,
)
def nonsense_is_accepted(real: Any) -> Any:
    async def call(self: Any, delivery: Any) -> Any:
        result = await real(self, delivery)
        return result if isinstance(result, Outcome) else str(result)

    return call


@BUGS.plant(
    "a worker without the provider sends through another one",
    "9",
    on=(Capacity, "request"),
    plan=bugs.lacking,
    seed=1_003,
)
def foreign_is_sent(real: Any) -> Any:
    async def request(self: Any, *args: Any, **options: Any) -> Any:
        made = await real(self, *args, **options)
        return made and replace(made, only_listed=False)

    return request


@BUGS.plant(
    "what waits for a provider that an operator has stopped is claimed again and again",
    "9",
    on=(Capacity, "request"),
    plan=bugs.stopped_by_hand,
    seed=1_001,
)
def stopped_is_claimed_again(real: Any) -> Any:
    async def request(self: Any, *args: Any, **options: Any) -> Any:
        made = await real(self, *args, **options)
        if made is None:
            return None
        waiting = {pinned_outlet(listed.id): UNLIMITED for listed in self._roster}
        return replace(made, outlet_capacity={**made.outlet_capacity, **waiting})

    return request


@BUGS.plant(
    "a rule may have a duration of any length",
    "14",
    on=(policy, "_check_rules"),
    plan=bugs.odd_rules,
)
def duration_without_bounds(real: Any) -> Any:
    return lambda preset, rules: None


@BUGS.plant("quiet hours are ignored", "8", on=(guard, "quiet_ms"), plan=bugs.paced, seed=1_003)
def sleepless(real: Any) -> Any:
    return lambda window, zone, at: 0


@BUGS.plant(
    "each batch has its own rate limit", "13", on=(guard, "recipient_bucket"), plan=bugs.paced, seed=1_003
)
def limit_per_batch(real: Any) -> Any:
    return lambda claim: f"{real(claim)} {claim.started_at}"


@BUGS.plant(
    "a provider with weight 0 is used first",
    "9",
    on=(provider_roster, "first_step"),
    plan=bugs.split,
    seed=1_003,
)
def weight_ignored(real: Any) -> Any:
    return lambda route, weights, id, usable: real(route, dict.fromkeys(weights, 1), id, usable)


@BUGS.plant(
    "an override of the split moves notifications that were accepted before it",
    "9",
    on=(provider_roster, "split_at"),
    plan=bugs.overridden,
    seed=1_003,
)
def override_of_all(real: Any) -> Any:
    return lambda overrides, at: real(overrides, overrides[0].since)


@BUGS.plant(
    "attempts in another system cause no delay", "8", on=(requests, "delay_ms"), plan=bugs.quiet, seed=1_003
)
def taken_over_at_once(real: Any) -> Any:
    return lambda policy, attempt, u: 0


@BUGS.plant(
    "an expired repeat is rejected", "25", on=(requests.Intake, "_repeated"), plan=bugs.quiet, seed=1_006
)
def repeat_rejected(real: Any) -> Any:
    async def repeated(*args: Any) -> dict[int, Any]:
        return {}

    return repeated


@BUGS.plant(
    "out-of-range times are accepted", "14", "2", on=(requests, "epoch_ms"), plan=bugs.quiet, seed=1_003
)
def time_without_bounds(real: Any) -> Any:
    return lambda at, where, now: (at - EPOCH) // timedelta(milliseconds=1)


@BUGS.plant(
    "one odd request fails its batch", "2", "12", on=(requests, "plain_request"), plan=bugs.quiet, seed=1_003
)
def odd_request_ends_its_batch(real: Any) -> Any:
    def plain_request(request: Any) -> Any:
        raise TypeError

    return plain_request


@BUGS.plant(
    "a log line names the recipient", "15", on=(deliverer, "build_delivery"), plan=bugs.quiet, seed=1_002
)
def address_logged(real: Any) -> Any:
    def delivery_of(claim: Any, timeout_ms: int) -> Any:
        logging.getLogger("homing.deliverer").info("sending to %s", claim.address)
        return real(claim, timeout_ms)

    return delivery_of


@BUGS.plant("each attempt has its own idempotency key", "10", on=_DELIVERY, plan=bugs.steady, seed=1_003)
def key_per_attempt(real: Any) -> Any:
    def delivery(**fields: Any) -> Any:
        made = real(**fields)
        return replace(made, idempotency_key=f"{made.idempotency_key}-{made.attempt}")

    return delivery


@BUGS.plant(
    "the key of a failed message is used again",
    "10",
    on=(deliverer, "provider_key"),
    plan=bugs.bounced,
    seed=1_003,
)
def key_of_failed_message(real: Any) -> Any:
    return lambda id, bounce_floor: id


@BUGS.plant("a second attempt has different content", "10", on=_DELIVERY, plan=bugs.steady, seed=1_003)
def other_words(real: Any) -> Any:
    def delivery(**fields: Any) -> Any:
        made = real(**fields)
        if made.attempt > 1:
            return replace(made, content=replace(made.content, title="Once more"))
        return made

    return delivery


@BUGS.plant("a store error drops the batch", "2", "32", on=_WRITE, plan=bugs.flaky, seed=1_003)
def settler_gives_up(real: Any) -> Any:
    async def write(self: Any, batch: Any) -> None:
        try:
            await self._store.settle([settlement for settlement, _ in batch])
        except StoreError:
            return

    return write


@BUGS.plant(
    "a worker claims although its results cannot be written",
    "32",
    on=(settler.Settler, "blocked"),
    plan=bugs.unwritable,
)
def claims_without_a_record(real: Any) -> Any:
    return property(lambda self: False)


@BUGS.plant(
    "the leases of results that cannot be written are not extended",
    "32",
    on=(settler.Settler, "unwritten"),
    plan=bugs.unwritable,
)
def unwritten_results_lose_their_leases(real: Any) -> Any:
    return lambda self: []


@BUGS.plant(
    "nothing extends the leases any more after a while",
    "32",
    on=(worker.Worker, "_extend_leases"),
    plan=bugs.unwritable,
)
def leases_are_no_longer_extended(real: Any) -> Any:
    async def extend_leases(self: Any) -> None:
        try:
            await asyncio.wait_for(real(self), 30)
        except TimeoutError:
            return

    return extend_leases


@BUGS.plant("settlements added during a write are lost", "2", "23", on=_WRITE, plan=bugs.flaky, seed=1_003)
def settler_forgets(real: Any) -> Any:
    async def write(self: Any, batch: Any) -> None:
        await real(self, batch)
        self._waiting = []

    return write


@BUGS.plant(
    "an event is dropped when its sink fails",
    "2",
    "17",
    on=(outbox_relay.OutboxRelay, "_pause"),
    plan=bugs.flaky,
    seed=1_002,
)
def sink_not_asked(real: Any) -> Any:
    async def pause(self: Any, one: Any, batch: Any, error: Exception) -> None:
        await real(self, one, batch, error)
        await self._backend.published(one.name, batch)

    return pause


@BUGS.plant(
    "heartbeats end with the first store error",
    "20",
    on=(heartbeats.Heartbeats, "_beat"),
    plan=bugs.flaky,
    seed=1_003,
)
def heart_stops(real: Any) -> Any:
    async def beat(self: Any, seen: Any) -> None:
        await self._backend.worker_seen(seen)

    return beat


@BUGS.plant("the breaker never opens", "9", on=(breakers, "record_outcome"), plan=bugs.outages, seed=1_003)
def breaker_never_opens(real: Any) -> Any:
    def record(breaker: Breaker, policy: Any, blame: bool | None, now: int) -> Breaker:
        after: Breaker = real(breaker, policy, blame, now)
        return breaker if breaker.phase is Phase.CLOSED and after.phase is Phase.OPEN else after

    return record


@BUGS.plant("the breaker never half-opens", "14", on=(breakers, "check_gate"), plan=bugs.outages, seed=1_003)
def breaker_never_half_opens(real: Any) -> Any:
    def check_gate(breaker: Breaker, now: int) -> BreakerGate:
        offered: BreakerGate = real(breaker, now)
        return BreakerGate.STOP if offered is BreakerGate.TRIAL else offered

    return check_gate


@BUGS.plant(
    "a breaker trial allows several sends",
    "9",
    on=(breakers.Breakers, "spend_trial"),
    plan=bugs.outages,
    seed=1_003,
)
def many_trials(real: Any) -> Any:
    return lambda self, provider: provider in self._my_trials


def _always_a_trial(real: Any) -> Any:
    def check_gate(breaker: Breaker, now: int) -> BreakerGate:
        if breaker.phase is Phase.HALF_OPEN and breaker.forced is None:
            return BreakerGate.TRIAL
        offered: BreakerGate = real(breaker, now)
        return offered

    return check_gate


@BUGS.plant(
    "a trial starts during another trial",
    "9",
    on=(breakers, "check_gate"),
    also=(core_breaker, "check_gate", _always_a_trial),
    plan=bugs.outages,
    seed=1_001,
)
def trial_upon_trial(real: Any) -> Any:
    return _always_a_trial(real)


def _unlimited_capacity(real: Any) -> Any:
    async def capacity(self: Any, listed: Any) -> Any:
        return await real(self, replace(listed, max_in_flight=1_000))

    return capacity


@BUGS.plant(
    "the concurrency limit is ignored",
    "13",
    on=(_DELIVERER, "__init__"),
    also=(Capacity, "_shared_capacity", _unlimited_capacity),
    plan=bugs.crowded,
    seed=1_003,
)
def cap_ignored(real: Any) -> Any:
    def start(self: Any, **parts: Any) -> None:
        real(self, **parts)
        self._concurrency_limits = {name: ConcurrencyLimit(1_000) for name in self._concurrency_limits}

    return start


def _ringing(seed: int) -> SimulationPlan:
    """Returns a plan of a flood, in which a slow provider has two slots."""
    plan = build_crowded_plan(seed, 3 * bugs.REQUESTS)
    slow, hooks = plan.providers
    slow = replace(slow, max_in_flight=2, rate=None, latency_ms=1_000)
    return replace(plan, processes=1, tenants=("t0", "t1"), spread_ms=20_000, providers=(slow, hooks))


@BUGS.plant(
    "one tenant's synchronous sends take all slots",
    "16",
    on=(ConcurrencyLimit, "_has_share"),
    plan=_ringing,
    seed=1_001,
)
def synchronous_without_share(real: Any) -> Any:
    def has_share(self: Any, tenant: str) -> bool:
        return bool(self.has_free_slot)

    return has_share


def _ringing_late(seed: int) -> SimulationPlan:
    """Returns such a plan with a sensitive breaker, in which half of the synchronous sends start late."""
    plan = _ringing(seed)
    slow, hooks = plan.providers
    slow = replace(slow, max_in_flight=4, latency_ms=1_500, breaker=BreakerPolicy(failures=2))
    return replace(plan, tenants=("t0",), spread_ms=5_000, providers=(slow, hooks))


@BUGS.plant(
    "a synchronous attempt that started late counts at the breaker",
    "9",
    on=(_DELIVERER, "_was_cut_short"),
    plan=_ringing_late,
)
def late_attempt_counts(real: Any) -> Any:
    def was_cut_short(self: Any, attempt: Any, outcome: Any) -> bool:
        return False

    return was_cut_short


@BUGS.plant(
    "the rate limit is ignored",
    "13",
    on=(RateTokens, "hold"),
    also=(RateTokens, "spend", lambda real: lambda self, key, number=1: 0),
    plan=bugs.limited,
    seed=1_003,
)
def rate_ignored(real: Any) -> Any:
    async def hold(self: Any, key: str, limit: Any, want: int = 1, reserve: int = 0) -> int:
        return want

    return hold


def _weighted(seed: int) -> SimulationPlan:
    """Returns a plan with an inbox, whose requests have given ids, and with split routes."""
    plan = build_plan(seed, 2 * bugs.REQUESTS)
    providers = tuple(replace(one, weight=1) for one in plan.providers)
    return replace(
        plan, fault_plan=NO_FAULTS, providers=providers, poison=True, spools=False, bridge=None, splits=False
    )


@BUGS.plant(
    "a request with a given id starts at the provider of another id",
    "9",
    on=(Intake, "_placed"),
    plan=_weighted,
    seed=1_001,
)
def placed_by_another_id(real: Any) -> Any:
    def placed(self: Any, tenant: str, new: Any, id_: str) -> Any:
        return replace(new, id=id_)

    return placed


def _checked_often(seed: int) -> SimulationPlan:
    """Returns a plan with many failures, short pauses and frequent health checks."""
    plan = plain_plan(seed, 2 * bugs.REQUESTS)
    policy = {"failures": 2, "open_ms": 8_000, "health_every_ms": 2_000, "ramp_ms": 0}
    providers = tuple(
        replace(one, breaker=replace(one.breaker, **policy), host_slots=None) for one in plan.providers
    )
    return replace(plan, fault_plan=FaultPlan(trouble=0.6), providers=providers)


def _slowly_stored(seed: int) -> SimulationPlan:
    """Returns such a plan in which the store is often slow."""
    plan = _checked_often(seed)
    return replace(plan, fault_plan=replace(plan.fault_plan, slow_per_call=0.3, longest_slow_ms=1_500))


@BUGS.plant(
    "failures that are counted while a breaker is written are forgotten",
    "9",
    on=(breakers.Breakers, "_adopt"),
    plan=_slowly_stored,
    seed=1_019,
)
def failures_forgotten(real: Any) -> Any:
    def adopt(self: Any, provider: str, before: Any, stored: Any) -> None:
        real(self, provider, before, stored)
        known = self._states[provider]
        if known.phase is stored.phase:
            self._states[provider] = replace(known, failures=stored.failures)

    return adopt


@BUGS.plant(
    "a late answer to the write of a health check brings back an older breaker",
    "9",
    on=(breakers.Breakers, "_check"),
    plan=_checked_often,
)
def older_breaker_returns(real: Any) -> Any:
    async def check(self: Any, listed: Any) -> None:
        before = self._states.get(listed.id)
        await real(self, listed)
        written = self._states.get(listed.id)
        if written is not before:
            await asyncio.sleep(6)  # a trial closes the breaker meanwhile
            self._states[listed.id] = written

    return check


def _limited_stand_ins(seed: int) -> SimulationPlan:
    """Returns a plan in which only the first provider of each channel has no rate limit, and often fails.

    The store is slow, so that a breaker opens between a claim and its sends.
    """
    plan, served, providers = _checked_often(seed), set[Channel](), list[SimulatedProviderPlan]()
    for one in plan.providers:
        rate = RateLimit(1.0, 1) if served.intersection(one.channels) else None
        providers.append(replace(one, rate=rate, max_in_flight=64, blocking=False))
        served.update(one.channels)
    slow = FaultPlan(trouble=0.6, slow_per_call=0.5, longest_slow_ms=3_000)
    return replace(plan, providers=tuple(providers), fault_plan=slow, spread_ms=10_000, faults_ms=60_000)


@BUGS.plant(
    "tokens count as spent at a provider that stands in since",
    "13",
    on=(Capacity, "spend_tokens"),
    plan=_limited_stand_ins,
    seed=1_014,
)
def stand_in_found_later(real: Any) -> Any:
    class StandInsNow(Struct):
        capacity: Any

        def get(self, meant: str, default: str) -> str:
            return str(self.capacity._stand_ins.get(meant, default))

    def spend_tokens(self: Any, claims: Any) -> Any:
        return replace(real(self, claims), stand_ins=StandInsNow(self))

    return spend_tokens


@BUGS.plant(
    "a failing endpoint of a recipient counts against the provider",
    "9",
    on=(_DELIVERER, "_record"),
    plan=bugs.crowd,
    seed=1_003,
)
def outlet_breaker_shared(real: Any) -> Any:
    def record(self: Any, claim: Any, outcome: Any, latency_ms: int, *, trial: bool = False) -> None:
        self._breakers.record(claim.provider, outcome.kind, trial=trial)

    return record


@BUGS.plant("the breaker of an outlet never opens", "9", on=(Outlets, "_record"), plan=bugs.crowd, seed=1_002)
def outlet_breaker_missing(real: Any) -> Any:
    return lambda self, listed, outlet, state, kind: None


# Lost commits -----------------------------------------------------------------------------------------


@BUGS.plant(
    "a process reports only one of the notifications that are lost",
    "26",
    on=(LostCommits, "_find_lost"),
    plan=bugs.noticed_losses,
    seed=1_001,
)
def reports_one_loss(real: Any) -> Any:
    async def find_lost(self: Any, suspects: Any) -> dict[str, int]:
        return dict(sorted((await real(self, suspects)).items())[:1])

    return find_lost


@BUGS.plant(
    "a process reports in parts what one loss took",
    "26",
    on=(LostCommits, "_find_lost"),
    plan=bugs.losses_during_look_ups,
    seed=1_009,
)
def reports_a_loss_in_parts(real: Any) -> Any:
    async def find_lost(self: Any, suspects: Any) -> dict[str, int]:
        before = {id for _, requests in suspects for ids in requests for id in ids}
        return {id: at for id, at in (await real(self, suspects)).items() if id in before}

    return find_lost


@BUGS.plant(
    "a process reports a lost notification again after the next loss",
    "26",
    on=(LostCommits, "_raise_alert"),
    plan=bugs.noticed_losses,
    seed=1_001,
)
def reports_a_loss_again(real: Any) -> Any:
    async def raise_alert(self: Any, lost: Any) -> None:
        self._reported.clear()
        await real(self, lost)

    return raise_alert


@BUGS.plant(
    "a failed push is retried without another look at its device",
    "7",
    on=(deliverer, "skip_retries"),
    plan=bugs.pushes,
    seed=1_003,
)
def no_look_at_the_device(real: Any) -> Any:
    async def keep(directory: Any, batch: Any) -> Any:
        return batch

    return keep


@BUGS.plant(
    "the retries of all failed pushes are skipped",
    "7",
    on=(guard, "NO_OBJECTION"),
    plan=bugs.pushes,
    seed=1_003,
)
def skips_active_devices(real: Any) -> Any:
    return RecipientFacts(skip=Reason.DEVICE_INACTIVE)


@BUGS.plant(
    "no alert reports that events wait for a sink",
    "28",
    on=(ThresholdMonitor, "check_sinks"),
    plan=bugs.dead_sink,
)
def dead_sink_is_ignored(real: Any) -> Any:
    async def check_sinks(self: Any, sinks: Any, now_ms: int) -> None:
        pass

    return check_sinks


@BUGS.plant(
    "the alert about a sink is remembered, but not raised",
    "28",
    on=(ThresholdMonitor, "_raise"),
    plan=bugs.dead_sink,
)
def alert_is_only_remembered(real: Any) -> Any:
    async def remember(self: Any, key: str, exceeded: Any) -> Any:
        await self._save_raised(key, exceeded)
        return []

    return remember


@BUGS.plant(
    "events that an unavailable sink did not publish count as published",
    "2",
    "17",
    on=(outbox_relay._Round, "record_failure"),
    plan=bugs.flaky,
)
def unpublished_count_as_published(real: Any) -> Any:
    def record(self: Any, part: Any, error: Any) -> None:
        real(self, part, error)
        if self.unavailable:
            self.published += part

    return record
