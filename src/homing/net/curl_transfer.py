"""One HTTP transfer: checks the request, sets up a libcurl handle, and returns a response or a failure.

A request counts as written only if three conditions hold:

- libcurl started it on a connection (`PREREQFUNCTION`).
- Its `POSTTRANSFER_TIME` is set. libcurl sets it when the last byte was passed to the kernel, over TLS and
  HTTP/2 as well, but also when it gives up.
- `REQUEST_SIZE`, the number of bytes sent, exceeds the size of the body.

If one of these conditions does not hold, the server cannot have received the complete request.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pycurl  # type: ignore[import-untyped]
from msgspec import Struct

from homing.net.curl_sockets import PooledConnections, SocketForCurl
from homing.net.http_messages import Headers, HttpRequest, HttpResponse, TransportFailure
from homing.net.ssrf_guard import CachedAddressGuard

MAX_RESPONSE_BYTES = 64 * 1024

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

_URL = re.compile(r"https?://[\x21\x23-\x5b\x5d\x5f\x61-\x7a\x7e|%]+", re.IGNORECASE)

_METHOD = re.compile(r"[A-Z]{1,20}")

_BODILESS = ("GET", "HEAD")

_BLANK = (b"\r\n", b"\n")

_MAX_REUSABLE_BODY_BYTES = 64 * 1024

_NO_EXPECT_BYTES = 1024
"""Size of a body, in bytes, up to which no version of libcurl sends `Expect: 100-continue`."""

_IDLE_S = 30
"""Idle seconds after which a connection is not reused, because the server may be about to close it."""

_CONTINUE: int = pycurl.PREREQFUNC_OK

_ABORT: int = pycurl.PREREQFUNC_ABORT

_SOCKET_OK: int = pycurl.SOCKOPT_OK

_E_OK: int = pycurl.E_OK

_STATUS_DIGITS = 3

_TOO_LARGE = 100  # CURLE_TOO_LARGE: the headers exceed libcurl's limit


_CODES = {
    pycurl.E_COULDNT_RESOLVE_HOST: "dns",
    pycurl.E_COULDNT_CONNECT: "connect",
    pycurl.E_NO_CONNECTION_AVAILABLE: "connect",
    pycurl.E_OPERATION_TIMEDOUT: "timeout",
    pycurl.E_URL_MALFORMAT: "bad_request",
    pycurl.E_UNSUPPORTED_PROTOCOL: "protocol",
    pycurl.E_FTP_WEIRD_SERVER_REPLY: "protocol",
    pycurl.E_HTTP2: "protocol",
    _TOO_LARGE: "protocol",
    pycurl.E_SSL_CONNECT_ERROR: "tls",
    pycurl.E_PEER_FAILED_VERIFICATION: "tls",
    pycurl.E_SSL_CACERT_BADFILE: "tls",
    pycurl.E_SSL_CERTPROBLEM: "tls",
    pycurl.E_SSL_CIPHER: "tls",
    pycurl.E_SSL_ISSUER_ERROR: "tls",
    pycurl.E_SSL_INVALIDCERTSTATUS: "tls",
}

_ERROR_TEXTS = {
    "dns": "the host's name could not be resolved",
    "connect": "no connection could be made",
    "timeout": "no answer within {timeout_ms} ms",
    "bad_request": "the URL is malformed",
    "protocol": "the response is not valid HTTP",
    "tls": "the TLS handshake failed; check the server's certificate and the host name it was issued for",
    "dropped": "the connection broke",
    "refused_address": "the host's address is not public",
}


class TransferOptions(Struct, frozen=True, kw_only=True):
    """Options that every transfer has in common."""

    connect_timeout_ms: int
    ca_file: str
    user_agent: str
    guard: CachedAddressGuard
    resolve: Mapping[str, str]
    """Addresses by `host:port`, used instead of a DNS lookup."""


def find_request_problem(request: HttpRequest, guard: CachedAddressGuard) -> TransportFailure | None:
    """Returns why this request must not be sent, or None if it may be sent.

    Rejects malformed URLs and methods, which could smuggle a second request. Rejects guarded requests whose
    URL is not allowed.
    """
    problem = None
    if not _URL.fullmatch(request.url):
        problem = "the URL is not a plain ASCII http or https URL"
    elif request.method != "POST" and not _METHOD.fullmatch(request.method):
        problem = "the method is not a valid HTTP method"
    if problem:
        return TransportFailure(code="bad_request", error=problem, written=False)
    refused = guard.refusal(request.url) if request.guarded else None
    if refused:
        return TransportFailure(
            code="refused_address", error=f"the URL is not allowed: {refused}", written=False
        )
    return None


def build_header_lines(headers: Headers, body_size: int) -> list[str] | list[bytes] | None:
    """Returns the header lines for libcurl, or None if a name or value contains a forbidden character."""
    names, values = zip(*headers, strict=True) if headers else ((), ())
    fit, typed = _inspect_names(names)
    joined = "".join(values)  # one check for all values: each is valid if the joined text is
    plain = joined.isascii()
    if not fit or not ((plain and joined.isprintable()) or _VALUE.fullmatch(joined)):
        return None
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in headers]
    if not typed:
        lines.append("Content-Type:")  # stops libcurl from adding the content type of a form
    if body_size > _NO_EXPECT_BYTES:
        lines.append("Expect:")  # sends the body without waiting for 100 Continue
    return lines if plain else [line.encode("latin-1") for line in lines]


@lru_cache(1_024)
def _inspect_names(names: tuple[str, ...]) -> tuple[bool, bool]:
    """Returns (all names are valid, one of them is Content-Type). Cached: providers repeat the same names."""
    return all(map(_NAME.fullmatch, names)), "content-type" in map(str.lower, names)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Transfer:
    """A libcurl handle that sends one request after another. Options shared by all requests are set once."""

    _started: bool
    """True if libcurl has started this request on a connection."""
    _stopped: bool
    """True if we stopped the request: its connection was dead, or libcurl was about to send it again."""
    _new_connection: bool
    """True if the request was started on a connection that was opened for it."""
    _unprocessed: bool
    """True if the server has refused the request's HTTP/2 stream, so that it did not process the request."""
    _retried: bool

    def __init__(self, options: TransferOptions, pool: PooledConnections) -> None:
        self._options = options
        self._pool = pool
        self._url = ""
        self._timeout_ms = 0
        self._shape: tuple[str, bool, bool] | None = None
        self._retried = False
        self._head: list[bytes] = []
        self._body = bytearray()
        self._opened_sockets: list[int] = []
        self._body_size = 0
        self._guarded = False
        self.curl = pycurl.Curl()
        set_ = self.curl.setopt
        set_(pycurl.NOSIGNAL, 1)
        set_(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        set_(pycurl.FOLLOWLOCATION, 0)
        set_(pycurl.PROXY, "")
        set_(pycurl.NETRC, pycurl.NETRC_IGNORED)
        set_(pycurl.HTTP09_ALLOWED, 0)
        set_(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS)
        set_(pycurl.SSL_VERIFYPEER, 1)
        set_(pycurl.SSL_VERIFYHOST, 2)
        set_(pycurl.TCP_KEEPALIVE, 1)
        set_(pycurl.MAXAGE_CONN, _IDLE_S)
        set_(pycurl.USERAGENT, options.user_agent)
        if options.ca_file:
            set_(pycurl.CAINFO, options.ca_file)
        set_(pycurl.HEADERFUNCTION, self._head.append)
        set_(pycurl.WRITEFUNCTION, self._on_body)
        set_(pycurl.SOCKOPTFUNCTION, self._on_socket_opened)
        set_(pycurl.PREREQFUNCTION, self._before_write)
        self._reset_state()

    def prepare(self, request: HttpRequest, headers: list[str] | list[bytes], timeout_ms: int) -> None:
        """Sets the handle up for this request. The handle must not be in flight."""
        set_, url = self.curl.setopt, request.url
        if self._retried:
            set_(pycurl.FRESH_CONNECT, 0)
            self._timeout_ms = 0
        self._reset_state()
        self._guarded = request.guarded
        self._body_size = len(request.body)
        self._until_ms = _now_ms() + timeout_ms
        if url != self._url:
            set_(pycurl.URL, url)
            self._url = url
        if timeout_ms != self._timeout_ms:
            set_(pycurl.TIMEOUT_MS, max(1, timeout_ms))
            set_(pycurl.CONNECTTIMEOUT_MS, max(1, min(self._options.connect_timeout_ms, timeout_ms)))
            self._timeout_ms = timeout_ms
        shape = (request.method, request.guarded, url[4] in "sS")
        if shape != self._shape:
            self._apply_shape(*shape)
            self._shape = shape
        if self._options.resolve:
            set_(pycurl.RESOLVE, [f"{place}:{address}" for place, address in self._options.resolve.items()])
        set_(pycurl.HTTPHEADER, headers)
        if request.method not in _BODILESS:
            set_(pycurl.POSTFIELDS, request.body)

    def _apply_shape(self, method: str, guarded: bool, secure: bool) -> None:
        set_ = self.curl.setopt
        set_(pycurl.PIPEWAIT, int(secure))
        if guarded:
            set_(pycurl.OPENSOCKETFUNCTION, self._on_socket)
        else:
            self.curl.unsetopt(pycurl.OPENSOCKETFUNCTION)
        if method in _BODILESS:
            self.curl.unsetopt(pycurl.CUSTOMREQUEST)
            set_(pycurl.NOBODY if method == "HEAD" else pycurl.HTTPGET, 1)
        else:
            set_(pycurl.NOBODY, 0)
            set_(pycurl.CUSTOMREQUEST, method)

    def left_ms(self) -> int:
        """Returns how much of the request's time is left, in milliseconds."""
        return self._until_ms - _now_ms()

    def result(self, errno: int) -> HttpResponse | TransportFailure:
        """Returns the response or the failure. `errno` is libcurl's error number, 0 for success.

        Once the status and headers have arrived there is a response, even if its body is cut off, because the
        server has already reported what it did with the request.
        """
        status = _status(self._head)
        if status:
            return HttpResponse(status, _LazyHeaders(tuple(self._head)), bytes(self._body), errno != _E_OK)
        none_allowed = self._address_refused and not self._opened_sockets
        code = "refused_address" if self._refused or none_allowed else _CODES.get(errno, "dropped")
        if errno == _E_OK and self._head and self._head[-1] in _BLANK:
            code = "protocol"  # a complete response without a valid status
        error = _ERROR_TEXTS[code].format(timeout_ms=self._timeout_ms)
        return TransportFailure(code=code, error=error, written=self._written())

    def prepare_retry(self) -> bool:
        """Prepares the handle to send the same request once more on a new connection, and returns True.

        Returns False if the request must not be repeated. It may be repeated once, and only if it was not
        written because its pooled connection was dead.
        """
        left_ms = self.left_ms()
        if not self._stopped or self._retried or left_ms <= 0 or self._written():
            return False
        self._started = self._stopped = self._unprocessed = False
        self._retried = True
        self.curl.setopt(pycurl.FRESH_CONNECT, 1)
        self.curl.setopt(pycurl.TIMEOUT_MS, left_ms)
        return True

    def rests(self) -> bool:
        """Releases the response. Returns False if the handle still holds a large request body.

        In that case the handle must be closed.
        """
        self._head.clear()
        self._body.clear()
        return self._body_size <= _MAX_REUSABLE_BODY_BYTES

    def close(self) -> None:
        self.curl.close()

    def _written(self) -> bool:
        sent = self.curl.getinfo(pycurl.REQUEST_SIZE) > self._body_size and not self._unprocessed
        return bool(self._started and sent and self.curl.getinfo(pycurl.POSTTRANSFER_TIME_T) > 0)

    def _reset_state(self) -> None:
        """Clears what was recorded about the previous request."""
        self._opened_sockets.clear()
        self._refused = self._address_refused = False
        self._started = self._stopped = self._retried = False
        self._new_connection = self._unprocessed = False

    def _on_body(self, piece: bytes) -> int:
        room = MAX_RESPONSE_BYTES - len(self._body)
        self._body += piece[:room]
        return len(piece) if len(piece) <= room else -1  # -1 aborts the transfer

    def _on_socket(self, purpose: int, address: Any) -> Any:
        """Checks the resolved address before a connection is opened for a guarded request."""
        family, kind, protocol, place = address
        if not self._options.guard.allows(place[0], place[1]):
            self._address_refused = True
            return pycurl.SOCKET_BAD
        try:
            return SocketForCurl(socket.socket(family, kind, protocol))
        except OSError:  # out of file descriptors: libcurl reports a failure to connect
            return pycurl.SOCKET_BAD

    def _on_socket_opened(self, descriptor: int, purpose: int) -> int:
        self._opened_sockets.append(descriptor)
        return _SOCKET_OK

    def _before_write(self, remote: str, local: str, remote_port: int, local_port: int) -> int:
        """Checks a connection, new or pooled, before the request is written to it.

        If a pooled connection breaks without a response, libcurl by itself sends the request again on a new
        one. The server may have acted on the first request, so only the retry policy may decide to repeat it:
        the second try is stopped here. libcurl also checks pooled connections only once per second, so this
        method checks them again.

        On a new connection, libcurl repeats a request only if the server refused its HTTP/2 stream, by
        REFUSED_STREAM or by a GOAWAY with a lower stream id. Such a request was not processed. On a pooled
        connection, a refused stream and a broken connection look the same.
        """
        if self._guarded and not self._options.guard.allows(remote, remote_port):
            self._refused = True
            return _ABORT
        if self._started:
            self._stopped, self._unprocessed = True, self._new_connection
            return _ABORT
        self._stopped = not self._pool.alive(local_port, self._opened_sockets)
        self._new_connection = bool(self._opened_sockets)
        self._started = True
        return _ABORT if self._stopped else _CONTINUE


class _LazyHeaders(Mapping[str, str]):
    """The headers of a response, parsed on first access, because most responses' headers are never read."""

    __slots__ = ("_lines", "_read")

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._read: dict[str, str] | None = None

    @property
    def _headers(self) -> dict[str, str]:
        if self._read is None:
            self._read = _headers(self._lines)
        return self._read

    def __getitem__(self, name: str) -> str:
        return self._headers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)


def _status(lines: Sequence[bytes]) -> int:
    """Returns the final status, or 0 if its headers are incomplete. Skips interim responses (1xx)."""
    status = complete = 0
    for line in lines:
        if line.startswith(b"HTTP/"):
            word = line.split(None, 2)[1:2]
            status = int(word[0]) if word and word[0].isdigit() and len(word[0]) == _STATUS_DIGITS else 0
            if status >= 200 and lines[-1] in _BLANK:  # all later lines are headers of this response
                return status
        elif line in _BLANK:
            complete = status if status >= 200 else 0
    return complete


def _headers(lines: Sequence[bytes]) -> dict[str, str]:
    """Returns the headers of the last response, which may follow interim ones."""
    headers: dict[str, str] = {}
    for line in lines:
        if line.startswith(b"HTTP/"):
            headers = {}
        elif line not in _BLANK:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
    return headers
