"""Tells which breakers hold notifications back, and until when."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from homing.core.notifications import Notification
from homing.core.routing.breaker import BreakerGate, reopens_at
from homing.core.times import moment
from homing.engine.delivery.breakers import Breakers
from homing.engine.provider_roster import ProviderRoster


class BreakerHold(Struct, frozen=True, kw_only=True, rename="camel"):
    """A breaker that holds notifications back: they are due, but no attempt may start."""

    provider: str
    until: datetime | None
    """Time at which the breaker permits a trial. None if an operator has to release the breaker."""
    notifications: int = 1
    """Number of due notifications that were found to be held back."""

    def describe(self) -> str:
        """Returns a phrase that says which breaker holds them back, and until when."""
        until = (
            f"until {self.until.isoformat(timespec='seconds')}"
            if self.until is not None
            else "until an operator releases it"
        )
        return f"held by the breaker of {self.provider} {until}"


def find_hold(
    notification: Notification, roster: ProviderRoster, breakers: Breakers, provider: str | None = None
) -> BreakerHold | None:
    """Returns the breaker that holds a waiting notification back, or None if one of its providers is open.

    `provider` is the provider of the next attempt. If None, it is that of the notification. Uses the states
    of the breakers that were read last.
    """
    own = provider or notification.provider
    route = [] if notification.pinned else [step.provider for step in roster.route(notification.channel)]
    names = [name for name in dict.fromkeys((own, *route)) if name in roster]
    if not names or any(breakers.gate(name) is not BreakerGate.STOP for name in names):
        return None
    ends = {name: reopens_at(breakers.state(name)) for name in names}
    timed = {name: at for name, at in ends.items() if at is not None}
    if not timed:
        return BreakerHold(provider=names[0], until=None)
    first = min(timed, key=lambda name: timed[name])
    return BreakerHold(provider=first, until=moment(timed[first]))


def find_holds(
    waiting: Iterable[Notification], roster: ProviderRoster, breakers: Breakers
) -> tuple[BreakerHold, ...]:
    """Returns one hold per breaker, with the number of these notifications that it holds back."""
    counted: dict[tuple[str, datetime | None], int] = {}
    for notification in waiting:
        if (hold := find_hold(notification, roster, breakers)) is not None:
            place = (hold.provider, hold.until)
            counted[place] = counted.get(place, 0) + 1
    return tuple(
        BreakerHold(provider=provider, until=until, notifications=number)
        for (provider, until), number in counted.items()
    )
