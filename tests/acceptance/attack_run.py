"""Attacks a running service as one of its tenants, over real HTTP, and reports every success.

    python tests/acceptance/attack_run.py --attacks 1000

The attacks are templates that reach for Python, values that add headers, tokens that were never issued,
webhook targets inside our own network, and other tenants' ids. Secrets are planted first: words in another
tenant's data, a variable in the service's environment, and a server on this machine that must not be called.

Three kinds need no key: forms on an unsubscribe link that are slow to parse, bytes after the head of a
request, and connections that are held open. They succeed if a request is not refused, or if the service does
not close a connection.

The attacks on the dashboard are in `page_attacks`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from select import select
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from homing.core.notifications import Channel
from homing.core.recipients.unsubscribe_links import LinkSealer, Subscription

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from page_attacks import pages

from support import template_attacks
from support.cli_driver import Cli
from support.service_process import Service, serving

LURE = "127.0.0.2"
"""The attacker's own server, the only address of this machine that webhooks may call."""
WORD = "quiet-victim-word"
SECRET = "s3cret-of-the-service"
LINK_SECRET = "what-unsubscribe-links-are-sealed-with"
SETTINGS = """\
store = "homing.db"
preset = "simple"

[http]
allow_http = true
allow_networks = ["{lure}/32"]

[providers.webhook]
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

[providers.pigeon]
kind = "file"
path = "pigeon.jsonl"
channels = ["email", "sms", "push", "chat", "queue"]

[service]
head_ms = "5s"

[unsubscribe]
secret = "{link_secret}"

[[service.jwt]]
issuer = "https://id.example.org"
audience = "homing"
algorithm = "RS256"
key = "file:jwt.pem"
tenant = "victim"
scopes = ["admin"]
"""


@dataclass
class AttackResponse:
    """The response to one attack."""

    status: int
    body: bytes
    headers: str


@dataclass
class AttackTarget:
    """The service under attack, and the successes so far."""

    service: Service
    key: str
    victim: Mapping[str, str]
    canary: Canary
    rng: random.Random
    link: str
    """The path of an unsubscribe link that was sent to the attacker."""
    sign_in_link: str = ""
    """Token of the link with which the service's operator signs in once."""
    patience_s: float = 60
    """How long the service may take to close a connection before it counts as held."""
    tries: Counter[str] = field(default_factory=Counter)
    successes: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> AttackResponse:
        """Makes one request as the attacker. Bytes are sent unchanged as the body."""
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        lines = {
            "Host": self.service.address,
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Content-Length": str(len(raw or b"")),
            "Connection": "close",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in lines.items()
        )
        return self.exchange(head.encode("utf-8", "surrogateescape") + b"\r\n" + (raw or b""))

    def connect(self) -> socket.socket:
        host, _, port = self.service.address.partition(":")
        return socket.create_connection((host, int(port)), timeout=120)

    def exchange(self, sent: bytes) -> AttackResponse:
        """Sends these bytes and reads until the service closes. The status is 0 if it does not answer."""
        answer = b""
        with self.connect() as line, suppress(ConnectionError):
            with suppress(ConnectionError):  # refused while it was being sent
                line.sendall(sent)
            while piece := line.recv(65536):
                answer += piece
        first, _, rest = answer.partition(b"\r\n")
        said, _, content = rest.partition(b"\r\n\r\n")
        status = int(first.split(b" ")[1]) if first.startswith(b"HTTP/1.1 ") else 0
        return AttackResponse(status, content, said.decode("latin-1").lower())

    def judge(self, kind: str, attack: str, told: AttackResponse, *, allowed: bool = True) -> None:
        """Counts one attack, which succeeded if the response has a secret, is a 5xx or grants access."""
        self.tries[kind] += 1
        shown = told.body + told.headers.encode()
        for word in (WORD, SECRET, "root:x:0", "x-injected: yes"):
            if word.encode() in shown:
                self.successes.append(f"{kind}: {attack[:300]} showed {word!r}")
        if told.status >= 500 and told.status not in (502, 504):
            self.successes.append(f"{kind}: {attack[:300]} broke it: {told.status} {told.body[:200]!r}")
        if not allowed and told.status < 400:
            self.successes.append(f"{kind}: {attack[:300]} was let in: {told.status}")


