"""The seeds of the day, with which a few simulations run in addition to those with fixed seeds.

This is also a plug-in of pytest: it prints them first, so that the log of any run says how to repeat it.
"""

from __future__ import annotations

import os
from datetime import UTC, date, datetime

import pytest
from simulation.campaign import DAILY_SEEDS, first_seed_of_day

FRESH_CAMPAIGNS = 3
"""Number of campaigns with fresh seeds."""

DATE_VARIABLE = "SIMULATION_DATE"
"""Environment variable with a date such as 2026-11-17, which repeats the campaigns of that day."""


def simulation_date() -> date:
    """Returns the date of the fresh seeds: today in UTC, unless the environment has another one."""
    given = os.environ.get(DATE_VARIABLE)
    return date.fromisoformat(given) if given else datetime.now(UTC).date()


def fresh_seed(number: int) -> int:
    """Returns the first seed of the campaign with this number."""
    return first_seed_of_day(simulation_date()) + number * (DAILY_SEEDS // FRESH_CAMPAIGNS)


def pytest_report_header(config: pytest.Config) -> str | None:
    if not any("simulation" in argument for argument in config.args):
        return None
    seeds = ", ".join(str(fresh_seed(number)) for number in range(FRESH_CAMPAIGNS))
    return (
        f"fresh simulations start with seeds {seeds}; repeat them with {DATE_VARIABLE}={simulation_date()}"
        f" make test SUITES=simulation, or one with make simulate SEED={fresh_seed(0)}"
    )
