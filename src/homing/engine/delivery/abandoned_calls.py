"""Counts the calls of providers that run on after the deadline of their attempt.

They keep the slots of their provider and outlet, but no others. They may outlive the worker that started
them, so the count belongs to the process.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from homing.core.lifecycle.claims import Claim, LeaseKey, lease_key
from homing.core.notifications import Mode

_K = TypeVar("_K")


class AbandonedCalls:
    """Calls whose attempt has ended, but whose provider has not returned yet."""

    def __init__(self) -> None:
        self._claims: dict[LeaseKey, Claim] = {}
        self.shares: Counter[tuple[str, Mode, str]] = Counter()
        """(provider, mode, tenant) → calls."""
        self.outlets: Counter[str] = Counter()
        """Outlet → calls."""
        self.hosts: Counter[tuple[str, Mode, str]] = Counter()
        """(outlet, mode, tenant) → calls at outlets other than whole providers."""
        self.providers: Counter[str] = Counter()
        """Provider → calls."""

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, claim: Claim) -> bool:
        return lease_key(claim) in self._claims

    def add(self, claim: Claim) -> None:
        """Counts the call of this claim's attempt."""
        self._claims[lease_key(claim)] = claim
        self._count(claim, 1)

    def remove(self, claim: Claim) -> None:
        """Stops counting the call of this claim's attempt, because its provider has returned."""
        if self._claims.pop(lease_key(claim), None) is not None:
            self._count(claim, -1)

    def _count(self, claim: Claim, by: int) -> None:
        add_count(self.shares, (claim.provider, claim.mode, claim.tenant), by)
        add_count(self.outlets, claim.outlet, by)
        if claim.outlet != claim.provider:
            add_count(self.hosts, (claim.outlet, claim.mode, claim.tenant), by)
        add_count(self.providers, claim.provider, by)


def add_count(counts: Counter[_K], key: _K, number: int) -> None:
    """Adds `number` to a count, and removes the key at zero, because tenants and hosts come and go."""
    counts[key] += number
    if not counts[key]:
        del counts[key]
