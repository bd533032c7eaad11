"""Applies commands to rows, as pure transitions like those in `rows`."""

from __future__ import annotations

from msgspec.structs import replace

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.rows import (
    CauseRecord,
    Change,
    Row,
    clear_spent,
    finish,
    record_change,
    wait_until,
)
from homing.core.lifecycle.states import WAITING, after_command
from homing.core.notifications import Reason, Status
from homing.core.retry.decide import waiting_status


def apply_command(row: Row, order: Command, now: int) -> Change | None:
    """Applies a command. Returns None, without a change, if the row's status does not permit the command."""
    resent, accepted = row.resent_as is not None, row.provider != ""
    after = after_command(order, row.status, mode=row.mode, resent=resent, accepted=accepted)
    if after is None:
        return None
    before, attempts = row.status, row.attempts
    match order.name:
        case CommandName.CANCEL if before is Status.SENDING:
            row.cancel_requested = True
        case CommandName.CANCEL | CommandName.FAIL:
            row.status, row.reason = after, Reason.OPERATOR
            finish(row, now)
        case CommandName.RETRY:
            after = _retry(row, order, now)
        case CommandName.RESCHEDULE:
            row.aged_from = max(row.aged_from, now + order.delay_ms)  # the age counts from then on
            row.holds = {one: until for one, until in row.holds.items() if one != row.provider}
            wait_until(row, now + order.delay_ms)
        case CommandName.ACKNOWLEDGE:
            _acknowledge(row, order, now)
        case CommandName.RESEND:
            row.resent_as = order.new_ids[row.id]
            if before is not after:
                row.status = after
                finish(row, now)
            _acknowledge(row, order, now)
        case CommandName.RESOLVE:
            row.status = after
            row.reason = Reason.OPERATOR if after is Status.FAILED else None
            finish(row, now)
    cause = CauseRecord(
        kind="command",
        name=order.name.value,
        at=now,
        before=before,
        after=after,
        who=order.who,
        why=order.why,
    )
    return record_change(row, before, attempts, now, cause=cause)


def resent_row(row: Row, order: Command, now: int) -> Change:
    """Returns the new row of a resend, which has the same message, no attempts and a link to the original."""
    fresh = replace(
        row,
        id=order.new_ids[row.id],
        batch_id=order.batch_id,
        status=Status.PENDING,
        token=0,
        changes=0,
        attempts=0,
        attempts_before=0,
        attempt_floor=0,
        bounce_floor=0,
        bounce_always=None,
        bounce_min_ms=None,
        bounce_max_ms=None,
        first_failed_at=None,
        unknown_bounce=0,
        failures_here=0,
        moves=0,
        free_move=False,
        last_delay_ms=0,
        max_age_ms=order.max_age_ms,
        spent={},
        holds={},
        created_at=now,
        updated_at=now,
        aged_from=now,
        send_at=None,
        expires_at=None,
        reason=None,
        last_error=None,
        error_code=None,
        last_attempt_at=None,
        sent_at=None,
        delivered_at=None,
        failed_at=None,
        acknowledged_at=None,
        acknowledged_by=None,
        acknowledged_why=None,
        cancel_requested=False,
        resend_of=row.id,
        resent_as=None,
        engagement={},
    )
    if order.provider is not None:
        fresh.provider, fresh.outlet, fresh.pinned = order.provider, order.outlet or order.provider, True
    wait_until(fresh, now)
    return record_change(fresh, None, 0, now)


def _retry(row: Row, order: Command, now: int) -> Status:
    """Makes the row due now, and all providers available to it again.

    A finished row is reopened with one more attempt. Its age starts again, and an expired `expires_at` is
    removed.
    """
    clear_spent(row)
    row.failures_here = 0
    if row.status not in WAITING:
        row.status = waiting_status(row.attempts)
        row.attempt_floor = max(row.attempt_floor, row.attempts - row.moves + 1)
        row.failed_at = row.reason = None
        row.cancel_requested = False
        row.acknowledged_at = row.acknowledged_by = row.acknowledged_why = None
        row.aged_from = now
        row.first_failed_at = now if row.attempts > row.attempts_before else None
        if row.expires_at is not None and row.expires_at <= now:
            row.expires_at = None
    row.holds = {}
    if order.provider is not None:
        row.provider, row.outlet, row.pinned = order.provider, order.outlet or order.provider, True
    wait_until(row, now)
    return row.status


def _acknowledge(row: Row, order: Command, now: int) -> None:
    row.acknowledged_at, row.acknowledged_by, row.acknowledged_why = now, order.who, order.why or None
