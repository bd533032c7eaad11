"""The conformance suite that every store must pass.

A store's test file defines a test class with a `harness` fixture (see `Harness`):

    class TestMyStore(StoreSuite):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[Harness]: ...

The suite covers all behaviour that the engine relies on.
"""

from __future__ import annotations

from homing.testing.store_suite.accepting import AcceptingTests
from homing.testing.store_suite.claiming import ClaimingTests
from homing.testing.store_suite.commands import CommandTests
from homing.testing.store_suite.counting import CountingTests
from homing.testing.store_suite.effects import BounceCountTests, ReceiptEffectTests
from homing.testing.store_suite.elsewhere import ElsewhereTests
from homing.testing.store_suite.fairness import FairnessTests
from homing.testing.store_suite.harness import Harness
from homing.testing.store_suite.leases import LeaseTests
from homing.testing.store_suite.naming import NamedReceiptTests
from homing.testing.store_suite.ordering import OrderingTests
from homing.testing.store_suite.reading import ReadingTests
from homing.testing.store_suite.receiving import ReceivingTests
from homing.testing.store_suite.registry import RegistryTests
from homing.testing.store_suite.resending import ResendTests
from homing.testing.store_suite.settling import SettlingTests
from homing.testing.store_suite.sharing import SharingTests
from homing.testing.store_suite.silence import SilenceTests
from homing.testing.store_suite.telling import TellingTests
from homing.testing.store_suite.timing import TimingTests
from homing.testing.store_suite.upkeep import UpkeepTests
from homing.testing.store_suite.walking import WalkingTests
from homing.testing.store_suite.wholeness import WholenessTests

__all__ = ["Harness", "StoreSuite"]


class StoreSuite(
    AcceptingTests,
    ElsewhereTests,
    ClaimingTests,
    TimingTests,
    FairnessTests,
    LeaseTests,
    SettlingTests,
    CommandTests,
    ResendTests,
    ReceivingTests,
    OrderingTests,
    NamedReceiptTests,
    ReceiptEffectTests,
    BounceCountTests,
    ReadingTests,
    SilenceTests,
    CountingTests,
    TellingTests,
    UpkeepTests,
    RegistryTests,
    SharingTests,
    WholenessTests,
    WalkingTests,
):
    """All tests of the store contract."""
