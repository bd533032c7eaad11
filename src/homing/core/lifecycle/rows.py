"""The row of a notification and its transitions: create, lease, reclaim, extend and settle. Pure.

Stores keep rows and call these functions inside their transactions, so all stores behave alike. A transition
changes its row in place. Most transitions return a `Change`, from which tallies, roll-ups, the history and
the events follow. The transitions that commands and receipts cause are in `row_commands` and
`receipt_decision`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter

from msgspec import Struct, field
from msgspec.structs import astuple

from homing.core.clock_steps import MAX_BELIEVED_STEP_MS
from homing.core.lifecycle.claims import Claim, Lease, NewNotification, Submission
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.lifecycle.states import SETTLE, SUCCESSFUL, WAITING
from homing.core.notifications import Channel, Message, Mode, Priority, Reason, Status
from homing.core.plain_values import MAX_INTEGER
from homing.core.retry.decide import waiting_status
from homing.core.routing.failover import known_refusals

# Looked up once: up to Python 3.11, `Status.SENT` calls a method written in Python.
_SENDING, _SENT, _DELIVERED, _FAILED = Status.SENDING, Status.SENT, Status.DELIVERED, Status.FAILED

_IN_DOUBT = Status.IN_DOUBT

_AFTER_SENDING = SETTLE[Status.SENDING]
"""Statuses that a settlement may lead to."""

_DOES_NOT_AGE = frozenset({Reason.QUIET_HOURS, Reason.RATE_LIMIT})
"""Reasons for an intended wait, which does not count toward `max_age_ms`."""


class Row(Struct, gc=False):
    """The fields of a notification that change, and those by which it is claimed and matched.

    The order of the fields matters, because stores read only the first of them for claims and settlements.
    The fields from `lane` to `holds` are those that a claim and its settlement need. The next ones, up to
    `overdue`, complete the lease.
    """

    lane: str
    tenant: str
    outlet: str
    id: str
    batch_id: str
    channel: Channel
    mode: Mode
    type: str
    category: str
    priority: Priority
    origin: str
    provider: str
    pinned: bool
    address: str
    status: Status
    max_age_ms: int
    created_at: int
    aged_from: int
    token: int = 0
    changes: int = 0
    """Number of changes so far. Event ids contain it, so they are unique, and a repeated change has the same
    ids."""
    attempts: int = 0
    attempt_floor: int = 0
    bounce_floor: int = 0
    attempts_before: int = 0
    """Number of attempts made by another system before acceptance. They are included in `attempts`."""
    max_attempts: int | None = None
    failures_here: int = 0
    moves: int = 0
    """Number of attempts that were moves at once to another provider or uncounted failures. They are included
    in `attempts`, but do not count toward the maximum number of attempts."""
    free_move: bool = False
    """True if the next attempt is a move at once, already included in `moves`. While `sending`, this is the
    attempt in flight."""
    last_delay_ms: int = 0
    expires_at: int | None = None
    due_at: int | None = None
    """Time of the next attempt. Set only while `pending` or `retrying`."""
    cancel_requested: bool = False
    """True if a cancel was requested while the row was `sending`. Kept while it is `sent`, because a receipt
    may report a failure, and after such a report has cancelled it, because another message may turn out to be
    taken. Cleared in every other status."""
    last_error: str | None = None
    error_code: str | None = None
    last_attempt_at: int | None = None
    sent_at: int | None = None
    delivered_at: int | None = None
    failed_at: int | None = None
    spent: dict[str, int] = field(default_factory=dict)
    """Provider → `Spent`: why the provider is not tried again in this round of failover, or never again.

    Replaced, never changed in place, because claims share it.
    """
    holds: dict[str, int] = field(default_factory=dict)
    """Provider → time until which its `Retry-After` forbids an attempt."""
    lease_until: int | None = None
    """End of the lease. Set only while `sending`."""
    started_at: int = 0
    worker: str = ""
    overdue: bool = False
    """True if the row was leased because its deadline passed. The lease has no attempt then."""
    bounce_always: bool | None = None
    """Set by the settlement of each attempt: True if the policy's `bounce_failover` was `always`. None if the
    row has no attempt yet, or was settled by a version of Homing that did not write it."""
    bounce_min_ms: int | None = None
    """Set by a settlement after which a receipt may report a failure: `sent`, `in_doubt`, `retrying`, or any
    after an attempt with an unknown outcome. Minimum wait before a re-send at the same provider. None before
    the first of them, and in rows settled by a version of Homing that did not write it."""
    bounce_max_ms: int | None = None
    """Maximum of the wait of `bounce_min_ms`. None if that is None."""
    first_failed_at: int | None = None
    """Time of the first failure: of the first attempt, or the receipt that reported it. None before that, and
    in rows whose first attempt was settled by a version of Homing that did not write it. If a command reopens
    the row, its failures count from then."""
    unknown_bounce: int = 0
    """Number of the attempt after whose receipt, with an unlisted error code, the notification was sent
    again. 0 if there is none. The next unlisted code is final."""
    updated_at: int = 0
    """Time of the last change."""
    send_at: int | None = None
    deadline_at: int | None = None
    """Time at which a waiting row must be reclaimed even if no lane is free. Set while `due_at` is set."""
    reason: Reason | None = None
    acknowledged_at: int | None = None
    acknowledged_by: str | None = None
    acknowledged_why: str | None = None
    resend_of: str | None = None
    resent_as: str | None = None
    engagement: dict[str, int] = field(default_factory=dict)


_as_given = attrgetter(*Row.__struct_fields__[5:14])
"""Reads the fields from `channel` to `address`, which a `NewNotification` has as well."""

shared_fields = attrgetter(
    *(
        name
        for name in NewNotification.__struct_fields__
        if name not in ("id", "address", "message", "dedup_key", "dedup_window_ms")
    )
)
"""Reads all fields of a `NewNotification` that its row depends on, except for id, batch and address.