class Canary:
    """A server on 127.0.0.1 that must never be called, and one on another address that redirects to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        inside, lure = self._handlers()
        self.inside = ThreadingHTTPServer(("127.0.0.1", 0), inside)
        self.lure = ThreadingHTTPServer((LURE, 0), lure)

    def __enter__(self) -> Canary:
        for server in (self.inside, self.lure):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.inside, self.lure):
            server.shutdown()
            server.server_close()

    @property
    def port(self) -> int:
        return int(self.inside.server_address[1])

    def _handlers(self) -> tuple[type[BaseHTTPRequestHandler], type[BaseHTTPRequestHandler]]:
        canary = self

        class Inside(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                canary.calls.append(self.path)
                self.send_response(200)
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - http.server's own names

            def log_message(self, *_: Any) -> None: ...

        class Lure(Inside):
            def do_POST(self) -> None:
                status = int(self.path.rpartition("/")[2])
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status)
                self.send_header("Location", f"http://127.0.0.1:{canary.port}/redirected")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - http.server's own names

        return Inside, Lure


# Templates --------------------------------------------------------------------------------------------


def templates(on: AttackTarget, count: int) -> None:
    """Writes templates through the API and previews them with the attacker's data."""
    attacks = _template_attacks()
    for source, data in on.rng.sample(attacks, count):
        key = f"a{on.rng.getrandbits(40):x}"
        part = on.rng.choice(["text", "html", "subject"])
        body = {"locales": {"en-US": {"email": {"text": "x", part: source}}}, "sample": data}
        written = on.ask("PUT", f"/api/v1/templates/{key}", body)
        on.judge("templates", source, written)
        if written.status < 300:
            on.judge(
                "templates", source, on.ask("POST", f"/api/v1/templates/{key}/preview", {"locale": "en-US"})
            )


def _template_attacks() -> list[tuple[str, dict[str, Any]]]:
    kinds = (
        template_attacks.reaching,
        template_attacks.chains,
        template_attacks.formats,
        template_attacks.forbidden_filters,
        template_attacks.includes,
    )
    return [attack for kind in kinds for attack in kind()]


# Headers ----------------------------------------------------------------------------------------------

_BREAKS = (
    "\r\n",
    "\n",
    "\r",
    "\x00",
    "\x0b",
    "\x85",
    "\u2028",
    "%0d%0a",
    "\\r\\n",
    "\r\n ",
    "=?utf-8?q?=0D=0A?=",
)


def headers(on: AttackTarget, count: int) -> None:
    """Puts line breaks into everything that becomes a header, here or at a provider."""
    for number in range(count):
        brings = f"x{on.rng.choice(_BREAKS)}X-Injected: yes{on.rng.choice(_BREAKS)}"
        place = (
            "Idempotency_Key",
            "Accept_Language",
            "X_Request_Id",
            "Host",
            "subject",
            "header",
            "address",
            "id",
        )
        where = place[number % len(place)]
        mail = {
            "recipient": {"email": "a@example.org"},
            "channel": "email",
            "content": {"subject": "s", "body": "b"},
        }
        if where == "subject":
            mail["content"] = {"subject": brings, "body": "b"}
        elif where == "header":
            mail["content"] = {"body": "b", "headers": {"X-Mine": brings, f"X-{brings}": "1"}}
        elif where == "address":
            mail["recipient"] = {"email": f"a{brings}@example.org"}
        elif where == "id":
            told = on.ask("GET", f"/api/v1/notifications/{quote(brings)}")
            on.judge("headers", f"{where} {brings!r}", told)
            continue
        extra = {where: brings.replace("\r\n", "\r\n ")} if where[0].isupper() else {}
        told = on.ask("POST", "/api/v1/notifications/send", mail, **extra)
        on.judge("headers", f"{where} {brings!r}", told)


# Tokens -----------------------------------------------------------------------------------------------


def tokens(on: AttackTarget, count: int) -> None:
    """Uses tokens without a signature, or signed with another key."""
    public = (on.service.folder / "jwt.pem").read_bytes()
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for _ in range(count):
        on.judge("tokens", token := _token(on.rng, public, other), _with(on, token), allowed=False)


def _with(on: AttackTarget, token: str) -> AttackResponse:
    return on.ask("GET", "/api/v1/notifications", Authorization=f"Bearer {token}")


