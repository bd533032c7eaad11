"""The conformance suite that every store must pass.

A store's test file defines a test class with a `harness` fixture (see `Harness`):

    class TestMyStore(StoreSuite):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[Harness]: ...

The suite covers all behaviour that the engine relies on.
"""

from __future__ import annotations

try:
    import pytest  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"{__name__} needs pytest, which is missing: pip install 'homing[testing]'", name=error.name
    ) from None

from homing.testing.store_suite.accept import AcceptTests
from homing.testing.store_suite.attempts_elsewhere import PriorAttemptTests
from homing.testing.store_suite.claims import ClaimTests
from homing.testing.store_suite.commands import CommandTests, ResendTests
from homing.testing.store_suite.counts import CountTests
from homing.testing.store_suite.due_times import DueTimeTests
from homing.testing.store_suite.events import EventTests
from homing.testing.store_suite.fairness import FairnessTests
from homing.testing.store_suite.harness import Harness
from homing.testing.store_suite.leases import LeaseTests
from homing.testing.store_suite.random_walk import RandomWalkTests
from homing.testing.store_suite.reads import ReadTests
from homing.testing.store_suite.receipt_effects import BounceCountTests, ReceiptEffectTests
from homing.testing.store_suite.receipt_matching import NamedReceiptTests, ReceiptOrderTests
from homing.testing.store_suite.receipts import ReceiptTests
from homing.testing.store_suite.registry import RegistryTests
from homing.testing.store_suite.settlements import AtomicityTests, SettleTests
from homing.testing.store_suite.shared_state import SharedStateTests
from homing.testing.store_suite.silent_notifications import MissingReceiptTests
from homing.testing.store_suite.upkeep import UpkeepTests
from homing.testing.store_suite.workers import WorkerTests

__all__ = ["Harness", "StoreSuite"]


class StoreSuite(
    AcceptTests,
    PriorAttemptTests,
    ClaimTests,
    DueTimeTests,
    FairnessTests,
    LeaseTests,
    SettleTests,
    CommandTests,
    ResendTests,
    ReceiptTests,
    ReceiptOrderTests,
    NamedReceiptTests,
    ReceiptEffectTests,
    BounceCountTests,
    ReadTests,
    MissingReceiptTests,
    CountTests,
    EventTests,
    UpkeepTests,
    RegistryTests,
    SharedStateTests,
    WorkerTests,
    AtomicityTests,
    RandomWalkTests,
):
    """All tests of the store contract."""