If the values of two notifications with the same tenant and lease are equal, their rows differ only in id,
batch and address.
"""

_CLAIMED = Claim.__struct_fields__[3 : Claim.__struct_fields__.index("spent")]
"""The fields of a row that its claim has from `id` on, except `spent` and `holds`."""

_as_claimed = attrgetter(*_CLAIMED)


_ATTEMPTS, _SPENT, _HOLDS, _STARTED_AT = map(
    Row.__struct_fields__.index, ("attempts", "spent", "holds", "started_at")
)

_claimed_columns = itemgetter(*map(Row.__struct_fields__.index, _CLAIMED))


class CauseRecord(Struct, frozen=True, kw_only=True):
    """Record of why a row changed without an attempt: a command, a receipt or a check before an attempt."""

    kind: str
    name: str
    at: int
    before: Status
    after: Status
    who: str
    why: str = ""


class Change(Struct, frozen=True, gc=False):
    """What one transition did. `before` is None for a new row."""

    row: Row
    before: Status | None
    attempts_before: int
    """Number of attempts before the transition."""
    at: int
    attempt: AttemptRecord | None = None
    cause: CauseRecord | None = None
    bounced: bool = False
    """True if a receipt reported a failed delivery that the recipient did not cause."""

    @property
    def provider(self) -> str:
        """Provider for the statistics: that of the attempt or receipt, or else that of the row."""
        if self.attempt is not None:
            return self.attempt.provider
        if self.cause is not None and self.cause.kind == "receipt":
            return self.cause.who
        return self.row.provider


def new_row(new: NewNotification, submission: Submission, now: int) -> Change:
    """Creates an accepted row, either waiting or already leased to the caller of a synchronous send.

    A notification that another system has already attempted waits as `retrying`, and an invalid one from the
    SQL inbox becomes a dead letter.
    """
    start = max(now, new.send_at or now)
    place, status = (new.lane, submission.tenant, new.outlet), waiting_status(new.attempts_before)
    # By position, as in `claim_of`: keywords take four times as long (bench/struct_construction.py).
    row = Row(*(*place, new.id, submission.batch_id, *_as_given(new), status, new.max_age_ms, now, start))
    row.attempts = row.attempts_before = new.attempts_before
    row.max_attempts, row.last_delay_ms, row.last_error = new.max_attempts, new.delay_ms, new.last_error
    row.send_at, row.expires_at, row.resend_of = new.send_at, new.expires_at, new.resend_of
    if new.refused:
        return _reject(row, now)
    wait_until(row, max(start, (now if new.delay_from is None else new.delay_from) + new.delay_ms))
    change = record_change(row, None, 0, now)
    if submission.lease_to is not None:
        lease(row, submission.lease_to, submission.lease_ms, now)
    return change


def _reject(row: Row, now: int) -> Change:
    """Makes a refused request from the SQL inbox or the spool a dead letter: its sender gets no error."""
    row.status, row.reason, row.failed_at = Status.FAILED, Reason.BAD_CONTENT, now
    cause = internal_cause("guard", "refused", now, Status.PENDING, Status.FAILED, row.last_error or "")
    return record_change(row, None, 0, now, cause=cause)


def lease(row: Row, worker: str, lease_ms: int, now: int) -> Change:
    """Leases a due row to a worker. The attempt is counted here, before its send."""
    before, attempts = row.status, row.attempts
    assert before in WAITING, f"only a waiting row is claimed, this one is {before}"
    # Inlined, like the end of `settle`: a call per step would cost more than the steps.
    row.status = _SENDING
    row.attempts = attempts + 1
    row.overdue = False
    row.due_at = row.deadline_at = None
    row.token += 1
    row.worker = worker
    row.lease_until = now + lease_ms
    row.started_at = row.updated_at = now
    row.changes += 1
    return Change(row, before, attempts, now)


def reclaim(row: Row, worker: str, lease_ms: int, now: int) -> Change:
    """Leases a row whose lease expired, keeping its attempt, or a waiting row whose deadline passed."""
    before = row.status
    if before is Status.SENDING:
        _renew_lease(row, row.worker, lease_ms, now)
    else:
        row.status = Status.SENDING
        row.overdue = True
        row.started_at = row.due_at or now  # no attempt starts; keeps the due time
        _renew_lease(row, worker, lease_ms, now)
    return record_change(row, before, row.attempts, now)


def extend(row: Row, held: Lease, lease_ms: int, now: int) -> bool:
    """Extends a lease and records the provider that the attempt actually uses.

    Returns False, without a change, if the lease is no longer held.
    """
    provider, outlet = held.provider, held.outlet
    if row.status is not Status.SENDING or row.token != held.token:
        return False
    if held.worker is not None and held.worker != row.worker:
        return False
    if max(row.started_at, row.updated_at) > now + MAX_BELIEVED_STEP_MS:
        # The clock was set back, so the end means nothing. A time in the future would void the new end too.
        row.lease_until = now + lease_ms
        row.started_at, row.updated_at = min(row.started_at, now), now
    row.lease_until = max(row.lease_until or 0, now + lease_ms)  # never shortens the lease
    if provider is not None and provider != row.provider:
        row.provider, row.outlet, row.failures_here = provider, outlet or provider, 0
    return True


def claim_of(row: Row, message: Message, due_at: int) -> Claim:
    """Returns the claim of a leased row, for a worker."""
    assert row.lease_until is not None, "a claim has a lease"
    spent = known_refusals(row.spent, row.holds, row.started_at) if row.holds else row.spent
    return Claim(*(message, row.attempts, due_at, *_as_claimed(row), spent, dict(row.holds)))


def claims_of(rows: Sequence[Row], messages: Sequence[Message], due_at: Sequence[int]) -> tuple[Claim, ...]:
    """Returns the claims of many rows. It works column by column, which avoids a Python call per row."""
    columns = tuple(zip(*map(astuple, rows), strict=True))
    spent: Iterable[Mapping[str, int]] = columns[_SPENT]
    if any(columns[_HOLDS]):
        spent = map(known_refusals, columns[_SPENT], columns[_HOLDS], columns[_STARTED_AT])
    given = (messages, columns[_ATTEMPTS], due_at, *_claimed_columns(columns))
    return tuple(map(Claim, *given, spent, map(dict, columns[_HOLDS])))


def settle(row: Row, settlement: Settlement, now: int) -> Change | None:
    """Applies a settlement. Returns None, without a change, if its token is not the newest.

    Returns None too if its claim is not that of the current lease. That happens only after the store has gone
    back to an earlier state, because then a token is given out a second time.
    """
    attempt = settlement.attempt
    if row.status is not _SENDING or row.token != settlement.token or not _belongs_to_lease(settlement, row):
        return None
    after, reason, cause = settlement.status, settlement.reason, None
    assert after in _AFTER_SENDING, f"illegal: {row.status} → {after}"
    attempts, waits = row.attempts, after in WAITING
    if row.cancel_requested and (waits or after is _IN_DOUBT):
        after, reason, waits = Status.CANCELLED, Reason.OPERATOR, False
        cause = internal_cause("command", "cancel", now, _SENDING, after, "requested while sending")
    elif attempt is None and not waits:
        cause = internal_cause("guard", after.value, now, _SENDING, after, reason.value if reason else "")
    row.status, row.reason = after, reason
    if settlement.give_back:
        row.attempts = attempts - 1
    row.provider, row.outlet = settlement.provider, settlement.outlet
    row.failures_here, row.free_move = settlement.failures_here, settlement.free_move
    if row.holds or settlement.hold_ms or settlement.spent is not None:
        _update_failover(row, settlement, now)
    row.last_delay_ms = settlement.last_delay_ms
    row.max_age_ms = settlement.max_age_ms
    row.lease_until, row.overdue, row.worker = None, False, ""
    if attempt is not None:
        row.last_attempt_at = now
        if after not in SUCCESSFUL:
            row.last_error, row.error_code = attempt.error, attempt.error_code
            is_first = attempt.number == row.attempts_before + 1
            row.first_failed_at = now if is_first else row.first_failed_at
        if settlement.bounce_always is not None:
            row.bounce_always = settlement.bounce_always
        if settlement.bounce_max_ms is not None:
            row.bounce_min_ms, row.bounce_max_ms = settlement.bounce_min_ms, settlement.bounce_max_ms
    if waits:
        if reason in _DOES_NOT_AGE:
            row.aged_from += settlement.delay_ms
        wait_until(row, now + settlement.delay_ms)
    else:
        finish(row, now)
    row.changes += 1
    row.updated_at = now
    return Change(row, _SENDING, attempts, now, attempt, cause)


def _belongs_to_lease(settlement: Settlement, row: Row) -> bool:
    """Returns True if the settlement is that of the current lease of the row.

    An extension after a step of the clock may lower the start time in the row, but nothing raises it. A row
    that was taken over past its deadline has its due time as start time, and no attempt to give back.
    """
    attempt = settlement.attempt
    return (
        settlement.worker == row.worker
        and settlement.started_at >= row.started_at
        and (attempt is None or attempt.number == row.attempts)
        and not (settlement.give_back and row.overdue)
    )


def record_change(
    row: Row,
    before: Status | None,
    attempts: int,
    now: int,
    *,
    attempt: AttemptRecord | None = None,
    cause: CauseRecord | None = None,
    bounced: bool = False,
) -> Change:
    """Counts a change that was made to the row, records its time, and returns it as a `Change`."""
    row.changes += 1
    row.updated_at = now
    return Change(row, before, attempts, now, attempt, cause, bounced)


def internal_cause(kind: str, name: str, at: int, before: Status, after: Status, why: str) -> CauseRecord:
    """Returns the record of a change that Homing itself decided on."""
    return CauseRecord(kind=kind, name=name, at=at, before=before, after=after, who="homing", why=why)


def wait_until(row: Row, due_at: int) -> None:
    """Sets the due time of a waiting row, and the deadline that follows from its age and expiry."""
    row.due_at = due_at
    age_limit = row.aged_from + row.max_age_ms
    if age_limit > MAX_INTEGER:  # a manually written row: the sum would not fit into the store
        age_limit = MAX_INTEGER
    row.deadline_at = age_limit if row.expires_at is None else min(age_limit, row.expires_at)


def _renew_lease(row: Row, worker: str, lease_ms: int, now: int) -> None:
    row.due_at = row.deadline_at = None
    row.token += 1
    row.worker = worker
    row.lease_until = now + lease_ms


def finish(row: Row, now: int) -> None:
    """Records the time at which the row got a status in which it does not wait, and clears its due time.

    A move at once that was not made yet does not count.
    """
    status = row.status
    row.due_at = row.deadline_at = None
    if row.free_move:
        _forget_move(row)
    row.cancel_requested = row.cancel_requested and status is _SENT  # a receipt may still report a failure
    if status in SUCCESSFUL:
        row.sent_at = now if status is _SENT else row.sent_at or now
        row.failed_at = None  # the error of an earlier attempt stays
        if status is _DELIVERED:
            row.delivered_at = now
    elif status is _FAILED:
        row.failed_at = now


def _update_failover(row: Row, settlement: Settlement, now: int) -> None:
    if settlement.spent is not None:
        row.spent, row.moves = dict(settlement.spent), settlement.moves
    if settlement.attempt is not None:
        row.holds = updated_holds(row, settlement.attempt.provider, settlement.hold_ms, now)


def clear_spent(row: Row) -> None:
    """Makes all providers available to the row again. A move at once that was not made yet is forgotten."""
    row.spent = {}
    _forget_move(row)


def _forget_move(row: Row) -> None:
    row.moves -= row.free_move
    row.free_move = False


def updated_holds(row: Row, provider: str, hold_ms: int, now: int) -> dict[str, int]:
    """Returns the holds that have not ended, plus one on `provider`, which never shortens an existing one."""
    holds = {held: until for held, until in row.holds.items() if until > now}
    if hold_ms:
        holds[provider] = max(holds.get(provider, 0), now + hold_ms)
    return holds