def _token(rng: random.Random, public: bytes, other: rsa.RSAPrivateKey) -> str:
    import jwt

    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": "https://id.example.org",
        "aud": "homing",
        "sub": "mallory",
        "iat": now,
        "exp": now + 600,
        **rng.choice(({}, {"tenant": "victim"}, {"scope": "admin"}, {"exp": now + 10**9}, {"nbf": 0})),
    }
    head: dict[str, Any] = {
        "typ": "JWT",
        **rng.choice(
            ({}, {"kid": "../jwt.pem"}, {"kid": "' OR 1=1 --"}, {"jku": f"http://{LURE}/k"}, {"crit": []})
        ),
    }
    match rng.randrange(6):
        case 0:
            return _raw({**head, "alg": rng.choice(("none", "None", "NONE", "nOnE", ""))}, claims, b"")
        case 1:  # the public key as a secret
            return _raw(
                {**head, "alg": rng.choice(("HS256", "RS256", "HS512"))},
                claims,
                rng.choice((public, public.strip())),
            )
        case 2:
            return jwt.encode(claims, other, "RS256", headers=head)
        case 3:
            short = _raw({**head, "alg": "HS256"}, claims, rng.randbytes(rng.randrange(1, 64)))
            return short[: rng.randrange(len(short))] + "A" * rng.randrange(5)
        case 4:  # a well-formed key that was never issued
            return f"hm_{rng.getrandbits(60):x}_{base64.urlsafe_b64encode(rng.randbytes(32)).decode()}"
        case _:
            whole = jwt.encode(claims, other, "RS256", headers={"jwk": {"kty": "RSA"}, **head})
            place = rng.randrange(len(whole))
            return whole[:place] + rng.choice("AZaz09-_.") + whole[place + 1 :]


def _raw(head: Any, claims: Any, key: bytes) -> str:
    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    said = f"{part(json.dumps(head).encode())}.{part(json.dumps(claims).encode())}"
    signature = hmac.digest(key, said.encode(), hashlib.sha256) if key else b""
    return f"{said}.{part(signature)}"


# Webhook targets --------------------------------------------------------------------------------------


def targets(on: AttackTarget, count: int) -> None:
    """Targets this machine under its many names, and by a redirect. The canary notices every call."""
    port = on.canary.port
    for _ in range(count):
        url = _target(on.rng, port, on.canary)
        told = on.ask(
            "POST",
            "/api/v1/notifications/send",
            {
                "recipient": {"url": url},
                "channel": "webhook",
                "content": {"data": {"a": 1}},
                "synchronous": True,
            },
        )
        on.judge("targets", url, told, allowed=False)
    for path in on.canary.calls:
        on.successes.append(f"targets: the server inside was called at {path}")


def _target(rng: random.Random, port: int, canary: Canary) -> str:
    names = (
        *(
            "127.0.0.1",
            "localhost",
            "LOCALHOST",
            "localhost.",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
        ),
        *("0177.0.0.1", "017700000001", "127.0.0.1.", "0", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]"),
        *(
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:0:0:1]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[fe80::1]",
        ),
        *("①②⑦.⓪.⓪.①", "127。0。0。1", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "localhost%00.example.org", "localhost#.example.org"),
        *(
            "example.org@127.0.0.1",
            "127.0.0.1\\@example.org",
            "127.0.0.1%2f@example.org",
            "10.0.0.1",
            "192.168.0.1",
        ),
        *(
            "169.254.169.254",
            "[fd00:ec2::254]",
            "metadata.google.internal",
            "172.16.0.1",
            "100.64.0.1",
            "224.0.0.1",
        ),
        socket.gethostname(),
    )
    if rng.random() < 0.2:
        status = rng.choice((301, 302, 303, 307, 308))
        return f"http://{LURE}:{canary.lure.server_address[1]}/{rng.getrandbits(24):x}/{status}"
    scheme = rng.choice(("http", "http", "https", "HTTP", "gopher", "file", "ftp", "dict", "//http"))
    path = rng.choice(("/", "/latest/meta-data", "/?x=1", "/..//", "/%0d%0aX-Injected:%20yes"))
    return f"{scheme}://{rng.choice(names)}:{port}{path}"


# Other tenants ----------------------------------------------------------------------------------------


