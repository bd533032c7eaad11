"""The servers that tests start: replication, failover, suspension, restore, PgBouncer, and their end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support.pgbouncer import PgBouncer
from support.postgres_cluster import PostgresCluster
from support.postgres_servers import skip_if_missing
from support.private_postgres import PrivatePostgres
from support.tcp_proxy import TcpProxy

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresCluster]:
    with skip_if_missing(), PostgresCluster() as cluster:
        cluster.primary.query("CREATE TABLE numbers (number int)")
        yield cluster


def _insert(node: PrivatePostgres, number: int) -> None:
    node.query(f"INSERT INTO numbers VALUES ({number})")


def _numbers(url: str) -> list[int]:
    with psycopg.connect(url, connect_timeout=5) as connection:
        return sorted(row[0] for row in connection.execute("SELECT number FROM numbers"))


def test_a_promotion_loses_only_the_commits_that_were_held_back(cluster: PostgresCluster) -> None:
    cluster.primary.query("TRUNCATE numbers")
    _insert(cluster.primary, 1)
    cluster.wait_for_standby()
    cluster.hold_replication()
    _insert(cluster.primary, 2)
    cluster.primary.stop()
    former = cluster.promote()
    assert _numbers(cluster.url) == [1]
    cluster.rebuild_standby()
    assert cluster.standby is former
    _insert(cluster.primary, 3)
    cluster.wait_for_standby()
    assert _numbers(former.url) == [1, 3]


def test_a_suspended_server_accepts_connections_and_answers_nothing(cluster: PostgresCluster) -> None:
    cluster.primary.freeze()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(cluster.primary.url, connect_timeout=2)
    cluster.primary.thaw()
    assert cluster.primary.query("SELECT 1") == [(1,)]


def test_a_fenced_server_refuses_writes_also_in_open_sessions(cluster: PostgresCluster) -> None:
    with psycopg.connect(cluster.primary.url, autocommit=True) as before:
        before.execute("INSERT INTO numbers VALUES (1)")
        cluster.primary.fence()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            before.execute("INSERT INTO numbers VALUES (2)")
        cluster.primary.fence(end_sessions=True)
        with pytest.raises(psycopg.OperationalError):
            before.execute("SELECT 1")
    cluster.primary.unfence()
    _insert(cluster.primary, 3)


def test_synchronous_replication_keeps_every_commit(cluster: PostgresCluster) -> None:
    cluster.synchronous = True
    cluster.rebuild_standby()
    cluster.primary.query("TRUNCATE numbers")
    for number in range(20):
        _insert(cluster.primary, number)
    cluster.primary.stop()
    cluster.promote()
    assert _numbers(cluster.url) == list(range(20))
    cluster.synchronous = False
    cluster.rebuild_standby()


def test_a_proxy_swallows_delays_and_cuts(cluster: PostgresCluster) -> None:
    with TcpProxy(cluster.primary.port) as proxy:
        url = cluster.primary.url.replace(str(cluster.primary.port), str(proxy.port))
        with psycopg.connect(url, autocommit=True) as connection:
            proxy.swallow()
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(url, connect_timeout=2)
            proxy.resume()
            proxy.delay(0.05)
            began = time.monotonic()
            assert connection.execute("SELECT 1").fetchone() == (1,)
            assert time.monotonic() - began >= 0.1, "the statement and its result were each delayed"
            proxy.cut()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(url)
        proxy.resume()
        psycopg.connect(url).close()


def test_a_pooler_that_was_killed_comes_back_on_its_port(cluster: PostgresCluster) -> None:
    with skip_if_missing(), PgBouncer(cluster.primary.url) as pooler:
        with psycopg.connect(pooler.url) as connection:
            pooler.restart()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        psycopg.connect(pooler.url).close()


@pytest.mark.parametrize("until", ["marked", None])
def test_a_restored_server_has_the_state_of_that_time(until: str | None) -> None:
    with skip_if_missing(), PrivatePostgres(archive=True, fsync=False) as server:
        server.query("CREATE TABLE numbers (number int)")
        _insert(server, 1)
        backup = server.base_backup("backup")
        _insert(server, 2)
        server.restore_point("marked")
        _insert(server, 3)
        server.restore(backup, until=until)
        assert _numbers(server.url) == ([1, 2] if until else [1])
        _insert(server, 4)
        [(segment,)] = server.query("SELECT pg_walfile_name(pg_current_wal_lsn())")
        assert segment.startswith("00000002" if until else "00000001")


PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
from support.private_postgres import PrivatePostgres
server = PrivatePostgres(fsync=False).__enter__()
server.freeze()
print(server._process.pid, server._folder.path, flush=True)
time.sleep(600)
"""


def test_a_suspended_server_ends_with_the_process_that_started_it(cluster: PostgresCluster) -> None:
    command = [sys.executable, "-c", PROGRAM.format(tests=str(TESTS))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid, folder = starter.stdout.readline().split()
        assert Path(f"/proc/{pid}").exists()
        starter.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while Path(folder).exists():
        assert time.monotonic() < until, "the folder is still there"
        time.sleep(0.01)
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or " Z " in stat.read_text()
