"""Prints the seeds of the day, so that the log of any run says how to repeat it."""

from __future__ import annotations

from support.fresh_seeds import DATE_VARIABLE, FRESH_CAMPAIGNS, fresh_seed, simulation_date


def pytest_report_header() -> str:
    seeds = ", ".join(str(fresh_seed(number)) for number in range(FRESH_CAMPAIGNS))
    return (
        f"fresh simulations start with seeds {seeds}; repeat them with {DATE_VARIABLE}={simulation_date()}"
        f" make test SUITES=simulation, or one with make simulate SEED={fresh_seed(0)}"
    )