def tenants(on: AttackTarget, count: int) -> None:
    """Uses the victim's ids in every path that takes one, and its name wherever one might be accepted."""
    id, template, person = (on.victim[name] for name in ("notification", "template", "recipient"))
    reads = (
        *(f"/api/v1/notifications/{id}{tail}" for tail in ("", "/attempts", "/explain", "/retry-info")),
        *(f"/api/v1/templates/{template}{tail}" for tail in ("", "/versions", "/versions/1")),
        *(f"/api/v1/recipients/{person}{tail}" for tail in ("", "/preferences")),
        *("/api/v1/notifications", "/api/v1/dead-letters", "/api/v1/queue/pending", "/api/v1/suppressions"),
        *("/api/v1/audit", "/api/v1/keys", "/api/v1/tenants", "/api/v1/tenants/victim", "/api/v1/jobs"),
    )
    writes = (
        *(("POST", f"/api/v1/notifications/{id}/{verb}") for verb in ("cancel", "reschedule", "resolve")),
        *(("POST", f"/api/v1/dead-letters/{id}/{verb}") for verb in ("acknowledge", "resend")),
        ("POST", f"/api/v1/admin/notifications/{id}/retry"),
        ("PUT", f"/api/v1/policies/{WORD}"),
        ("POST", "/api/v1/tenants/victim/disable"),
        ("DELETE", f"/api/v1/recipients/{person}"),
        ("DELETE", f"/api/v1/templates/{template}"),
        ("POST", "/api/v1/keys"),
    )
    names = ("victim", "VICTIM", "*", "victim\x00", "../victim", "victim' OR '1'='1", "%", "default")
    for _ in range(count):
        name = on.rng.choice(names)
        liars = {
            "X_Tenant": name,
            "X_Tenant_Id": name,
            "Tenant": name,
            "X_Forwarded_User": name,
            "X_Admin_Override": "true",
            "X_Original_URL": "/api/v1/tenants",
        }
        liar, value = on.rng.choice(list(liars.items()))
        extra = {liar: value.replace("\x00", "")}
        if on.rng.random() < 0.6:
            path = _disguised(on.rng, on.rng.choice(reads))
            joined = (
                f"{path}{'&' if '?' in path else '?'}tenant={quote(name)}" if on.rng.random() < 0.5 else path
            )
            told = on.ask("GET", joined, **extra)
            on.judge("tenants", f"GET {joined} {extra}", told)
        else:
            method, path = on.rng.choice(writes)
            body = on.rng.choice(({}, {"tenant": name}, {"why": "x", "tenant": name}, {"status": "failed"}))
            told = on.ask(method, _disguised(on.rng, path), body, **extra)
            on.judge("tenants", f"{method} {path} {body} {extra}", told, allowed=False)


def _disguised(rng: random.Random, path: str) -> str:
    """Writes the same path as a careless router might read it."""
    match rng.randrange(6):
        case 0:
            return path.replace("/api/", "/api//", 1)
        case 1:
            return path.replace("/api/v1/", "/api/v1/webhooks/../", 1)
        case 2:
            return path.replace("/api/v1/", "/api/v1/%2e%2e/v1/", 1)
        case 3:
            return path.upper().replace("/API/V1", "/api/v1")
        case _:
            return path


# Forms on an unsubscribe link -------------------------------------------------------------------------

_SLOW = (";", '"', "a;", "a*=b;", "a*0*=b;", "=?a?q?b?= ", "(", "\\", " ", "\r\n ")
"""Texts for which a general MIME header parser needs superlinear time, repeated."""


def forms(on: AttackTarget, count: int) -> None:
    """Sends bodies above 1 KiB, which must be refused as too large, because parsing them is slow."""
    for _ in range(count):
        size, unit = on.rng.randrange(1_100, 12_000), on.rng.choice(_SLOW)
        kind, body = _form(on.rng, unit, size)
        told = on.ask("POST", on.link, body, Authorization="none", Content_Type=kind)
        attack = f"{len(body)} bytes of {kind}, {unit!r}"
        on.judge("forms", attack, told, allowed=False)
        if told.status != 413:
            on.successes.append(f"forms: {attack} was parsed: {told.status}")


