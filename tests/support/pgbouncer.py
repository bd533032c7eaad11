"""PgBouncer in front of a PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from typing import Self
from urllib.parse import urlsplit

from support.guarded_folder import GuardedFolder
from support.private_postgres import free_port

_CONFIG = """
[databases]
* = host={host} port={port}{password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
admin_users = {user}
pool_mode = {pool_mode}
"""
_PATIENCE_S = 60


class NoPgBouncer(Exception):
    """PgBouncer is not installed on this machine."""


class PgBouncer:
    """A pooler with Debian's default settings, except for its pool mode. It ends with this process.

    `kill` and `start` leave its port as it is.
    """

    def __init__(self, url: str, *, pool_mode: str = "transaction", settings: str = "") -> None:
        """`url` is that of a database. `settings` are more lines of the file pgbouncer.ini."""
        self._program = _program()
        parts = urlsplit(url)
        self._user, self._path = parts.username or "postgres", parts.path
        self.port = free_port()
        self._folder = GuardedFolder("homing-pgbouncer-")
        password = f" password={parts.password}" if parts.password else ""
        config = _CONFIG.format(
            host=parts.hostname,
            port=parts.port or 5432,
            password=password,
            listen_port=self.port,
            folder=self._folder.path,
            user=self._user,
            pool_mode=pool_mode,
        )
        (self._folder.path / "pgbouncer.ini").write_text(f"{config}{settings}\n")
        (self._folder.path / "users.txt").write_text(f'"{self._user}" ""\n')
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self.port}{self._path}"

    @property
    def log(self) -> str:
        return (self._folder.path / "pgbouncer.log").read_text()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.close()

    def start(self) -> None:
        assert self._process is None, "PgBouncer runs already"
        self._process = self._folder.start([self._program, "pgbouncer.ini"], "pgbouncer.log")
        until = time.monotonic() + _PATIENCE_S
        while not self._accepts():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.01)

    def kill(self) -> None:
        """Kills it with `kill -9`, if it runs: all connections of clients and to the server are lost."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            self._folder.ended(process)

    def restart(self) -> None:
        self.kill()
        self.start()

    def _accepts(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


def _program() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise NoPgBouncer
    return found
