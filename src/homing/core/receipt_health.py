"""Whether receipts say that a provider fails although it takes everything. Pure: sums in, a verdict out."""

from __future__ import annotations

from msgspec import Struct


class ReceiptPolicy(Struct, frozen=True, kw_only=True):
    """When receipts open a breaker. Cautious: pausing a good provider costs more than a late pause."""

    bad_share: float = 50.0
    """Per cent of the receipts of a window that say `failed` through no fault of the recipient."""
    bad_of: int = 50
    """Fewer receipts than this in a window say nothing."""
    window_ms: int = 15 * 60_000
    stopped_after_ms: int = 2 * 3_600_000
    """How long no receipt at all came while messages were sent."""
    stopped_of: int = 100
    """How many messages must have been sent in that time."""
    usual_share: float = 90.0
    """Only a provider that had reported on this many per cent in the day before is missed when it stops."""
    pause_ms: int = 10 * 60_000
    """How long the breaker stays open; then it is tried like any other. 0: receipts open no breaker."""


class Traffic(Struct, frozen=True):
    """What was sent through a provider in some time, and what was heard of it."""

    sent: int = 0
    delivered: int = 0
    bounced: int = 0

    @property
    def heard(self) -> int:
        return self.delivered + self.bounced

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(self.sent + other.sent, self.delivered + other.delivered, self.bounced + other.bounced)

    def minus(self, other: Traffic) -> Traffic:
        return Traffic(self.sent - other.sent, self.delivered - other.delivered, self.bounced - other.bounced)


def turned_bad(window: Traffic, policy: ReceiptPolicy) -> str | None:
    """Why the receipts of this window open the breaker; None: they do not."""
    if window.heard < max(1, policy.bad_of):
        return None
    share = 100.0 * window.bounced / window.heard
    if share < policy.bad_share:
        return None
    minutes = policy.window_ms // 60_000
    return f"{share:.0f} % of {window.heard} receipts in {minutes} minutes say that it did not arrive"


def may_have_stopped(window: Traffic, policy: ReceiptPolicy) -> bool:
    """Enough was sent, and nothing was heard: worth a look at how it was before."""
    return window.heard <= 0 and window.sent >= max(1, policy.stopped_of)


def stopped(window: Traffic, before: Traffic, policy: ReceiptPolicy) -> str | None:
    """Why the silence of this window opens the breaker; `before` is the traffic of the day before it."""
    if not may_have_stopped(window, policy) or before.sent < max(1, policy.stopped_of):
        return None
    usual = 100.0 * before.heard / before.sent
    if usual < policy.usual_share:
        return None
    return f"no receipt for {window.sent} messages, where {usual:.0f} % were usual"
