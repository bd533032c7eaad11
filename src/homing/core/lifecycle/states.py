"""The permitted status transitions, and the ranks of receipts, as tables."""

from __future__ import annotations

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Mode, Status

S = Status


WAITING = frozenset({S.PENDING, S.RETRYING})
"""Statuses with a due time, from which a row can be claimed."""


LIVE = WAITING | {S.SENDING}
"""Statuses in which an attempt may still be made without a command or receipt."""


SUCCESSFUL = frozenset({S.SENT, S.DELIVERED})
"""Statuses of notifications that a provider has accepted."""


FINAL = SUCCESSFUL | {S.FAILED, S.CANCELLED, S.EXPIRED, S.SKIPPED}
"""Statuses of finished notifications. A receipt or a command may still change them: for example, a receipt
may turn `sent` into `delivered`."""


CLAIM: dict[Status, Status] = {S.PENDING: S.SENDING, S.RETRYING: S.SENDING}
"""Status before a claim → status after it."""


SETTLE: dict[Status, frozenset[Status]] = {
    S.SENDING: frozenset(
        {
            S.PENDING,  # postponed before its first attempt
            S.RETRYING,
            S.SENT,
            S.DELIVERED,
            S.FAILED,
            S.EXPIRED,
            S.SKIPPED,
            S.CANCELLED,  # a cancel was requested during the attempt
            S.IN_DOUBT,
        }
    ),
}
"""Status before a settlement → statuses that the settlement may lead to."""


COMMANDS: dict[CommandName, dict[Status, Status]] = {
    CommandName.CANCEL: {
        S.PENDING: S.CANCELLED,
        S.RETRYING: S.CANCELLED,
        S.SENDING: S.SENDING,  # recorded; takes effect when the attempt ends
        S.IN_DOUBT: S.CANCELLED,
    },
    CommandName.RETRY: {
        S.PENDING: S.PENDING,
        S.RETRYING: S.RETRYING,
        S.FAILED: S.RETRYING,
        S.EXPIRED: S.RETRYING,
        S.SKIPPED: S.RETRYING,
        S.CANCELLED: S.RETRYING,
        S.IN_DOUBT: S.RETRYING,
    },
    CommandName.RESEND: {
        S.FAILED: S.FAILED,
        S.EXPIRED: S.EXPIRED,
        S.SKIPPED: S.SKIPPED,
        S.CANCELLED: S.CANCELLED,
        S.IN_DOUBT: S.FAILED,
    },
    CommandName.ACKNOWLEDGE: {
        S.FAILED: S.FAILED,
        S.EXPIRED: S.EXPIRED,
        S.SKIPPED: S.SKIPPED,
    },
    CommandName.RESCHEDULE: {S.PENDING: S.PENDING, S.RETRYING: S.RETRYING},
    CommandName.RESOLVE: {S.IN_DOUBT: S.SENT},  # or FAILED, as the command specifies
    CommandName.FAIL: {S.PENDING: S.FAILED, S.RETRYING: S.FAILED, S.IN_DOUBT: S.FAILED},
}
"""Command → status before it → status after it. A status that is not listed does not permit the command."""


RECEIPT_RANK: dict[ReceiptEvent, int] = {
    ReceiptEvent.OPEN: 0,
    ReceiptEvent.CLICK: 0,
    ReceiptEvent.UNSUBSCRIBE: 0,
    ReceiptEvent.QUEUED: 1,
    ReceiptEvent.SENT: 2,
    ReceiptEvent.FAILED: 3,
    ReceiptEvent.DELIVERED: 5,
    ReceiptEvent.SPAM_REPORT: 6,
}
"""Rank of each event. The highest rank received for a message decides its status, so that the order and the
repetition of receipts do not matter."""


FINAL_FAILURE_RANK = 4
"""Rank of a failure after which nothing is sent again. A failure that leads to a re-send has a lower rank."""


def may_settle(before: Status, after: Status) -> bool:
    """Returns True if a settlement may lead from one status to the other."""
    return after in SETTLE.get(before, frozenset())


def after_command(
    command: Command, before: Status, *, mode: Mode, resent: bool = False, accepted: bool = True
) -> Status | None:
    """Returns the status a command leads to, or None if the current status does not permit the command.

    Retry and resend are not permitted for a synchronous notification, which is never sent later. Nor are they
    for one that was already resent, so that a repeated resend does not send the message twice, and for the
    dead letter of a request that was never accepted: it has no provider and no message to send.
    """
    sends = command.name in (CommandName.RETRY, CommandName.RESEND)
    if sends and (mode is Mode.SYNCHRONOUS or resent or not accepted):
        return None
    after = COMMANDS[command.name].get(before)
    if after is not None and command.name is CommandName.RESOLVE:
        return command.resolution if command.resolution in (S.SENT, S.FAILED) else None
    return after
