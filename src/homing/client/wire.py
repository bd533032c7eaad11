"""The way to the service and back: connections that are kept, and shared by threads."""

from __future__ import annotations

import select
import ssl
import threading
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from msgspec import Struct

from homing.client.errors import ServiceUnreachable
from homing.core.errors import ConfigError


class Reply(Struct, frozen=True):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Wire:
    """Requests to one service, with one key. At most `connections` at a time; who comes later waits."""

    def __init__(
        self, url: str, key: str, *, timeout_s: float, connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", f"is {url!r}; give one like http://127.0.0.1:8080")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("key", "has characters that no key has; is there a line break in it?")
        if connections < 1:
            raise ConfigError("connections", f"is {connections}; it must be at least 1")
        self._authorization = f"Bearer {key}"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._room = threading.BoundedSemaphore(connections)
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """One request and its answer; `ServiceUnreachable` where none came."""
        with self._room:
            connection = self._connection()
            try:
                said = {"Authorization": self._authorization, **headers}
                connection.request(method, self._base + target, body=body, headers=said)
                answer = connection.getresponse()
                named = {name.lower(): value for name, value in answer.getheaders()}
                reply = Reply(answer.status, named, answer.read())
            except (OSError, HTTPException) as error:
                connection.close()
                why = f"{type(error).__name__}: {error}".rstrip(": ")
                raise ServiceUnreachable(f"no answer from {self._host}: {why}") from error
            except BaseException:  # interrupted: what is still on its way must not answer the next request
                connection.close()
                raise
            self._keep(connection)
            return reply

    def close(self) -> None:
        """Closes what is not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connection(self) -> HTTPConnection:
        """One that was kept and that the service has not closed meanwhile, else a new one."""
        while True:
            with self._lock:
                if not self._idle:
                    return self._new()
                connection = self._idle.pop()
            if not _is_over(connection):
                return connection
            connection.close()

    def _new(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)

    def _keep(self, connection: HTTPConnection) -> None:
        if connection.sock is None:  # the service closes it after this answer
            return
        with self._lock:
            self._idle.append(connection)


def _is_over(connection: HTTPConnection) -> bool:
    """An idle connection that can be read is one that was closed at the other end."""
    if connection.sock is None:
        return True
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return bool(waiting.poll(0))
