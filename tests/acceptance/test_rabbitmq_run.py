"""Short forms of `rabbitmq_run.py` and `rabbitmq_fuzz_run.py`, which without options are the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from rabbitmq_fuzz_run import run_fuzz
from rabbitmq_run import Plan, run_faults

from support.postgres_servers import skip_or_fail
from support.private_postgres import NoServer
from support.rabbitmq_server import PrivateRabbitMQ

SHORT = Plan(restarts=1, kills=1, suspensions=1, freezes=0, replacements=1, base_ms=300)


@pytest.mark.slow
async def test_what_the_broker_has_confirmed_comes_back_whatever_dies(
    tmp_path: Path, rabbitmq_server: PrivateRabbitMQ
) -> None:
    try:
        report = await run_faults(tmp_path, SHORT, broker=rabbitmq_server)
    except NoServer:
        skip_or_fail("programs of PostgreSQL to start a server of our own")
    assert report.good, report
    assert sum(report.faults.values()) == 5
    assert report.returned == report.published


@pytest.mark.slow
async def test_malformed_messages_reach_the_quarantine_with_a_reason(
    tmp_path: Path, rabbitmq_server: PrivateRabbitMQ
) -> None:
    report = await run_fuzz(tmp_path, rabbitmq_server, 250, seed=7, large=250)
    assert (report.malformed, report.quarantined, report.with_reason) == (250, 250, 250)
    assert (report.good, report.good_published, report.left) == (2, 2, 0)
