"""The table of legal transitions: which status may follow which, and by whose request."""

from __future__ import annotations

import itertools

import pytest

from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.states import (
    CLAIM,
    COMMANDS,
    FINAL,
    LIVE,
    RECEIPT_RANK,
    SUCCESSFUL,
    WAITING,
    after_command,
    may_settle,
)
from homing.core.notifications import Mode, Status
from support.core_builders import make_command

S, C = Status, CommandName
QUEUED = [Mode.PRIORITY, Mode.STANDARD, Mode.BULK]

ALLOWED: dict[CommandName, dict[Status, Status]] = {
    C.CANCEL: {
        S.PENDING: S.CANCELLED,
        S.RETRYING: S.CANCELLED,
        S.SENDING: S.SENDING,
        S.IN_DOUBT: S.CANCELLED,
    },
    C.RETRY: {
        S.PENDING: S.PENDING,
        S.RETRYING: S.RETRYING,
        S.FAILED: S.RETRYING,
        S.EXPIRED: S.RETRYING,
        S.SKIPPED: S.RETRYING,
        S.CANCELLED: S.RETRYING,
        S.IN_DOUBT: S.RETRYING,
    },
    C.RESEND: {
        S.FAILED: S.FAILED,
        S.EXPIRED: S.EXPIRED,
        S.SKIPPED: S.SKIPPED,
        S.CANCELLED: S.CANCELLED,
        S.IN_DOUBT: S.FAILED,
    },
    C.ACKNOWLEDGE: {S.FAILED: S.FAILED, S.EXPIRED: S.EXPIRED, S.SKIPPED: S.SKIPPED},
    C.RESCHEDULE: {S.PENDING: S.PENDING, S.RETRYING: S.RETRYING},
    C.RESOLVE: {S.IN_DOUBT: S.SENT},
    C.FAIL: {S.PENDING: S.FAILED, S.RETRYING: S.FAILED, S.IN_DOUBT: S.FAILED},
}


def test_every_status_is_waiting_sending_final_or_in_doubt() -> None:
    assert WAITING | {S.SENDING} | FINAL | {S.IN_DOUBT} == set(Status)
    assert WAITING | {S.SENDING} == LIVE
    assert not LIVE & FINAL
    assert SUCCESSFUL < FINAL
    assert S.IN_DOUBT not in FINAL | LIVE


def test_only_waiting_rows_are_claimed() -> None:
    assert dict.fromkeys(WAITING, S.SENDING) == CLAIM


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Status, Status)))
def test_only_rows_in_sending_are_settled_and_never_as_sending(before: Status, after: Status) -> None:
    assert may_settle(before, after) == (before is S.SENDING and after is not S.SENDING)


@pytest.mark.parametrize("mode", QUEUED)
@pytest.mark.parametrize(("name", "before"), list(itertools.product(CommandName, Status)))
def test_a_command_leads_to_the_status_in_the_table_or_is_refused(
    mode: Mode, name: CommandName, before: Status
) -> None:
    command = make_command(name, resolution=S.SENT if name is C.RESOLVE else None)
    assert after_command(command, before, mode=mode) is ALLOWED[name].get(before)


@pytest.mark.parametrize(("name", "before"), list(itertools.product(CommandName, Status)))
def test_no_transition_sends_a_synchronous_notification_later(name: CommandName, before: Status) -> None:
    command = make_command(name, resolution=S.SENT if name is C.RESOLVE else None)
    found = after_command(command, before, mode=Mode.SYNCHRONOUS)
    assert found is (None if name in (C.RETRY, C.RESEND) else ALLOWED[name].get(before))


@pytest.mark.parametrize("name", [C.RETRY, C.RESEND])
@pytest.mark.parametrize("before", list(Status))
def test_a_resent_notification_is_not_sent_again(name: CommandName, before: Status) -> None:
    assert after_command(make_command(name), before, mode=Mode.STANDARD, resent=True) is None


def test_a_resent_notification_can_still_be_acknowledged() -> None:
    acknowledge = make_command(C.ACKNOWLEDGE)
    assert after_command(acknowledge, S.FAILED, mode=Mode.STANDARD, resent=True) is S.FAILED


@pytest.mark.parametrize("resolution", [*Status, None])
def test_an_in_doubt_notification_is_resolved_only_as_sent_or_failed(resolution: Status | None) -> None:
    command = make_command(C.RESOLVE, resolution=resolution)
    expected = resolution if resolution in (S.SENT, S.FAILED) else None
    assert after_command(command, S.IN_DOUBT, mode=Mode.STANDARD) is expected
    assert after_command(command, S.FAILED, mode=Mode.STANDARD) is None


def test_no_command_applies_to_a_notification_that_a_provider_accepted() -> None:
    for name, before in itertools.product(CommandName, SUCCESSFUL):
        assert before not in COMMANDS[name]


def test_receipts_rank_from_engagement_to_spam() -> None:
    assert set(RECEIPT_RANK) == set(ReceiptEvent)
    ranked = sorted((rank, event) for event, rank in RECEIPT_RANK.items() if rank)
    assert [event for _, event in ranked] == [
        ReceiptEvent.QUEUED,
        ReceiptEvent.SENT,
        ReceiptEvent.FAILED,
        ReceiptEvent.DELIVERED,
        ReceiptEvent.SPAM_REPORT,
    ]
    unranked = {event for event, rank in RECEIPT_RANK.items() if not rank}
    assert unranked == {ReceiptEvent.OPEN, ReceiptEvent.CLICK, ReceiptEvent.UNSUBSCRIBE}


@pytest.mark.parametrize("name", [CommandName.RETRY, CommandName.RESEND])
def test_a_request_that_was_never_accepted_can_only_be_acknowledged(name: CommandName) -> None:
    assert after_command(make_command(name), S.FAILED, mode=Mode.STANDARD, accepted=False) is None
    acknowledge = make_command(CommandName.ACKNOWLEDGE)
    assert after_command(acknowledge, S.FAILED, mode=Mode.STANDARD, accepted=False) is S.FAILED
