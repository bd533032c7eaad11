"""One transfer: a libcurl handle with its options, what came back on it, and what that means.

Whether the request was written is told by three facts together. It was begun on a connection
(`PREREQFUNCTION`); libcurl saw it off: `POSTTRANSFER_TIME` is set when its last byte has left every buffer of
ours for the kernel's, over TLS and HTTP/2 too, but also when libcurl gives up; and `REQUEST_SIZE`, the bytes
that went out, is more than its body. Where one of them says no, the other side cannot have all of it.
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

from homing.providers.guard import Door
from homing.providers.http import Answer, Failure, Headers, Request
from homing.providers.sockets import Connections, Handed

ANSWER_CAP = 64 * 1024
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_URL = re.compile(r"https?://[\x21\x23-\x5b\x5d\x5f\x61-\x7a\x7e|%]+", re.IGNORECASE)
_METHOD = re.compile(r"[A-Z]{1,20}")
_BODILESS = ("GET", "HEAD")
_BLANK = (b"\r\n", b"\n")
_LIGHT = 64 * 1024
_SHORT = 1024
"""No libcurl asks for leave to send so little."""
_IDLE_S = 30
"""A connection that was idle for longer is not used again: its other end may be closing it right now."""
_GO_ON: int = pycurl.PREREQFUNC_OK
_ABORT: int = pycurl.PREREQFUNC_ABORT
_SOCKET_OK: int = pycurl.SOCKOPT_OK
_E_OK: int = pycurl.E_OK
_TOO_LARGE = 100  # CURLE_TOO_LARGE: headers without end

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
_SAYS = {
    "dns": "the host's name could not be resolved",
    "connect": "no connection could be made",
    "timeout": "no answer within {timeout_ms} ms",
    "bad_request": "the URL is not one",
    "protocol": "what came back is not HTTP",
    "tls": "the TLS handshake failed: the certificate, or what it was made for, is not accepted",
    "dropped": "the connection broke",
    "refused_address": "the host's address is not public",
}


class WireOptions(Struct, frozen=True, kw_only=True):
    """What holds for every transfer."""

    connect_timeout_ms: int
    ca_file: str
    user_agent: str
    door: Door
    resolve: Mapping[str, str]
    """`host:port` → address, instead of asking the resolver."""


def unfit(request: Request, door: Door) -> Failure | None:
    """What must not be written at all: broken or smuggling URLs and methods, addresses that are refused."""
    problem = None
    if not _URL.fullmatch(request.url):
        problem = "the URL is not a plain http or https URL in ASCII"
    elif request.method != "POST" and not _METHOD.fullmatch(request.method):
        problem = "the method is none"
    if problem:
        return Failure(code="bad_request", error=problem, written=False)
    refused = door.refusal(request.url) if request.guarded else None
    if refused:
        return Failure(code="refused_address", error=f"the URL is refused: {refused}", written=False)
    return None


def header_lines(headers: Headers, body_size: int) -> list[str] | list[bytes] | None:
    """As libcurl takes them; None where they have characters that no header may have, or would smuggle."""
    names, values = zip(*headers, strict=True) if headers else ((), ())
    fit, typed = _known(names)
    said = "".join(values)  # what no value may have, all of them together do not have either
    plain = said.isascii()
    if not fit or not ((plain and said.isprintable()) or _VALUE.fullmatch(said)):
        return None
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in headers]
    if not typed:
        lines.append("Content-Type:")  # without it libcurl would call every body a form
    if body_size > _SHORT:
        lines.append("Expect:")  # the body goes out at once: no waiting for leave
    return lines if plain else [line.encode("latin-1") for line in lines]


@lru_cache(1_024)
def _known(names: tuple[str, ...]) -> tuple[bool, bool]:
    """(may all be names, one is the type's): providers send the same ones again and again."""
    return all(map(_NAME.fullmatch, names)), "content-type" in map(str.lower, names)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Transfer:
    """A handle that is used for one request after another. What they have in common is told it once."""

    _started: bool
    """The request was begun on a connection."""
    _stopped: bool
    """By us: the connection was dead, or it would have been written a second time."""
    _went_again: bool

    def __init__(self, options: WireOptions, pool: Connections) -> None:
        self._options = options
        self._pool = pool
        self._url = ""
        self._timeout_ms = 0
        self._shape: tuple[str, bool, bool] | None = None
        self._went_again = False
        self._head: list[bytes] = []
        self._body = bytearray()
        self._made: list[int] = []
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
        set_(pycurl.SOCKOPTFUNCTION, self._on_made)
        set_(pycurl.PREREQFUNCTION, self._on_connected)
        self._forget()

    def prepare(self, request: Request, headers: list[str] | list[bytes], timeout_ms: int) -> None:
        """Makes the handle ready for this request, with these header lines. It must not be under way."""
        set_, url = self.curl.setopt, request.url
        if self._went_again:
            set_(pycurl.FRESH_CONNECT, 0)
            self._timeout_ms = 0
        self._forget()
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
            self._take_shape(*shape)
            self._shape = shape
        if self._options.resolve:
            set_(pycurl.RESOLVE, [f"{place}:{address}" for place, address in self._options.resolve.items()])
        set_(pycurl.HTTPHEADER, headers)
        if request.method not in _BODILESS:
            set_(pycurl.POSTFIELDS, request.body)

    def _take_shape(self, method: str, guarded: bool, secure: bool) -> None:
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
        """Of the time that the request was given."""
        return self._until_ms - _now_ms()

    def result(self, errno: int) -> Answer | Failure:
        """What the transfer brought; `errno` is libcurl's, 0 for a good end.

        Once the status and headers are there, the other side has said what it did with the request,
        whatever then becomes of its body.
        """
        status = _status(self._head)
        if status:
            return Answer(status, _Said(tuple(self._head)), bytes(self._body), errno != _E_OK)
        nowhere = self._turned_away and not self._made  # of its addresses, none may be connected to
        code = "refused_address" if self._refused or nowhere else _CODES.get(errno, "dropped")
        error = _SAYS[code].format(timeout_ms=self._timeout_ms)
        return Failure(code=code, error=error, written=self._written())

    def may_go_again(self) -> bool:
        """A pooled connection turned out to be dead before the request was written: nothing was lost.

        If so, the handle is ready to be used once more, for the same request and on a new connection.
        """
        left_ms = self.left_ms()
        if not self._stopped or self._went_again or left_ms <= 0 or self._written():
            return False
        self._started = self._stopped = False
        self._went_again = True
        self.curl.setopt(pycurl.FRESH_CONNECT, 1)
        self.curl.setopt(pycurl.TIMEOUT_MS, left_ms)
        return True

    def rests(self) -> bool:
        """Lets go of what it carried. False: the handle itself holds a large body on, so it is not kept."""
        self._head.clear()
        self._body.clear()
        return self._body_size <= _LIGHT

    def close(self) -> None:
        self.curl.close()

    def _written(self) -> bool:
        sent = self.curl.getinfo(pycurl.REQUEST_SIZE) > self._body_size
        return bool(self._started and sent and self.curl.getinfo(pycurl.POSTTRANSFER_TIME_T) > 0)

    def _forget(self) -> None:
        """What was found out about the last request."""
        self._made.clear()
        self._refused = self._turned_away = False
        self._started = self._stopped = self._went_again = False

    def _on_body(self, piece: bytes) -> int:
        room = ANSWER_CAP - len(self._body)
        self._body += piece[:room]
        return len(piece) if len(piece) <= room else -1  # -1 breaks the transfer off

    def _on_socket(self, purpose: int, address: Any) -> Any:
        """Before a connection is made for a guarded request: by the address that the name resolved to."""
        family, kind, protocol, place = address
        if not self._options.door.allows(place[0], place[1]):
            self._turned_away = True
            return pycurl.SOCKET_BAD
        try:
            return Handed(socket.socket(family, kind, protocol))
        except OSError:  # no more files: a failure to connect
            return pycurl.SOCKET_BAD

    def _on_made(self, descriptor: int, purpose: int) -> int:
        self._made.append(descriptor)
        return _SOCKET_OK

    def _on_connected(self, remote: str, local: str, remote_port: int, local_port: int) -> int:
        """Before a request is written to a connection, new or pooled.

        libcurl writes a request again by itself, on a new connection, when a pooled one breaks without an
        answer. The first one may have been acted on, so that is for the policy to decide: no second time.
        And it looks at pooled connections once a second only, so whether this one is alive is asked here.
        """
        if self._guarded and not self._options.door.allows(remote, remote_port):
            self._refused = True
            return _ABORT
        self._stopped = self._started or not self._pool.alive(local_port, self._made)
        self._started = True
        return _ABORT if self._stopped else _GO_ON


class _Said(Mapping[str, str]):
    """The headers of an answer, read when somebody asks for one: of most answers nobody does."""

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
    """Of a whole head; 0 where it has not come whole. A final answer may follow a provisional one (1xx)."""
    status = whole = 0
    for line in lines:
        if line.startswith(b"HTTP/"):
            word = line.split(None, 2)[1:2]
            status = int(word[0]) if word and word[0].isdigit() else 0
            if status >= 200 and lines[-1] in _BLANK:  # what is between them are its headers
                return status
        elif line in _BLANK:
            whole = status if status >= 200 else 0
    return whole


def _headers(lines: Sequence[bytes]) -> dict[str, str]:
    """Those of the last answer."""
    headers: dict[str, str] = {}
    for line in lines:
        if line.startswith(b"HTTP/"):
            headers = {}
        elif line not in _BLANK:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
    return headers