def _form(rng: random.Random, unit: str, size: int) -> tuple[str, bytes]:
    filler = unit * (size // len(unit))
    part = '--b\r\nContent-Disposition: form-data; name="List-Unsubscribe"'
    match rng.randrange(4):
        case 0:
            return "multipart/form-data; boundary=b", f"{part};{filler}\r\n\r\nOne-Click\r\n--b--".encode()
        case 1:
            text = f"--b\r\nContent-Disposition: {filler}\r\n\r\nOne-Click\r\n--b--"
            return "multipart/form-data; boundary=b", text.encode()
        case 2:
            parts = f"{part}\r\n\r\nOne-Click\r\n" * (size // len(part) + 1)
            return "multipart/form-data; boundary=b", f"{parts}--b--".encode()
        case _:
            text = "List-Unsubscribe=One-Click&" + "a=%41&" * (size // 6 + 1)
            return "application/x-www-form-urlencoded", text.encode()


# Bytes after the head ---------------------------------------------------------------------------------


def trailers(on: AttackTarget, count: int) -> None:
    """Sends a key after the head, two keys, two lengths, and endless framing. All must be refused."""
    for _ in range(count):
        what, sent = _late(on.rng, on.key)
        told = on.exchange(sent)
        if told.status == 0:  # the service closed the connection without a response
            told.status = 400
        on.judge("trailers", what, told, allowed=False)


def _late(rng: random.Random, key: str) -> tuple[str, bytes]:
    read = b"GET /api/v1/notifications HTTP/1.1\r\nHost: homing\r\nConnection: close\r\n"
    probe = (
        b"GET /healthz HTTP/1.1\r\nHost: homing\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    mine, wrong = f"Authorization: Bearer {key}\r\n".encode(), b"Authorization: Bearer wrong\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    size = rng.randrange(200_000, 400_000)
    match rng.randrange(8):
        case 0:
            return "a key in a trailer", read + chunked + b"0\r\n" + mine + b"\r\n"
        case 1:
            return "a second key in a trailer", read + wrong + chunked + b"1\r\nx\r\n0\r\n" + mine + b"\r\n"
        case 2:
            return "two keys", read + b"".join(rng.sample([mine, wrong], 2)) + b"\r\n"
        case 3:
            return "two lengths", read + mine + b"Content-Length: 5\r\n" + chunked + b"0\r\n\r\n"
        case 4:
            return "two hosts", read + mine + b"Host: other\r\n\r\n"
        case 5:
            return "many trailers", probe + b"0\r\n" + b"X-A: b\r\n" * (size // 8) + b"\r\n"
        case 6:
            return "a long trailer", probe + b"0\r\nX-A: " + b"x" * size + b"\r\n\r\n"
        case _:
            return "a long extension", probe + b"1;" + b"x" * size + b"\r\nx\r\n0\r\n\r\n"


# Connections held open --------------------------------------------------------------------------------

_ASK = b"GET /healthz HTTP/1.1\r\nHost: homing\r\n\r\n"
_LATE_BODY = (
    b"POST /api/v1/notifications/send HTTP/1.1\r\nHost: homing\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1000000\r\n\r\n"
)
_HOLDS = {
    "line breaks": (_ASK, b"\r\n"),
    "a body after its answer": (_LATE_BODY, b"x"),
    "a head without an end": (_ASK, b"GET /healthz HTTP/1.1\r\nX-A: "),
}
"""Returns an answered request, and the bytes sent afterwards. A third of the attacks sends them once."""


def held(on: AttackTarget, count: int) -> None:
    """Holds connections that were answered and then send a little. The service must close each of them."""
    with ExitStack() as opened:
        lines: dict[socket.socket, tuple[str, bytes]] = {}
        for _ in range(count):
            what = on.rng.choice(list(_HOLDS))
            first, drop = _HOLDS[what]
            line = opened.enter_context(on.connect())
            line.sendall(first)
            assert line.recv(65536).startswith(b"HTTP/1.1 ")
            line.sendall(drop)
            again = on.rng.random() < 2 / 3
            lines[line] = (f"{what}, {'again and again' if again else 'once'}", drop[:2] if again else b"")
        left = _left_open(lines, time.monotonic() + on.patience_s)
        for line, (what, _) in lines.items():
            on.judge("held", what, AttackResponse(408, b"", ""))
            if line in left:
                on.successes.append(f"held: {what} keeps a connection open")


def _left_open(lines: Mapping[socket.socket, tuple[str, bytes]], until: float) -> set[socket.socket]:
    left = set(lines)
    while left and time.monotonic() < until:
        for line in [*left]:
            try:
                if lines[line][1]:
                    line.sendall(lines[line][1])
                if line in select([line], [], [], 0)[0] and not line.recv(65536):
                    left.discard(line)
            except ConnectionError:
                left.discard(line)
        time.sleep(0.1)
    return left


# The run ----------------------------------------------------------------------------------------------

KINDS: tuple[Callable[[AttackTarget, int], None], ...] = (
    *(templates, headers, tokens, targets, tenants),
    *(forms, trailers, held),
    pages,
)


@contextmanager
def battlefield(seed: int, cli: type[Cli] = Cli) -> Iterator[AttackTarget]:
    """Starts a service with a victim. `cli` runs it, so a test can plant a weakness."""
    with tempfile.TemporaryDirectory(prefix="homing-attack-") as name, Canary() as canary:
        folder = Path(name)
        own = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        (folder / "jwt.pem").write_bytes(own.public_key().public_bytes(serialization.Encoding.PEM, spki))
        (folder / "homing.toml").write_text(SETTINGS.format(lure=LURE, link_secret=LINK_SECRET))
        os.environ["PLANTED"] = SECRET  # the service reads it from here
        with serving(cli(folder)) as service:
            victim = _key(service, "victim", ["send", "read", "operate", "manage"])
            yield AttackTarget(
                service=service,
                key=_key(service, "mallory", ["send", "read", "operate", "manage"]),
                link=_link(),
                sign_in_link=_sign_in_link(service),
                victim=_planted(service, victim),
                canary=canary,
                rng=random.Random(seed),
            )


def run(attacks: int, seed: int) -> AttackTarget:
    """Runs all kinds equally often, and compares the victim's data afterwards."""
    with battlefield(seed) as on:
        before = _state(on)
        for kind in KINDS:
            kind(on, -(-attacks // len(KINDS)))
        if _state(on) != before:
            on.successes.append(f"tenants: the victim is no longer as it was: {_state(on)}")
        sent = on.service.folder / "pigeon.jsonl"
        if sent.exists() and b"\\r\\nX-Injected" in sent.read_bytes():
            on.successes.append("headers: a line break went out to a provider")
        return on


def _key(service: Service, tenant: str, scopes: list[str]) -> str:
    service.call("POST", "/api/v1/tenants", {"name": tenant})
    status, body = service.call("POST", "/api/v1/keys", {"name": "k", "tenant": tenant, "scopes": scopes})
    assert status < 300, body
    return str(json.loads(body)["text"])


def _sign_in_link(service: Service) -> str:
    """Returns the token of the link that the service prints when it starts."""
    assert service.process.stdout is not None
    for line in service.process.stdout:
        if "/ui/sign-in?link=" in line:
            return line.strip().rpartition("=")[2]
    raise AssertionError("the service prints a link")


def _link() -> str:
    """Returns the path of the unsubscribe link in an email to the attacker's own address."""
    left = Subscription("mallory", Channel.EMAIL, "news", address="mallory@example.org")
    return f"/unsubscribe/{LinkSealer(LINK_SECRET.encode()).token(left)}"


def _planted(service: Service, key: str) -> dict[str, str]:
    own = {"Authorization": f"Bearer {key}"}
    mail = {
        "recipient": {"email": f"{WORD}@example.org"},
        "channel": "email",
        "content": {"subject": WORD, "body": WORD},
        "sendAt": "2099-01-01T00:00:00Z",
    }
    id = json.loads(service.call("POST", "/api/v1/notifications/send", mail, headers=own)[1])[
        "notificationId"
    ]
    person, template = "p-4711", "welcome-4711"
    parts = {"email": {"subject": WORD, "text": WORD}}
    for path, body in (
        (f"/api/v1/recipients/{person}", {"email": f"{WORD}@example.org"}),
        (f"/api/v1/templates/{template}", {"locales": {"en-US": parts}}),
    ):
        status, said = service.call("PUT", path, body, headers=own)
        assert status < 300, said
    return {"notification": id, "recipient": person, "template": template, "key": key}


def _state(on: AttackTarget) -> list[bytes]:
    """Returns all data of the victim."""
    own = {"Authorization": f"Bearer {on.victim['key']}"}
    paths = (
        f"/api/v1/notifications/{on.victim['notification']}",
        f"/api/v1/recipients/{on.victim['recipient']}",
        f"/api/v1/templates/{on.victim['template']}",
        "/api/v1/queue/counts",
        "/api/v1/policies",
    )
    return [on.service.call("GET", path, headers=own)[1] for path in paths]


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--attacks", type=int, default=1000)
    asked.add_argument("--seed", type=int, default=1)
    options = asked.parse_args()
    done = run(options.attacks, options.seed)
    for success in done.successes:
        print(success)
    told = ", ".join(f"{kind} {count}" for kind, count in done.tries.items())
    print(f"{sum(done.tries.values())} attacks ({told}): {len(done.successes)} succeeded")
    return 1 if done.successes else 0


if __name__ == "__main__":
    sys.exit(main())
