"""The limits of transactions follow from the length of a lease."""

from __future__ import annotations

import pytest

from homing.core.retry.policy import DEFAULT_LEASE_MS
from homing.stores.postgres.session_settings import build_session_settings
from homing.stores.postgres.transaction_limits import DEFAULT_LIMITS, TransactionLimits


@pytest.mark.parametrize("lease_ms", [8_000, 15_000, DEFAULT_LEASE_MS, 600_000])
def test_a_suspended_process_and_a_call_that_waits_for_it_end_well_within_a_lease(lease_ms: int) -> None:
    limits = TransactionLimits.within_lease(lease_ms)
    assert limits.silence_ms <= lease_ms / 8
    assert limits.silence_ms < limits.lock_ms <= lease_ms / 4


def test_a_process_that_is_only_slow_keeps_its_transactions() -> None:
    assert TransactionLimits.within_lease(1).silence_ms == 1_000


def test_the_limits_with_default_leases() -> None:
    assert TransactionLimits(silence_ms=5_000, lock_ms=10_000, total_ms=20_000) == DEFAULT_LIMITS


@pytest.mark.parametrize(
    ("server_major", "has_total_limit"), [(14, False), (16, False), (17, True), (18, True)]
)
def test_only_servers_that_know_it_get_a_limit_of_the_whole_transaction(
    server_major: int, has_total_limit: bool
) -> None:
    settings = build_session_settings(DEFAULT_LIMITS, server_major)
    for statements in (settings.for_session, settings.for_transaction):
        assert ("transaction_timeout" in statements) is has_total_limit
        assert "idle_in_transaction_session_timeout" in statements
    assert bool(settings.for_reading) is has_total_limit
