"""Detects from receipts that a provider accepts messages but does not deliver them. Pure."""

from __future__ import annotations

from msgspec import Struct

from homing.core.bounds import Count, DurationMs, Percentage


class ReceiptHealthPolicy(Struct, frozen=True, kw_only=True):
    """When receipts open a breaker.

    The defaults are cautious, because a needless pause of the provider does more harm than a late one.
    """

    bad_share: Percentage = 50.0
    """Percentage of failed receipts in a window that opens the breaker. Failures caused by the recipient do
    not count."""
    bad_of: Count = 50
    """Minimum number of receipts in a window. With fewer, the percentage is ignored."""
    window_ms: DurationMs = 15 * 60_000
    """Length of the window in which failed receipts are counted."""
    stopped_after_ms: DurationMs = 2 * 3_600_000
    """Time without any receipt, while messages are sent, that opens the breaker."""
    stopped_of: Count = 100
    """Minimum number of messages sent in that time. With fewer, missing receipts are ignored."""
    usual_share: Percentage = 90.0
    """Minimum percentage of messages with a receipt on the day before. Below it, missing receipts are
    considered normal."""
    pause_ms: DurationMs = 10 * 60_000
    """How long the breaker stays open before its trial. 0 means that receipts never open a breaker."""


class ReceiptCounts(Struct, frozen=True):
    """Number of messages sent through a provider in a period, and of the receipts for them."""

    sent: int = 0
    delivered: int = 0
    bounced: int = 0

    @property
    def final_receipts(self) -> int:
        """Number of messages with a final receipt."""
        return self.delivered + self.bounced

    def plus(self, other: ReceiptCounts) -> ReceiptCounts:
        """Returns the sum of both counts, field by field."""
        return ReceiptCounts(
            self.sent + other.sent, self.delivered + other.delivered, self.bounced + other.bounced
        )

    def minus(self, other: ReceiptCounts) -> ReceiptCounts:
        """Returns the difference of both counts, field by field."""
        return ReceiptCounts(
            self.sent - other.sent, self.delivered - other.delivered, self.bounced - other.bounced
        )


def bounce_rate_problem(window: ReceiptCounts, policy: ReceiptHealthPolicy) -> str | None:
    """Returns why the receipts of this window open the breaker, or None if they do not."""
    if window.final_receipts < max(1, policy.bad_of):
        return None
    share = 100.0 * window.bounced / window.final_receipts
    if share < policy.bad_share:
        return None
    minutes = policy.window_ms // 60_000
    return f"{share:.0f} % of {window.final_receipts} receipts in {minutes} minutes report failed delivery"


def may_have_stopped(window: ReceiptCounts, policy: ReceiptHealthPolicy) -> bool:
    """Returns True if enough messages were sent and no receipt arrived.

    Earlier traffic then shows whether this is unusual.
    """
    return window.final_receipts <= 0 and window.sent >= max(1, policy.stopped_of)


def missing_receipts_problem(
    window: ReceiptCounts, before: ReceiptCounts, policy: ReceiptHealthPolicy
) -> str | None:
    """Returns why missing receipts open the breaker, or None if they do not.

    `before` has the counts of the day before.
    """
    if not may_have_stopped(window, policy) or before.sent < max(1, policy.stopped_of):
        return None
    usual = 100.0 * before.final_receipts / before.sent
    if usual < policy.usual_share:
        return None
    return f"no receipt for {window.sent} messages; usually {usual:.0f} % of them get one"
