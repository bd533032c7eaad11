"""What others may see of the work while it goes on. They look; nothing here decides anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from homing.core.breaker import Phase
from homing.core.errors import StoreError
from homing.core.model import (
    Acceptance,
    Claim,
    ClaimBatch,
    Receipt,
    ReceiptResult,
    Settlement,
    Status,
    Submission,
)

Settled = tuple[Settlement, Claim]
"""What became of a claim, and the claim: a settlement alone does not know its lane and tenant."""


class Observer(Protocol):
    """Told of what has happened, once per batch, after the store has it.

    The calls are made on the engine's event loop and it waits for them: they must be quick and must not
    block. What they raise is logged and changes nothing.
    """

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        """The store has these, or had them before (`duplicates`, `conflict`)."""

    def claimed(self, batch: ClaimBatch) -> None:
        """A worker of this process begins with these; never empty."""

    def settled(self, batch: Sequence[Settled], refused: Collection[str]) -> None:
        """The store has written these, all but the `refused` ids: others hold their leases by now."""

    def heard(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        """Receipts of one provider were applied, or changed nothing, or wait for their message."""

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        """This process has changed a breaker, and the store has it."""

    def store_failed(self, call: str, error: StoreError) -> None:
        """A call of the store failed; the engine tries again or has told its caller."""


class Nobody:
    """The observer where there is none."""

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        """Nobody counts."""

    def claimed(self, batch: ClaimBatch) -> None:
        """Nobody counts."""

    def settled(self, batch: Sequence[Settled], refused: Collection[str]) -> None:
        """Nobody counts."""

    def heard(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        """Nobody counts."""

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        """Nobody counts."""

    def store_failed(self, call: str, error: StoreError) -> None:
        """Nobody counts."""


NOBODY: Observer = Nobody()


class Glance(Struct, frozen=True, kw_only=True):
    """One process as it is this moment: read from memory, so it costs nothing to ask."""

    working: bool
    """Its worker runs."""
    looked_ms_ago: int | None
    """Since its worker last went round; None: it has not yet, or there is none."""
    in_flight: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(lane, provider) → attempts under way."""
    settle_backlog: int = 0
    """Outcomes that wait for the store."""
    breakers: Mapping[str, Phase] = field(default_factory=dict)
    """By provider; what an operator forced wins."""


class Depths(Struct, frozen=True, kw_only=True):
    """What waits and what ended, over all tenants, as the store counts it."""

    statuses: Mapping[Status, int]
    oldest_retry_ms: int | None
    """How long the longest-waiting retry has waited; None: none waits."""


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether a process can do its work now; for each thing looked at, `ok` or what is wrong."""

    ready: bool
    store: str
    worker: str
