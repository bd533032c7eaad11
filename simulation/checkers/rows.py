"""Checks leases and status changes of rows (invariants 2, 4–8, 11, 12 and 14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from msgspec import msgpack

from homing.core.clock_steps import MAX_BELIEVED_STEP_MS
from homing.core.lifecycle.claims import ClaimBatch, Lease
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.lifecycle.rows import CauseRecord, Change, Row
from homing.core.notifications import Message, Mode, OutcomeKind, Reason, Status
from homing.core.times import LONGEST_MS
from simulation.checkers.clock import ClockChecker
from simulation.checkers.counts import CountChecker
from simulation.shadow_state import ShadowState, SimulationState, short_id

S = Status


WAITING = (S.PENDING, S.RETRYING)

_UNDECIDED = (S.RETRYING, S.IN_DOUBT)
"""Statuses that end when a provider reports that it has taken a message."""

ENDED = (S.SENT, S.DELIVERED, S.FAILED, S.CANCELLED, S.EXPIRED, S.SKIPPED)


# The statuses that each command may lead to. The engine has the same table; it is repeated here, so that a
# mistake in the engine's table is noticed.
_BY_COMMAND: dict[str, dict[Status, tuple[Status, ...]]] = {
    "cancel": {
        S.PENDING: (S.CANCELLED,),
        S.RETRYING: (S.CANCELLED,),
        S.IN_DOUBT: (S.CANCELLED,),
        S.SENDING: (S.SENDING,),
    },
    "retry": {
        S.PENDING: (S.PENDING,),
        S.RETRYING: (S.RETRYING,),
        **dict.fromkeys((S.FAILED, S.EXPIRED, S.SKIPPED, S.CANCELLED, S.IN_DOUBT), WAITING),
    },
    "resend": {
        S.FAILED: (S.FAILED,),
        S.EXPIRED: (S.EXPIRED,),
        S.SKIPPED: (S.SKIPPED,),
        S.CANCELLED: (S.CANCELLED,),
        S.IN_DOUBT: (S.FAILED,),
    },
    "acknowledge": {s: (s,) for s in (S.FAILED, S.EXPIRED, S.SKIPPED)},
    "reschedule": {s: (s,) for s in WAITING},
    "resolve": {S.IN_DOUBT: (S.SENT, S.FAILED)},
    "fail": dict.fromkeys((*WAITING, S.IN_DOUBT), (S.FAILED,)),
}


FindRow = Callable[[str], Row | None]


def hash_message(message: Message) -> bytes:
    """Returns a hash of the parts of a message that must never change."""
    return sha256(msgpack.encode((message.recipient, message.content, message.metadata))).digest()


class RowChecker:
    """Checks every committed change of a row against the row's previous state."""

    def __init__(
        self,
        state: SimulationState,
        counts: CountChecker,
        *,
        skip_reason: Callable[[ShadowState], str],
        decided: Callable[[str, ShadowState, Settlement, Row], None],
        accepted: Callable[[str, ShadowState, Row], None],
        bounced: Callable[[ShadowState, Row, CauseRecord, Receipt | None], None],
        clock: ClockChecker,
        lease_expired: Callable[[ShadowState], None],
    ) -> None:
        self._state = state
        self._counts = counts
        self._skip_reason = skip_reason
        self._decided = decided
        self._accepted = accepted
        self._bounced = bounced
        self._clock = clock
        self._lease_expired = lease_expired
        self.born: set[str] = set()
        """Ids that the current `accept` has stored."""
        self.receipt: Receipt | None = None
        """The only receipt of the call whose changes are being checked. None if there is none, or several."""
        self._settlement: Settlement | None = None
        self._settler = ""
        self.removed: dict[str, ShadowState] = {}
        self.waited: dict[tuple[str, str], list[int]] = {}
        """(lane, tenant) → milliseconds between due time and claim, for each claimed row."""
        self.leases = 0
        self.stale = 0

    # Commits -------------------------------------------------------------------------------------

    def changed(self, serving: str, caller: str, change: Change, exact: bool) -> None:
        """Checks a change of one row that was just committed."""
        row, state = change.row, self._state
        shadow = state.shadows.get(row.id)
        if shadow is None:
            state.violate("12", "a row changed that was never accepted", row.id)
        before, attempts = shadow.status, shadow.attempts
        self._check_places(row)
        if change.cause is not None and change.cause.kind == "receipt":
            self._by_receipt(shadow, row, change, exact)
        elif serving == "claim":
            self._by_claim(caller, shadow, row)
        elif serving == "reclaim":
            self._by_reclaim(caller, shadow, row)
        elif serving == "settle":
            self._by_settle(shadow, row, change)
        elif serving == "amend":
            self._by_command(shadow, row, change)
        else:
            state.violate("12", f"{serving} changed a row from {before} to {row.status}", row.id)
        state.note(caller, f"{serving} {short_id(row.id)} {before.value} → {_describe_row(row)}")
        self._counts.moved(row.tenant, (before, attempts), (row.status, row.attempts))
        self._follow(shadow, row, before)

    def created(self, caller: str, change: Change, message: Message) -> None:
        """Checks a row that was just stored."""
        row, state = change.row, self._state
        shadow = ShadowState(
            id=row.id,
            tenant=row.tenant,
            batch_id=row.batch_id,
            mode=row.mode,
            channel=row.channel,
            type=row.type,
            category=row.category,
            origin=row.origin,
            priority=row.priority,
            address=row.address,
            recipient_id=message.recipient.id,
            digest=hash_message(message),
            status=row.status,
            pinned=row.pinned,
            provider=row.provider,
            expires_at=row.expires_at,
            aged_from=row.aged_from,
            max_age_ms=row.max_age_ms,
            attempts_before=row.attempts_before,
            max_attempts=row.max_attempts,
            rolled_back=row.id in state.lost,
        )
        state.shadows[row.id] = shadow
        self.born.add(row.id)
        self._check_places(row)
        self._counts.born(row.tenant, (row.status, row.attempts))
        if row.status is S.FAILED:
            self._check_dead_on_arrival(shadow, row)
        else:
            self._check_new(caller, shadow, row)
        shadow.turns += row.status is not S.SENDING
        state.note(caller, f"accept {short_id(row.id)} {row.tenant} {row.lane} {_describe_row(row)}")
        self._follow(shadow, row, row.status)

    def _check_dead_on_arrival(self, shadow: ShadowState, row: Row) -> None:
        """Checks a request from the inbox that was refused and stored as a dead letter (invariant 22)."""
        if row.provider or row.address or row.attempts or not row.last_error:
            self._state.violate("22", "a refused request is not a dead letter with its error", row.id)
        shadow.failed += 1
        shadow.log.append(("guard refused", S.PENDING, S.FAILED))

    def _check_new(self, caller: str, shadow: ShadowState, row: Row) -> None:
        state = self._state
        self._accepted(caller, shadow, row)
        times = [at for at in (row.send_at, row.due_at, row.expires_at, row.deadline_at) if at is not None]
        if not all(0 <= at <= row.created_at + 2 * LONGEST_MS for at in times):
            state.violate("14", "accepted with an out-of-range time, so it would never end", row.id)
        if row.status is S.SENDING:
            if row.mode is not Mode.SYNCHRONOUS or (row.token, row.attempts) != (1, 1):
                state.violate("5", "accepted with a lease, but its first attempt was not counted", row.id)
            self._leased(caller, shadow, row)
            state.leases[row.id] += 1
            return
        status = S.RETRYING if row.attempts_before else S.PENDING
        if (row.status, row.attempts, row.token) != (status, row.attempts_before, 0):
            state.violate("12", f"accepted as {row.status} with {row.attempts} attempts", row.id)
        is_used_up = row.max_attempts is not None and row.attempts_before >= max(1, row.max_attempts)
        if is_used_up and (row.due_at is None or row.due_at > row.created_at):
            state.violate("30", "its attempts are used up, and it is not due at once", row.id)

    def _by_claim(self, caller: str, shadow: ShadowState, row: Row) -> None:
        state = self._state
        if shadow.status not in WAITING or row.status is not S.SENDING:
            state.violate("7", f"claimed while {shadow.status}", row.id)
        if shadow.due_at is None or state.now < shadow.due_at:
            state.violate(
                "8", f"claimed {shadow.due_at and shadow.due_at - state.now} ms before it was due", row.id
            )
        if row.attempts != shadow.attempts + 1:
            state.violate(
                "5", f"claimed, but its attempt count went from {shadow.attempts} to {row.attempts}", row.id
            )
        self._check_round_kept(shadow, row, "a claim")
        self._leased(caller, shadow, row)
        state.leases[row.id] += 1
        self._clock.leased(shadow, (row.lease_until or 0) - state.now)
        shadow.overdue = shadow.reclaimed = False
        self.waited.setdefault((row.lane, row.tenant), []).append(state.now - shadow.due_at)

    def _by_reclaim(self, caller: str, shadow: ShadowState, row: Row) -> None:
        state = self._state
        if row.status is not S.SENDING or row.attempts != shadow.attempts:
            state.violate(
                "6", f"reclaimed, and its attempt count went from {shadow.attempts} to {row.attempts}", row.id
            )
        if shadow.status is S.SENDING:
            from_future = shadow.leased_at > state.now + MAX_BELIEVED_STEP_MS  # the clock was set back
            if shadow.lease_until is None or (state.now < shadow.lease_until and not from_future):
                state.violate("4", "reclaimed before its lease expired, so two workers hold it", row.id)
            self._clock.reclaimed(shadow)
            if not shadow.reclaimed:
                self._lease_expired(shadow)
            shadow.reclaimed = True
        else:
            deadline = shadow.aged_from + shadow.max_age_ms
            if shadow.expires_at is not None:
                deadline = min(deadline, shadow.expires_at)
            if shadow.status not in WAITING or state.now < deadline:
                state.violate(
                    "7", f"reclaimed as overdue while {shadow.status} and before its deadline", row.id
                )
            shadow.overdue = True
        self._check_round_kept(shadow, row, "a reclaim")
        self._leased(caller, shadow, row)

    def _check_round_kept(self, shadow: ShadowState, row: Row, what: str) -> None:
        """Checks that a change left alone what is spent and how many moves were made (invariant 9).

        A move at once that is no longer made does not count.
        """
        kept = (row.spent, row.moves, row.free_move)
        if kept != shadow.round_kept(row.status):
            text = f"{what} changed {shadow.spent} spent and {shadow.moves} moves to {kept}"
            self._state.violate("9", text, row.id)

    def claimed(self, caller: str, batch: ClaimBatch) -> None:
        """Checks that the claims which a process gets are the leases that were stored for it."""
        for claim in batch.claims:
            shadow = self._state.shadows.get(claim.id)
            if shadow is None or (shadow.holder, shadow.token) != (caller, claim.token):
                self._state.violate("4", "claimed, but the lease is not stored", claim.id)

    def _leased(self, caller: str, shadow: ShadowState, row: Row) -> None:
        state = self._state
        if row.token <= shadow.token:
            state.violate(
                "4", f"leased with token {row.token} after {shadow.token}, but tokens must rise", row.id
            )
        if row.lease_until is None or row.lease_until <= state.now:
            state.violate("4", "leased for zero time", row.id)
        self.leases += 1
        shadow.holder = caller
        shadow.lease_ends_ms = state.ms + row.lease_until - state.now
        shadow.leased_at, shadow.leased_ms, shadow.jumps_at_lease = state.now, state.ms, state.jumps
        shadow.lease_written_ms = state.ms
        if shadow.status is not S.SENDING or not shadow.worker:  # otherwise, the attempt was reclaimed
            shadow.worker, shadow.started_at = caller, row.started_at
        shadow.skip = self._skip_reason(shadow)

    def _by_settle(self, shadow: ShadowState, row: Row, change: Change) -> None:
        state, after = self._state, row.status
        settlement = self._fenced(shadow)  # checked first, because other violations may follow from it
        if shadow.status is not S.SENDING:
            state.violate("12", f"settled while {shadow.status}", row.id)
        if after is S.SENDING:
            state.violate("12", "settled, but still sending", row.id)
        if shadow.cancel_requested and after in (*WAITING, S.IN_DOUBT):
            state.violate("7", f"its cancel was requested, but it became {after}", row.id)
        if after is S.CANCELLED and not shadow.cancel_requested:
            state.violate("12", "cancelled by a settlement without a cancel request", row.id)
        if change.attempt is None and after not in WAITING and change.cause is None:
            state.violate("12", f"became {after} without an attempt or a cause", row.id)
        if change.attempt is not None:
            self._check_attempt(shadow, row, change.attempt)
            if after in (S.SENT, S.DELIVERED) and not shadow.attempts_before:
                ended_at = change.attempt.started_at + change.attempt.latency_ms
                self._counts.sent((shadow.tenant, shadow.mode), ended_at - shadow.aged_from)
            shadow.log.append((f"attempt {change.attempt.number}", S.SENDING, after))
        elif row.attempts != shadow.attempts - (not shadow.overdue) and not shadow.rolled_back:
            state.violate("6", "no attempt was made, but the counted one was not given back", row.id)
        if after in WAITING and (after is S.PENDING) != (row.attempts == 0):
            state.violate("12", f"waits as {after} after {row.attempts} attempts", row.id)
        if change.cause is not None:
            shadow.log.append((f"{change.cause.kind} {change.cause.name}", S.SENDING, after))
        self._clock.settled(shadow, row, attempted=change.attempt is not None)
        self._decided(self._settler, shadow, settlement, row)

    def _check_attempt(self, shadow: ShadowState, row: Row, attempt: AttemptRecord) -> None:
        """Checks the record of an attempt, and keeps the message that its provider has accepted."""
        if row.attempts != shadow.attempts or attempt.number != shadow.attempts:
            text = f"attempt {attempt.number} was made, but the count went from {shadow.attempts} "
            self._state.violate("6", f"{text}to {row.attempts}", row.id)
        if attempt.provider != shadow.provider and not shadow.rolled_back:
            text = f"recorded for {attempt.provider}, but it was sent to {shadow.provider}"
            self._state.violate("12", text, row.id)
        message = attempt.provider_message_id
        accepted = attempt.outcome is OutcomeKind.ACCEPTED and message not in shadow.failed_messages
        if accepted and message is not None:
            shadow.taken.add(message)

    def _fenced(self, shadow: ShadowState) -> Settlement:
        """Returns the settlement that is being applied, after checking that its token is the newest."""
        assert self._settlement is not None, "`settling` is called before a row changes"
        if self._settlement.id != shadow.id:
            self._state.violate("26", "it got the outcome of another notification", shadow.id)
        if self._settlement.token != shadow.token:
            self._state.violate("4", "a settlement with a stale token was applied", shadow.id)
        attempt = self._settlement.attempt
        # The token of a lost lease is given out again, so it does not tell the two leases apart.
        if attempt is not None and self._state.rollbacks:
            if attempt.worker != shadow.worker:
                text = f"an attempt of {attempt.worker} settled the lease of {shadow.worker}, with its token"
                self._state.violate("26", text, shadow.id)
            if attempt.started_at < shadow.started_at:
                text = "an attempt under a lost lease settled a newer one, which has the same token"
                self._state.violate("26", text, shadow.id)
        return self._settlement

    def _by_command(self, shadow: ShadowState, row: Row, change: Change) -> None:
        state, cause = self._state, change.cause
        if cause is None or cause.kind != "command":
            state.violate("12", "changed by a command without a record", row.id)
        allowed = _BY_COMMAND[cause.name].get(shadow.status, ())
        if row.status not in allowed or cause.before is not shadow.status or cause.after is not row.status:
            state.violate("12", f"{cause.name} changed {shadow.status} to {row.status}", row.id)
        if cause.name in ("retry", "resend") and shadow.mode is Mode.SYNCHRONOUS:
            state.violate("7", f"{cause.name} of a synchronous notification", row.id)
        if cause.name in (CommandName.RETRY, CommandName.RESCHEDULE):
            shadow.left_alone.clear()  # an operator's command overrides a provider's wait
            shadow.taken.clear()
        if cause.name == CommandName.CANCEL and row.status is S.SENDING:
            shadow.cancel_requested = True
        if cause.name == CommandName.RETRY:
            shadow.refused_by.clear()
            shadow.cleared += 1
            if row.spent or row.moves != shadow.moves - shadow.free_move or row.free_move:
                text = f"a retry left {row.spent} spent, with {row.moves} moves after {shadow.moves}"
                state.violate("9", text, row.id)
        else:
            self._check_round_kept(shadow, row, f"the command {cause.name}")
        if cause.name == CommandName.FAIL and row.reason is not Reason.OPERATOR:
            state.violate("12", f"moved to the dead letters with the reason {row.reason}", row.id)
        shadow.log.append((f"command {cause.name}", shadow.status, row.status))

    def _by_receipt(self, shadow: ShadowState, row: Row, change: Change, exact: bool) -> None:
        state, cause, after = self._state, change.cause, row.status
        assert cause is not None, "checked by the caller"
        before, event = shadow.status, ReceiptEvent(cause.name)
        taken: tuple[Status, ...] = (S.SENT,) if before in _UNDECIDED else (before,)
        if before is S.CANCELLED and shadow.cancel_requested:
            taken = (before, S.SENT)  # another message has failed, but not this one
        legal = {
            ReceiptEvent.DELIVERED: (before, S.DELIVERED),
            ReceiptEvent.SPAM_REPORT: (before, S.FAILED),
            ReceiptEvent.QUEUED: taken,
            ReceiptEvent.SENT: taken,
            ReceiptEvent.FAILED: (before, S.CANCELLED)
            if shadow.cancel_requested
            else (before, S.FAILED, S.RETRYING),
        }.get(event, (before,))
        if shadow.cancel_requested and after in WAITING:
            state.violate("7", f"its cancel was requested, but a receipt ({event}) reopened it", row.id)
        if before is S.SENDING or after not in legal:
            state.violate("12", f"a receipt ({event}) changed {before} to {after}", row.id)
        if (
            event is ReceiptEvent.FAILED
            and after is not before
            and before not in (S.SENT, S.IN_DOUBT, *WAITING)
        ):
            state.violate("11", f"a receipt ({event}) undid {before}", row.id)
        if cause.before is not before or cause.after is not after:
            state.violate("12", f"a receipt was recorded as {cause.before} → {cause.after}", row.id)
        if event is ReceiptEvent.FAILED:
            shadow.key_may_change = True
            # The key has changed already if this is the second, final report about a message.
            again = after is S.FAILED and any(name == "receipt failed" for name, _, _ in shadow.log)
            shadow.key_must_change |= not again and (after is not before or row.due_at != shadow.due_at)
        bounced = event is ReceiptEvent.FAILED and (after is not before or before in WAITING)
        # Nothing follows a failure after a cancel.
        if bounced and exact and after is not S.CANCELLED and not shadow.rolled_back:
            self._bounced(shadow, row, cause, self.receipt)
        shadow.log.append((f"receipt {event.value}", before, after))

    def _follow(self, shadow: ShadowState, row: Row, before: Status) -> None:
        state = self._state
        if row.token < shadow.token:
            state.violate("4", f"its token fell from {shadow.token} to {row.token}", row.id)
        if row.provider != shadow.provider:
            shadow.failures_here = 0
        shadow.failures_here = min(shadow.failures_here, row.failures_here)  # reopening may reset it
        if row.status is S.FAILED and before is not S.FAILED:
            shadow.failed += 1
        if row.status is not before and row.status is not S.SENDING:
            shadow.turns += 1
        if before is not row.status and row.status in ENDED:
            shadow.ended_at = state.now
        shadow.status, shadow.token, shadow.attempts = row.status, row.token, row.attempts
        shadow.floor, shadow.bounce_floor = row.attempt_floor, row.bounce_floor
        shadow.provider, shadow.pinned = row.provider, row.pinned
        shadow.spent, shadow.holds = dict(row.spent), dict(row.holds)
        shadow.moves, shadow.free_move = row.moves, row.free_move
        shadow.due_at, shadow.lease_until = row.due_at, row.lease_until
        shadow.cancel_requested &= row.status in (S.SENDING, S.SENT, S.CANCELLED)
        shadow.last_delay_ms = row.last_delay_ms
        shadow.expires_at, shadow.aged_from, shadow.max_age_ms = row.expires_at, row.aged_from, row.max_age_ms
        shadow.changed_ms = state.ms
        shadow.touched += 1
        if state.quiet_since_ms is not None:
            shadow.quiet_changes += 1

    def _check_places(self, row: Row) -> None:
        """Checks that a row has a due time only while it waits, and a lease only while it is sending."""
        if (row.due_at is not None) != (row.status in WAITING):
            self._state.violate("12", f"{row.status} with a due time of {row.due_at}", row.id)
        if (row.lease_until is not None) != (row.status is S.SENDING):
            self._state.violate("12", f"{row.status} with a lease until {row.lease_until}", row.id)

    # Fencing -------------------------------------------------------------------------------------

    def settling(self, caller: str, settlement: Settlement) -> bool:
        """Records the settlement that is about to be applied. Returns True if it may be applied."""
        shadow = self._state.shadows.get(settlement.id)
        self._settlement, self._settler = settlement, caller
        return shadow is not None and shadow.status is S.SENDING and shadow.token == settlement.token

    def settled(self, settlement: Settlement, expected: bool, applied: bool) -> None:
        if applied and not expected:
            self._state.violate("4", "a settlement with a stale token was applied", settlement.id)
        shadow = self._state.shadows.get(settlement.id)
        # A token that the store has lost is given out again, for another attempt.
        if expected and not applied and not (shadow is not None and shadow.rolled_back):
            self._state.violate("4", "a settlement with the newest token was refused", settlement.id)
        self.stale += not applied

    def settled_batch(self, batch: Sequence[Settlement], result: SettleResult) -> None:
        answered = [*result.applied, *result.stale, *result.missing]
        if sorted(answered) != sorted(settlement.id for settlement in batch):
            self._state.violate("4", "the result of a settle does not contain each settlement exactly once")
        for id in result.missing:
            if id in self._state.shadows:
                self._state.violate("4", "a settlement of a stored notification was reported as missing", id)
        missing = [one for one in batch if one.id in result.missing and one.id in self.removed]
        if missing and all(self._was_suspended_since(one) for one in missing):
            self._state.results_of_purged += 1

    def _was_suspended_since(self, settlement: Settlement) -> bool:
        """Returns True if the process was suspended after the claim, or if a jump of the clock hides that."""
        state = self._state
        claimed_ms = state.ms - (state.now - settlement.started_at)
        return state.jumps > 0 or state.paused_ms.get(settlement.worker, -1) >= claimed_ms

    def extended(self, caller: str, leases: Sequence[Lease], held: frozenset[str], row_of: FindRow) -> None:
        """Checks the result of `extend`, and records a change of provider.

        A process may extend two leases of one notification, the old and the newest: after it was suspended,
        or after the store has lost the claim of the old one. `held` does not tell which of them was extended.
        """
        state = self._state
        fitting: set[str] = set()
        own = {lease.id for lease in leases if self._is_holder(lease)}
        for lease in leases:
            shadow, row = state.shadows.get(lease.id), row_of(lease.id)
            if shadow is None or row is None:
                continue
            if shadow.status is S.SENDING and shadow.token == lease.token:
                fitting.add(lease.id)
                if shadow.rolled_back and shadow.worker != lease.worker:
                    if lease.id in held and lease.id not in own:
                        text = f"{caller} extended the lease of {shadow.worker}, which has the same token"
                        state.violate("26", text, lease.id)
                    continue
                self._check_round_kept(shadow, row, "an extension")
                if row.provider != shadow.provider:
                    shadow.failures_here = 0
                    state.note(caller, f"move {short_id(lease.id)} {shadow.provider} → {row.provider}")
                shadow.lease_until, shadow.provider = row.lease_until, row.provider
                shadow.lease_ends_ms = state.ms + (row.lease_until or 0) - state.now
                shadow.jumps_at_lease, shadow.lease_written_ms = state.jumps, state.ms
                shadow.touched += 1
        for id in sorted(fitting ^ held):
            if id not in held and state.shadows[id].rolled_back:
                continue  # another worker has a lease with the same token
            text = (
                f"a lease was {'refused to its holder' if id in fitting else 'extended for another holder'}"
            )
            state.violate("4", text, id)

    def _is_holder(self, lease: Lease) -> bool:
        """Returns True if this is the newest lease of its notification."""
        shadow = self._state.shadows.get(lease.id)
        if shadow is None or shadow.status is not S.SENDING:
            return False
        return shadow.token == lease.token and shadow.worker == lease.worker

    def purged(self, row: Row) -> None:
        retention, state = self._state.plan.retention, self._state
        shadow = state.shadows.pop(row.id)
        self.removed[row.id] = shadow
        self._counts.purged(row.tenant, (row.status, row.attempts))
        ages = {S.DELIVERED: retention.delivered_ms, S.SENT: retention.sent_ms}
        age_ms = state.now - shadow.ended_at
        too_early = age_ms < ages.get(row.status, retention.others_ms) and not state.jumps
        if row.status not in ENDED or too_early:
            state.violate("2", f"purged while {row.status}, {age_ms} ms after it ended", row.id)


def _describe_row(row: Row) -> str:
    reason = f" {row.reason.value}" if isinstance(row.reason, Reason) else ""
    return f"{row.status.value}{reason} #{row.attempts} token {row.token} at {row.provider}"
