"""A short run with a killed broker; `kafka_run.py --restarts 50 --kills 100` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_run import run

from support.kafka_broker import KafkaBroker


@pytest.mark.slow
async def test_killed_brokers_bridges_and_workers_lose_and_double_nothing(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    report = await run(kafka, tmp_path, restarts=1, kills=3, requests=200, seed=1)
    assert report.requests == report.deliveries.accepted == report.deliveries.sent == 200
    assert (report.deliveries.lost, report.deliveries.oversent, report.doubled) == (0, 0, 0)
    assert (report.missing_events, report.disordered, report.quarantined) == (0, 0, 0)
