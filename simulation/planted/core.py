"""Planted bugs in the core: row transitions, retry decisions and checks before an attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from homing.core.lifecycle import row_commands, states
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Mode, OutcomeKind, Status
from homing.core.retry import decide as deciding
from homing.core.retry.backoff import LONGEST_DELAY_MS
from homing.core.retry.policy import FailoverWait, Jitter, OnTimeout, RetryPolicy
from homing.core.routing import fair_share
from homing.core.routing.fair_share import ClaimCapacity, DueQueue, FairShare
from homing.engine.delivery import capacity, deliverer, outlets
from homing.stores.sqlite import change_recorder, leases
from homing.stores.sqlite import settle as settling
from simulation.planted import bugs

BUGS = bugs.BugList()


_DECIDE = (deliverer, "decide")

_CHECK_BEFORE_ATTEMPT = (deliverer, "check_before_attempt")

_SETTLE = (settling, "settled")


# Rows -----------------------------------------------------------------------------------------------


@BUGS.plant("a settlement is applied whatever its token", "4", on=_SETTLE, plan=bugs.contested, seed=1_003)
def no_fence(real: Any) -> Any:
    return lambda row, settlement, now: real(row, replace(settlement, token=row.token), now)


@BUGS.plant("the second-newest token is also accepted", "4", on=_SETTLE, plan=bugs.contested, seed=1_003)
def stale_after_reclaim(real: Any) -> Any:
    def settle(row: Any, settlement: Any, now: int) -> Any:
        if settlement.token == row.token - 1:
            settlement = replace(settlement, token=row.token)
        return real(row, settlement, now)

    return settle


@BUGS.plant("a cancel between two attempts is lost", "7", "12", on=_SETTLE, plan=bugs.rough, seed=1_010)
def cancel_forgotten(real: Any) -> Any:
    def settle(row: Any, settlement: Any, now: int) -> Any:
        row.cancel_requested = False
        return real(row, settlement, now)

    return settle


@BUGS.plant("a claim does not count its attempt", "5", on=(leases, "lease"), plan=bugs.rough, seed=1_003)
def uncounted_attempt(real: Any) -> Any:
    def lease(row: Any, *args: Any) -> Any:
        change = real(row, *args)
        row.attempts -= 1
        return change

    return lease


@BUGS.plant("a reclaim keeps the token", "4", on=(leases, "reclaim"), plan=bugs.rough, seed=1_003)
def same_token_again(real: Any) -> Any:
    def reclaim(row: Any, *args: Any) -> Any:
        change = real(row, *args)
        row.token -= 1
        return change

    return reclaim


@BUGS.plant("a reclaim takes the attempt back", "6", on=(leases, "reclaim"), plan=bugs.rough, seed=1_003)
def lost_is_not_counted(real: Any) -> Any:
    def reclaim(row: Any, *args: Any) -> Any:
        change = real(row, *args)
        row.attempts -= not row.overdue
        return change

    return reclaim


@BUGS.plant(
    "extending a lease shortens it", "4", "5", on=(leases, "extend"), plan=bugs.short_leases, seed=1_003
)
def extend_shortens(real: Any) -> Any:
    def extend(row: Any, token: int, lease_ms: int, now: int, *args: Any) -> Any:
        held = real(row, token, lease_ms, now, *args)
        if held:
            row.lease_until = min(row.lease_until, now + 1_000)
        return held

    return extend


@BUGS.plant(
    "a dead letter is not written to the outbox",
    "2",
    on=(change_recorder, "events_of"),
    plan=bugs.steady,
    seed=1_003,
)
def event_lost(real: Any) -> Any:
    return lambda change, *args: [] if change.row.changes % 3 == 0 else real(change, *args)


# Decisions ------------------------------------------------------------------------------------------


def _change_decide_input(change: Callable[[Any, Any, Any], tuple[Any, Any, Any]]) -> Callable[[Any], Any]:
    """Returns a factory of `decide` with a changed claim, outcome or policy."""

    def make(real: Any) -> Any:
        def decide(claim: Any, outcome: Any, policy: Any, route: Any, **named: Any) -> Any:
            return real(*change(claim, outcome, policy), route, **named)

        return decide

    return make


def _decide_as_transient(real: Any, claim: Any, outcome: Any, policy: Any, route: Any, named: Any) -> Any:
    """Returns the settlement for a transient failure, with the record of the real outcome."""
    record = real(claim, outcome, policy, route, **named).attempt
    failed = Outcome(OutcomeKind.TRANSIENT)
    return replace(real(claim, failed, policy, route, **named), attempt=record)


@BUGS.plant("an accepted message is retried", "7", on=_DECIDE, plan=bugs.steady, seed=1_003)
def retry_after_success(real: Any) -> Any:
    def decide(claim: Any, outcome: Any, policy: Any, route: Any, **named: Any) -> Any:
        if outcome.kind is OutcomeKind.ACCEPTED:
            return _decide_as_transient(real, claim, outcome, policy, route, named)
        return real(claim, outcome, policy, route, **named)

    return decide


@BUGS.plant("a bad recipient is retried", "9", on=_DECIDE, plan=bugs.steady, seed=1_002)
def permanent_is_retried(real: Any) -> Any:
    def decide(claim: Any, outcome: Any, policy: Any, route: Any, **named: Any) -> Any:
        if outcome.kind in (OutcomeKind.BAD_RECIPIENT, OutcomeKind.BAD_CONTENT):
            return _decide_as_transient(real, claim, outcome, policy, route, named)
        return real(claim, outcome, policy, route, **named)

    return decide


@BUGS.plant("the provider's Retry-After is ignored", "8", on=_DECIDE, plan=bugs.steady, seed=1_003)
def retry_after_ignored(real: Any) -> Any:
    return _change_decide_input(lambda c, o, p: (c, replace(o, retry_after_ms=None), p))(real)


@BUGS.plant("a short Retry-After shortens the backoff", "8", on=_DECIDE, plan=bugs.steady, seed=1_003)
def retry_after_lowers(real: Any) -> Any:
    def decide(claim: Any, outcome: Any, policy: Any, route: Any, **named: Any) -> Any:
        settled = real(claim, outcome, policy, route, **named)
        if (
            settled.status is Status.RETRYING
            and outcome.retry_after_ms
            and settled.provider == claim.provider
        ):
            return replace(settled, delay_ms=outcome.retry_after_ms)
        return settled

    return decide


@BUGS.plant("a failover forgets the old provider's hold", "8", "9", on=_DECIDE, plan=bugs.steady, seed=1_003)
def hold_forgotten(real: Any) -> Any:
    return lambda *args, **named: replace(real(*args, **named), hold_ms=0)


@BUGS.plant(
    "a receipt can end a wait that the provider asked for",
    "8",
    on=_DECIDE,
    plan=bugs.steady,
    seed=1_003,
)
def hold_covered_by_delay(real: Any) -> Any:
    def decide(claim: Any, *args: Any, **named: Any) -> Any:
        settled = real(claim, *args, **named)
        return replace(settled, hold_ms=0) if settled.provider == claim.provider else settled

    return decide


@BUGS.plant("an ambiguous send fails over under `retry`", "9", on=_DECIDE, plan=bugs.unsure, seed=1_003)
def failover_when_unsure(real: Any) -> Any:
    def change(claim: Any, outcome: Any, policy: Any) -> tuple[Any, Any, Any]:
        if policy.on_timeout is OnTimeout.RETRY:
            policy = replace(policy, on_timeout=OnTimeout.FAILOVER)
        return claim, outcome, policy

    return _change_decide_input(change)(real)


@BUGS.plant("an ambiguous send is retried under `hold`", "9", on=_DECIDE, plan=bugs.holding, seed=1_003)
def hold_ignored(real: Any) -> Any:
    return _change_decide_input(lambda c, o, p: (c, o, replace(p, on_timeout=OnTimeout.RETRY)))(real)


@BUGS.plant("a failed synchronous send is retried", "7", on=_DECIDE, plan=bugs.steady, seed=1_002)
def synchronous_is_queued(real: Any) -> Any:
    def change(claim: Any, outcome: Any, policy: Any) -> tuple[Any, Any, Any]:
        if claim.mode is Mode.SYNCHRONOUS:
            claim, policy = replace(claim, mode=Mode.STANDARD), replace(policy, max_attempts=3)
        return claim, outcome, policy

    return _change_decide_input(change)(real)


@BUGS.plant("failover comes one failure too early", "9", on=_DECIDE, plan=bugs.steady, seed=1_003)
def failover_too_soon(real: Any) -> Any:
    return _change_decide_input(lambda c, o, p: (replace(c, failures_here=c.failures_here + 1), o, p))(real)


@BUGS.plant("a move at once waits for the backoff", "9", on=_DECIDE, plan=bugs.two_providers, seed=1_003)
def move_waits(real: Any) -> Any:
    return _change_decide_input(lambda c, o, p: (c, o, replace(p, failover_wait=FailoverWait.BACKOFF)))(real)


@BUGS.plant("no move waits for the backoff", "9", on=_DECIDE, plan=bugs.waiting_moves, seed=1_003)
def move_does_not_wait(real: Any) -> Any:
    return _change_decide_input(lambda c, o, p: (c, o, replace(p, failover_wait=FailoverWait.NONE)))(real)


@BUGS.plant("a move at once counts as an attempt", "6", on=_DECIDE, plan=bugs.two_providers, seed=1_003)
def move_counts(real: Any) -> Any:
    def decide(claim: Any, *args: Any, **named: Any) -> Any:
        settled = real(claim, *args, **named)
        return replace(settled, moves=claim.moves) if settled.free_move else settled

    return decide


@BUGS.plant("a failure of a broker uses up an attempt", "29", on=_DECIDE, plan=bugs.brokers_away, seed=1_001)
def uncounted_counts(real: Any) -> Any:
    return _change_decide_input(lambda c, o, p: (c, replace(o, uncounted=False), p))(real)


@BUGS.plant(
    "the move after an uncounted failure is free, so that no attempt of the round counts",
    "29",
    on=_DECIDE,
    plan=bugs.brokers_away,
    seed=1_001,
)
def whole_round_is_free(real: Any) -> Any:
    def decide(claim: Any, outcome: Any, *args: Any, **named: Any) -> Any:
        settled = real(claim, outcome, *args, **named)
        at_once = settled.status is Status.RETRYING and not settled.delay_ms and not settled.free_move
        if not at_once or not outcome.uncounted:
            return settled
        return replace(settled, free_move=True, moves=settled.moves + 1)

    return decide


@BUGS.plant(
    "a retry after the backoff does not count as an attempt",
    "6",
    on=_DECIDE,
    plan=bugs.two_providers,
    seed=1_003,
)
def retry_is_free(real: Any) -> Any:
    def decide(claim: Any, *args: Any, **named: Any) -> Any:
        settled = real(claim, *args, **named)
        waits = settled.status is Status.RETRYING and not settled.free_move
        return replace(settled, moves=claim.moves + 1) if waits else settled

    return decide


@BUGS.plant(
    "the last attempt with an unknown outcome leaves no backoff for a failure that is reported later",
    "8",
    on=_DECIDE,
    plan=bugs.given_up,
    seed=1_030,
)
def last_backoff_not_stored(real: Any) -> Any:
    def decide(claim: Any, outcome: Any, *args: Any, **named: Any) -> Any:
        settled = real(claim, outcome, *args, **named)
        unsure = outcome.kind in (OutcomeKind.AMBIGUOUS, OutcomeKind.LOST)
        if not unsure or settled.status not in (Status.FAILED, Status.EXPIRED):
            return settled
        return replace(settled, bounce_min_ms=None, bounce_max_ms=None)

    return decide


@BUGS.plant(
    "a spent provider is tried again in the same round", "9", on=_DECIDE, plan=bugs.two_providers, seed=1_003
)
def spent_ignored(real: Any) -> Any:
    return _change_decide_input(lambda c, o, p: (replace(c, spent={}), o, p))(real)


@BUGS.plant(
    "what is spent is not cleared for a new round",
    "9",
    on=(deciding, "refused_only"),
    plan=bugs.two_providers,
    seed=1_003,
)
def spent_not_cleared(real: Any) -> Any:
    return dict


@BUGS.plant(
    "a postponement clears what is spent", "9", on=(deciding, "_unattempted"), plan=bugs.rough, seed=1_003
)
def spent_lost_on_give_back(real: Any) -> Any:
    return lambda *args, **named: replace(real(*args, **named), spent={}, free_move=False)


@BUGS.plant(
    "a postponed move at once counts as an attempt",
    "9",
    on=(deciding, "_unattempted"),
    plan=bugs.rough,
    seed=1_003,
)
def free_move_forgotten(real: Any) -> Any:
    return lambda *args, **named: replace(real(*args, **named), free_move=False)


@BUGS.plant(
    "an ambiguous send spends its provider under `retry`", "9", on=_DECIDE, plan=bugs.unsure, seed=1_003
)
def ambiguous_spends(real: Any) -> Any:
    def decide(claim: Any, outcome: Any, policy: Any, route: Any, **named: Any) -> Any:
        settled = real(claim, outcome, policy, route, **named)
        unsure = outcome.kind in (OutcomeKind.AMBIGUOUS, OutcomeKind.LOST)
        if settled.status is Status.RETRYING and unsure and policy.on_timeout is OnTimeout.RETRY:
            return replace(settled, spent={**settled.spent, claim.provider: 1})
        return settled

    return decide


@BUGS.plant(
    "a new round begins at the end of the route",
    "9",
    on=(deciding, "_start_of_round"),
    plan=bugs.steady,
    seed=1_003,
)
def round_begins_elsewhere(real: Any) -> Any:
    return lambda claim, route, *args: real(claim, route[::-1], *args)


@BUGS.plant(
    "a move that was not made stays free",
    "6",
    on=(deliverer, "wait_for_next_round"),
    plan=bugs.outages,
    seed=1_003,
)
def unmade_move_stays_free(real: Any) -> Any:
    def wait_for_next_round(claim: Any, *args: Any, **named: Any) -> Any:
        settled = real(claim, *args, **named)
        return settled if settled.spent is None else replace(settled, moves=claim.moves)

    return wait_for_next_round


@BUGS.plant(
    "an operator's retry leaves the providers spent",
    "9",
    on=(row_commands, "clear_spent"),
    plan=bugs.rough,
    seed=1_001,
)
def retry_keeps_spent(real: Any) -> Any:
    return lambda row: None


@BUGS.plant("the cap cuts the jitter off", "8", on=(deciding, "delay_ms"), plan=bugs.capped, seed=1_003)
def jitter_before_cap(real: Any) -> Any:
    def delay_ms(policy: RetryPolicy, attempt: int, u: float, last_delay_ms: int = 0) -> int:
        if policy.jitter is not Jitter.PROPORTIONAL:
            return int(real(policy, attempt, u, last_delay_ms))
        free = replace(policy, cap_ms=0)
        return min(int(real(free, attempt, u, last_delay_ms)), policy.cap_ms or LONGEST_DELAY_MS)

    return delay_ms


@BUGS.plant(
    "the backoff is that of the next attempt", "8", on=(deciding, "delay_ms"), plan=bugs.steady, seed=1_003
)
def backoff_off_by_one(real: Any) -> Any:
    return lambda policy, attempt, u, last_delay_ms=0: real(policy, attempt + 1, u, last_delay_ms)


@BUGS.plant(
    "one attempt more than the maximum", "6", on=(deciding, "allowed_attempts"), plan=bugs.steady, seed=1_002
)
def one_attempt_too_many(real: Any) -> Any:
    return lambda claim, policy: real(claim, policy) + 1


@BUGS.plant(
    "the notification's own maximum is ignored",
    "6",
    on=(deciding, "allowed_attempts"),
    plan=bugs.steady,
    seed=1_006,
)
def own_maximum_ignored(real: Any) -> Any:
    return lambda claim, policy: real(replace(claim, max_attempts=None), policy)


@BUGS.plant(
    "a postponed attempt is not given back", "6", on=(deciding, "_unattempted"), plan=bugs.rough, seed=1_003
)
def attempt_kept(real: Any) -> Any:
    return lambda *args, **named: replace(real(*args, **named), give_back=False)


@BUGS.plant(
    "an unlisted error makes a dead letter despite another provider",
    "9",
    on=(deliverer, "attribute_outcome"),
    plan=bugs.refusing,
    seed=1_003,
)
def unlisted_is_content(real: Any) -> Any:
    return lambda claim, outcome, route: outcome


@BUGS.plant(
    "two providers pass an unlisted error back and forth",
    "9",
    on=(deliverer, "attribute_outcome"),
    plan=bugs.refusing,
    seed=1_003,
)
def refusal_forgotten(real: Any) -> Any:
    return lambda claim, outcome, route: real(replace(claim, spent={}), outcome, route)


@BUGS.plant(
    "a provider is tried again after an unlisted error",
    "8",
    "9",
    on=(deciding, "refused_only"),
    plan=bugs.refusing,
    seed=1_003,
)
def refusal_runs_out(real: Any) -> Any:
    return lambda spent: {}


# The guard ------------------------------------------------------------------------------------------


@BUGS.plant("an expired notification is sent", "7", on=_CHECK_BEFORE_ATTEMPT, plan=bugs.rough, seed=1_001)
def expiry_ignored(real: Any) -> Any:
    return lambda claim, policy, facts, *, now: real(replace(claim, expires_at=None), policy, facts, now=now)


@BUGS.plant("a suppressed recipient is sent to", "7", on=_CHECK_BEFORE_ATTEMPT, plan=bugs.steady, seed=1_002)
def suppression_ignored(real: Any) -> Any:
    return lambda claim, policy, facts, *, now: real(claim, policy, replace(facts, skip=None), now=now)


@BUGS.plant("a notification past its maximum age is sent", "7", on=_CHECK_BEFORE_ATTEMPT, plan=bugs.impatient)
def age_ignored(real: Any) -> Any:
    return lambda claim, policy, facts, *, now: real(
        claim, replace(policy, max_age_ms=10**12), facts, now=now
    )


@BUGS.plant("the limit of a claim holds for each lane", "13", on=(ClaimCapacity, "use"), plan=bugs.cron_only)
def limit_per_lane(real: Any) -> Any:
    def use(self: ClaimCapacity, queue: DueQueue, rows: int = 1) -> None:
        real(self, queue, rows)
        self.rows_left += rows

    return use


# Fair shares ----------------------------------------------------------------------------------------


@BUGS.plant(
    "starts are dealt in another order than by mode",
    "16",
    on=(fair_share, "MODE_ORDER"),
    plan=bugs.crowd,
    seed=1_001,
)
def bulk_before_priority(real: Any) -> Any:
    return tuple(reversed(real))


@BUGS.plant(
    "lanes of one channel come before those of the next, whatever their mode",
    "16",
    on=(FairShare, "run"),
    plan=bugs.crowd,
    seed=1_001,
)
def mode_after_channel(real: Any) -> Any:
    def run(self: FairShare) -> Any:
        modes, channels = self._modes, {lane.partition(".")[2] for lane, _, _ in self._queues}
        for channel in sorted(channels, reverse=True):
            self._modes = {mode: _of_channel(tenants, channel) for mode, tenants in modes.items()}
            yield from real(self)
        return self.dealt

    return run


def _of_channel(tenants: dict[tuple[str, str], Any], channel: str) -> dict[tuple[str, str], Any]:
    """Returns the tenants with only their queues of one channel."""
    return {
        key: replace(tenant, queues=[queue for queue in tenant.queues if queue[1].endswith(channel)])
        for key, tenant in tenants.items()
    }


@BUGS.plant("no slots are reserved", "16", on=(capacity, "reserve_of"), plan=bugs.crowd)
def no_reserve(real: Any) -> Any:
    return lambda mode, capacity: 0


@BUGS.plant(
    "a tenant may take all slots of a provider",
    "16",
    on=(capacity, "TENANT_FACTOR"),
    plan=bugs.crowd,
    seed=1_002,
)
def no_tenant_share(real: Any) -> Any:
    return None


@BUGS.plant(
    "hosts that do not answer may take all slots of a provider",
    "16",
    on=(capacity, "hanging_share"),
    plan=bugs.crowd,
    seed=1_002,
)
def hanging_hosts_unbounded(real: Any) -> Any:
    return lambda slots: slots


@BUGS.plant(
    "hosts that have not answered yet have slots that one tenant may take alone",
    "16",
    on=(fair_share._ProviderShare, "new_allowance"),
    plan=bugs.crowd,
    seed=1_002,
)
def new_hosts_shared_by_nobody(real: Any) -> Any:
    def new_allowance(self: Any, mode: Any, tenant: str, taking: int = 1, sharing: int = 1) -> Any:
        return real(self, mode, tenant) if self._new is None else max(0, self._new._slots) // sharing

    return new_allowance


@BUGS.plant(
    "a host that does not answer keeps its slots", "16", on=(outlets, "_adapt_slots"), plan=bugs.crowd
)
def hanging_host_keeps_its_slots(real: Any) -> Any:
    return lambda state, kind, latency_ms, timed_out, ceiling: None


@BUGS.plant(
    "a notification is moved to the dead letters during its attempt",
    "12",
    on=(states, "COMMANDS"),
    plan=bugs.by_hand,
    seed=1_001,
)
def moved_during_its_attempt(real: Any) -> Any:
    return {**real, CommandName.FAIL: {**real[CommandName.FAIL], Status.SENDING: Status.FAILED}}


@BUGS.plant(
    "a notification in the dead letters still has its due time",
    "12",
    on=(row_commands, "finish"),
    plan=bugs.by_hand,
    seed=1_001,
)
def dead_but_due(real: Any) -> Any:
    def finish(row: Any, now: int) -> None:
        due_at = row.due_at
        real(row, now)
        if row.status is Status.FAILED:
            row.due_at = due_at

    return finish
