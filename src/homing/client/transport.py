"""HTTP connections to the service. They are kept alive and shared by threads."""

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


class Response(Struct, frozen=True):
    """An HTTP response, read completely."""

    status: int
    headers: Mapping[str, str]
    """Header values by lowercase name."""
    body: bytes


class ServiceConnections:
    """Sends requests to one service with one API key, over at most `connections` connections at a time.

    When all connections are in use, further callers wait for one.
    """

    def __init__(
        self, url: str, key: str, *, timeout_s: float, connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", f"is {url!r}; use one like http://127.0.0.1:8080")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("key", "has characters that no API key has; check it for a line break")
        if connections < 1:
            raise ConfigError("connections", f"is {connections}; it must be at least 1")
        self._authorization = f"Bearer {key}"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._slots = threading.BoundedSemaphore(connections)
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        """Sends one request and returns the response. Raises `ServiceUnreachable` if there is none."""
        with self._slots:
            connection = self._connection()
            try:
                all_headers = {"Authorization": self._authorization, **headers}
                connection.request(method, self._base + target, body=body, headers=all_headers)
                received = connection.getresponse()
                lower = {name.lower(): value for name, value in received.getheaders()}
                response = Response(received.status, lower, received.read())
            except (OSError, HTTPException) as error:
                connection.close()
                cause = f"{type(error).__name__}: {error}".rstrip(": ")
                raise ServiceUnreachable(f"no response from {self._host}: {cause}") from error
            except BaseException:  # interrupted: a late response must not answer the next request
                connection.close()
                raise
            self._keep(connection)
            return response

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connection(self) -> HTTPConnection:
        """Returns an idle connection that is still open, or a new one."""
        while True:
            with self._lock:
                if not self._idle:
                    return self._new()
                connection = self._idle.pop()
            if not _is_closed(connection):
                return connection
            connection.close()

    def _new(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)

    def _keep(self, connection: HTTPConnection) -> None:
        if connection.sock is None:  # the response had Connection: close
            return
        with self._lock:
            self._idle.append(connection)


def _is_closed(connection: HTTPConnection) -> bool:
    """Returns True if the service has closed an idle connection, which makes its socket readable."""
    if connection.sock is None:
        return True
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return bool(waiting.poll(0))
