"""The conformance suite that every provider over HTTP runs, against a server that misbehaves.

A provider's test file says what it is and what its answers look like:

    class TestMyProvider(ProviderSuite):
        @pytest.fixture
        def case(self) -> ProviderCase:
            return ProviderCase(make=…, delivery=a_delivery(Channel.SMS, "+15550100"), success=…, …)

One that does not speak HTTP derives from the parts that make sense for it.
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
    """Everything that a provider promises, as tests."""
