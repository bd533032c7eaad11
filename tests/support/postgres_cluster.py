"""Two PostgreSQL servers with streaming replication, for tests of failover."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from support.guarded_folder import GuardedFolder
from support.private_postgres import PrivatePostgres
from support.tcp_proxy import TcpProxy

_PATIENCE_S = 60
_OPTIONS = {"wal_retrieve_retry_interval": "100ms"}
"""A shorter interval than the default of 5 s, by which the promotion of a standby may be late."""
_STREAMING = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
_APPLIED = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= '{lsn}'"


class PostgresCluster:
    """A primary and its standby. In synchronous replication, a commit waits until the standby has it on disk.

    The ports of the two servers never change, so one URL with both hosts stays valid through all failovers.
    """

    def __init__(self, *, synchronous: bool = False, fsync: bool = False) -> None:
        self.synchronous = synchronous
        self._fsync = fsync
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        with self._cleanup:
            folder = self._cleanup.enter_context(GuardedFolder("homing-cluster-"))
            self.nodes = tuple(
                PrivatePostgres(folder, name, fsync=self._fsync, options=_OPTIONS) for name in ("one", "two")
            )
            self.primary, self.standby = self.nodes
            self._replication = self._cleanup.enter_context(TcpProxy(self.primary.port))
            self._cleanup.enter_context(self.primary)
            self._cleanup.callback(self.standby.stop)
            self.rebuild_standby()
            self._cleanup = self._cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def url(self) -> str:
        """The URL with both servers, for a client that wants the one that accepts writes."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://homing_app@{hosts}/postgres?target_session_attrs=read-write"

    def hold_replication(self) -> None:
        """Holds all WAL back from the standby, so that a promotion loses the commits from now on.

        In synchronous replication, commits wait instead.
        """
        self._replication.swallow()

    def resume_replication(self) -> None:
        self._replication.resume()

    def wait_for_standby(self) -> None:
        """Waits until the standby has applied everything that is committed now."""
        [(lsn,)] = self.primary.query("SELECT pg_current_wal_lsn()")
        _wait(lambda: self.primary.query(_APPLIED.format(lsn=lsn)) == [(1,)])

    def promote(self) -> PrivatePostgres:
        """Promotes the standby and returns the former primary, which is left as it is.

        Stop, freeze or fence the primary first, unless the test needs two primaries at once.
        """
        self._replication.cut()  # a suspended primary must not send the standby anything more
        self.primary, self.standby = self.standby, self.primary
        self.primary.promote()
        return self.standby

    def rebuild_standby(self) -> None:
        """Makes the former primary a standby with a new copy of the data, and waits until it replicates."""
        self._replication.target = self.primary.port
        self._replication.resume()
        self.standby.become_standby_of(self._replication.port)
        _wait(lambda: self.primary.query(_STREAMING) != [])
        if self.synchronous:
            self.primary.alter_system("synchronous_standby_names", "*")
            _wait(lambda: self.primary.query(_STREAMING) == [("sync",)])


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "the standby does not follow"
        time.sleep(0.02)
