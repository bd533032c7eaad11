"""Legal transitions, as data. Stores ask this table; nothing else decides what may follow what."""

from __future__ import annotations

from homing.core.model import Command, CommandName, Mode, ReceiptEvent, Status

S = Status

WAITING = frozenset({S.PENDING, S.RETRYING})
"""Has a due time; a claim may take it."""

LIVE = WAITING | {S.SENDING}

FINAL = frozenset({S.SENT, S.DELIVERED, S.FAILED, S.CANCELLED, S.EXPIRED, S.SKIPPED})
"""Nothing more happens by itself. `sent` may still become `delivered`, or reopen, by a receipt."""

CLAIM: dict[Status, Status] = {S.PENDING: S.SENDING, S.RETRYING: S.SENDING}

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
            S.CANCELLED,  # a cancel was requested while the attempt was under way
            S.IN_DOUBT,
        }
    ),
}

COMMANDS: dict[CommandName, dict[Status, Status]] = {
    CommandName.CANCEL: {
        S.PENDING: S.CANCELLED,
        S.RETRYING: S.CANCELLED,
        S.SENDING: S.SENDING,  # noted; takes effect when the attempt ends
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
    CommandName.RESOLVE: {S.IN_DOUBT: S.SENT},  # or FAILED: the command says which
}

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
"""For one provider message the highest rank heard decides, so order and repeats do not matter."""

FINAL_FAILURE_RANK = 4
"""A failure after which nothing is sent again outranks one that leads to a re-send."""


def may_settle(before: Status, after: Status) -> bool:
    return after in SETTLE.get(before, frozenset())


def after_command(command: Command, before: Status, *, mode: Mode, resent: bool = False) -> Status | None:
    """The status a command leads to, or None where it is refused.

    A synchronous notification is never sent later, whoever asks; one that was resent lives on in its
    successor, so a second resend (or a bulk one run twice) doubles nothing.
    """
    sends = command.name in (CommandName.RETRY, CommandName.RESEND)
    if sends and (mode is Mode.SYNCHRONOUS or resent):
        return None
    after = COMMANDS[command.name].get(before)
    if after is not None and command.name is CommandName.RESOLVE:
        return command.resolution if command.resolution in (S.SENT, S.FAILED) else None
    return after
