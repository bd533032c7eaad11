"""The conformance suite for providers that use HTTP. It runs them against a server that injects faults.

A provider's test file describes the provider and its responses:

    class TestMyProvider(ProviderSuite):
        @pytest.fixture
        def case(self) -> ProviderCase:
            return ProviderCase(make=…, delivery=a_delivery(Channel.SMS, "+15550100"), success=…, …)

A provider that does not use HTTP inherits only the test classes that apply to it.
"""

from __future__ import annotations

from homing.testing.provider_suite.answering import AnsweringTests
from homing.testing.provider_suite.breaking import BreakingTests
from homing.testing.provider_suite.harness import NOW_MS, ProviderCase, Stage, Told, a_delivery, stage
from homing.testing.provider_suite.keeping import KeepingTests

__all__ = [
    "NOW_MS",
    "AnsweringTests",
    "BreakingTests",
    "KeepingTests",
    "ProviderCase",
    "ProviderSuite",
    "Stage",
    "Told",
    "a_delivery",
    "stage",
]


class ProviderSuite(AnsweringTests, BreakingTests, KeepingTests):
    """All tests of the provider contract."""
