"""A private Redis server, which tests stop, kill, suspend and restart."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from redis.asyncio import Redis

from support.guarded_folder import GuardedFolder, suspend_all
from support.postgres_servers import skip_or_fail
from support.private_postgres import free_port

_HOWTO = Path(__file__).parents[2] / "docs" / "howto"
_PATIENCE_S = 60
_MEMORY_ONLY = ("--save", "", "--appendonly", "no")
_DURABLE = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")


class NoRedis(Exception):
    """Redis is not installed on this machine."""


class RedisServer:
    """A server on a port of this machine. It ends with this process.

    `durable` keeps the data in an append-only file, so that it survives `kill` and `start`. `options` are
    more options of the program, such as `--maxmemory 1mb`. `kill`, `stop` and `start` leave the port as it
    is.
    """

    def __init__(
        self,
        *options: str,
        durable: bool = False,
        password: str = "",
        tls: tuple[Path, Path] | None = None,
        sentinel: bool = False,
    ) -> None:
        """`tls` are the files of a certificate and its key. The server then takes no other connections.
        `sentinel` starts a Sentinel instead, which watches nothing yet.
        """
        self._program = _program()
        self.port = free_port()
        self._password = password
        self._tls = tls is not None
        self.folder = GuardedFolder("homing-redis-")
        self._command = [self._program]
        if sentinel:
            config = self.folder.path / "sentinel.conf"
            config.touch()
            self.folder.own(config)
            self._command += [str(config), "--sentinel"]
        self._command += ["--bind", "127.0.0.1", "--dir", str(self.folder.path), "--port"]
        if tls is None:
            self._command.append(str(self.port))
        else:
            self._command += ["0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            for option, file in zip(("--tls-cert-file", "--tls-key-file"), tls, strict=True):
                copied = self.folder.path / file.name
                copied.write_bytes(file.read_bytes())
                self.folder.own(copied)
                self._command += [option, str(copied)]
        if not sentinel:
            self._command += _DURABLE if durable else _MEMORY_ONLY
        self._command += options
        if password:
            self._command += ["--requirepass", password]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL, without the password."""
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        return (self.folder.path / "redis.log").read_text()

    def client(self) -> Any:
        """Returns a client for the test itself, without a password. Use it with `async with`."""
        return Redis(port=self.port, protocol=2)

    async def read_stream(self, name: str) -> list[dict[bytes, bytes]]:
        """Returns the fields of all entries of a stream."""
        async with self.client() as client:
            return [fields for _, fields in await client.xrange(name)]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.folder.close()

    def start(self) -> None:
        assert self._process is None, "Redis runs already"
        self._process = self.folder.start(self._command, "redis.log")
        until = time.monotonic() + _PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.005)

    def kill(self) -> None:
        """Kills it with `kill -9`, if it runs. Without an append-only file, all data is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it as an operator does."""
        self._end(signal.SIGTERM)

    def restart(self, *, lose_data: bool = False) -> None:
        """Kills and starts it. A durable server keeps its data unless it is to lose them."""
        self.kill()
        if lose_data:
            shutil.rmtree(self.folder.path / "appendonlydir", ignore_errors=True)
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspends the process meanwhile: connections stay open, and nothing is answered."""
        assert self._process is not None
        suspend_all([self._process.pid])
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            self.folder.ended(process)

    def _answers(self) -> bool:
        """Returns True if the port is open and, without TLS, the data is loaded."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                if self._tls:
                    return True
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith((b"+PONG", b"-NOAUTH", b"-DENIED"))
        except OSError:
            return False


@contextmanager
def skip_if_no_redis() -> Iterator[None]:
    """Skips the test, or fails it in CI, if Redis is not installed."""
    try:
        yield
    except NoRedis:
        skip_or_fail("Redis: install the package redis-server")


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A server without persistence, for one test."""
    with skip_if_no_redis(), RedisServer() as server:
        yield server


@pytest.fixture
def rights(request: pytest.FixtureRequest) -> list[str]:
    """The arguments of the command ACL SETUSER on a page of the how-tos, whose name is the parameter."""
    page: str = (_HOWTO / request.param).read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith("ACL SETUSER ")]
    return line.split()[2:]


def _program() -> str:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"):
            return found
    raise NoRedis
