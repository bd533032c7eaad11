"""The conformance suite for providers that use HTTP. It runs them against a server that injects faults.

A provider's test file describes the provider and its responses:

    class TestMyProvider(ProviderSuite):
        @pytest.fixture
        def case(self) -> ProviderCase:
            return ProviderCase(make=…, delivery=a_delivery(Channel.SMS, "+15550100"), success=…, …)

A provider that does not use HTTP inherits only the test classes that apply to it.
"""

from __future__ import annotations

try:
    import pytest  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"{__name__} needs pytest, which is missing: pip install 'homing[testing]'", name=error.name
    ) from None

from homing.testing.provider_suite.answers import ResponseTests
from homing.testing.provider_suite.broken_connections import NetworkFaultTests
from homing.testing.provider_suite.harness import (
    NOW_MS,
    ExpectedOutcome,
    ProviderCase,
    ProviderTestbed,
    a_delivery,
    open_testbed,
)
from homing.testing.provider_suite.idempotency_and_secrets import RepeatedSendTests

__all__ = [
    "NOW_MS",
    "ExpectedOutcome",
    "NetworkFaultTests",
    "ProviderCase",
    "ProviderSuite",
    "ProviderTestbed",
    "RepeatedSendTests",
    "ResponseTests",
    "a_delivery",
    "open_testbed",
]


class ProviderSuite(ResponseTests, NetworkFaultTests, RepeatedSendTests):
    """All tests of the provider contract."""
