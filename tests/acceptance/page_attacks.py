"""Attacks on the pages of the dashboard, for `attack_run`.

The attacker has a key and a session of his own tenant, `mallory`. He wants to sign in as another person, to
act with the session of the victim, to run a script in an administrator's browser, or to read what is not his.
Each attack has a name; `vulnerable_service` removes the guard of each, so that a test can show that it would
succeed without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from attack_run import AttackResponse, AttackTarget

FORM = "application/x-www-form-urlencoded"
SCRIPT = "<img src=x onerror=alert(4711)>"
EVIL = "evil.example.org"
PATHS = ("now", "providers", "dead-letters", "find", "batches", "jobs", "recipients", "templates", "tail")


class PageAttacker:
    """Makes requests as a browser does, and notes which attacks succeeded."""

    def __init__(self, on: AttackTarget) -> None:
        self.on = on
        self.origin = f"http://{on.service.address}"
        self.mine = self.sign_in(on.key)
        self.victims = self.sign_in(on.victim["key"])
        self.admins = self.sign_in(on.service.key)
        assert self.mine, "the attacker has a session of his own"
        assert self.victims, "so does the victim"

    def get(self, path: str, cookie: str = "", **headers: str) -> AttackResponse:
        lines = {"Accept": "text/html", "Authorization": "none", "Cookie": f"homing_session={cookie}"}
        return self.on.ask("GET", path, **{**lines, **headers})

    def post(self, path: str, fields: dict[str, str] | bytes, cookie: str, **headers: str) -> AttackResponse:
        body = fields if isinstance(fields, bytes) else urlencode(fields).encode()
        lines = {
            "Authorization": "none",
            "Content_Type": FORM,
            "Cookie": f"homing_session={cookie}",
            "Origin": self.origin,
        }
        return self.on.ask("POST", path, body, **{**lines, **headers})

    def begin_stream(self, path: str, cookie: str) -> AttackResponse:
        """Returns the beginning of a stream, which may last for hours."""
        lines = (f"Host: {self.on.service.address}", f"Cookie: homing_session={cookie}", "", "")
        head = "\r\n".join((f"GET {path} HTTP/1.1", *lines))
        answer = b""
        with self.on.connect() as line:
            line.sendall(head.encode())
            while b"\r\n\r\n" not in answer and (piece := line.recv(65536)):
                answer += piece
        first, _, rest = answer.partition(b"\r\n")
        return type(self.get("/ui/sign-in"))(int(first.split(b" ")[1]), b"", rest.decode("latin-1").lower())

    def try_credential(self, credential: str, **headers: str) -> AttackResponse:
        return self.post("/ui/sign-in", {"credential": credential}, "", **headers)

    def sign_in(self, key: str) -> str:
        return cookie_of(self.try_credential(key))

    def form_token(self, cookie: str) -> str:
        found = re.search(rb'name="form_token" value="([0-9a-f]+)"', self.get("/ui/now", cookie).body)
        return found[1].decode() if found else ""

    def judge(self, name: str, attack: str, told: AttackResponse, success: bool) -> None:
        """Counts an attack. A secret in the response and a failure of the service are successes too."""
        self.on.judge("pages", f"{name}, {attack}", told)
        if success:
            self.on.successes.append(f"pages: {name}, {attack[:200]}: {told.status}")


def cookie_of(told: AttackResponse) -> str:
    found = re.search(r"set-cookie: homing_session=([0-9a-f]+)", told.headers)
    return found[1] if found else ""


def forged_forms(by: PageAttacker) -> None:
    """Another site makes the victim's browser send a form: the cookie is right, but not the rest."""
    path = f"/ui/notifications/{by.on.victim['notification']}/cancel"
    right, other = by.form_token(by.victims), by.form_token(by.mine)
    own: dict[str, str] = {"form_token": right}
    tries: list[tuple[str, dict[str, str], dict[str, str]]] = [
        ("no token", {}, {}),
        ("an empty token", {"form_token": ""}, {}),
        ("the attacker's token", {"form_token": other}, {}),
        ("another origin", own, {"Origin": f"http://{EVIL}"}),
        ("the origin as a prefix", own, {"Origin": f"{by.origin}.{EVIL}"}),
        ("the origin as a user name", own, {"Origin": f"{by.origin}@{EVIL}"}),
        ("a null origin", own, {"Origin": "null"}),
        ("an empty origin", own, {"Origin": ""}),
        ("a cross-site fetch", own, {"Sec_Fetch_Site": "cross-site"}),
        ("a same-site fetch", own, {"Sec_Fetch_Site": "same-site"}),
    ]
    for attack, fields, headers in tries:
        told = by.post(path, {"why": "x", **fields}, by.victims, **headers)
        by.judge("csrf", attack, told, told.status < 400)
    told = by.post("/ui/sign-in", {"credential": by.on.key}, "", Origin=f"http://{EVIL}")
    by.judge("csrf", "sign in as the attacker from another site", told, bool(cookie_of(told)))


def hostile_text(by: PageAttacker) -> None:
    """The attacker stores a script in every field that a page shows."""
    key = {"Authorization": f"Bearer {by.on.key}"}
    request = {
        "recipient": {"id": SCRIPT, "email": "mallory@example.org"},
        "channel": "email",
        "content": {"subject": SCRIPT, "text": SCRIPT, "body": SCRIPT, "html": SCRIPT},
        "metadata": {SCRIPT: SCRIPT, "note": SCRIPT},
        "sendAt": "2099-01-01T00:00:00Z",
    }
    status, body = by.on.service.call("POST", "/api/v1/notifications/send", request, headers=key)
    assert status == 202, body
    id = json.loads(body)["notificationId"]
    why = {"form_token": by.form_token(by.mine), "why": SCRIPT, "delay": "1h"}
    by.post(f"/ui/notifications/{id}/reschedule", why, by.mine)
    for path in (
        f"notifications/{id}",
        *PATHS,
        f"find?q={quote(SCRIPT)}&type={quote(SCRIPT)}",
        f"batches?id={quote(SCRIPT)}",
        f"recipients?id={quote(SCRIPT)}",
        f"templates/{quote(SCRIPT, safe='')}",
        f"now?done={quote(SCRIPT)}",
    ):
        told = by.get(f"/ui/{path}", by.mine)
        by.judge("xss", path, told, SCRIPT.encode() in told.body)
    told = by.get(f"/ui/notifications/{id}/message", by.mine)
    confined = "sandbox" in told.headers and "default-src 'none'" in told.headers
    by.judge("xss", "the message without its sandbox", told, SCRIPT.encode() in told.body and not confined)


def missing_headers(by: PageAttacker) -> None:
    """Pages in a frame of another site, and pages that a cache keeps."""
    for path in ("/", "/ui/sign-in", *(f"/ui/{path}" for path in PATHS), "/ui/nowhere"):
        told = by.get(path, by.mine)
        said = told.headers
        framed = "frame-ancestors 'none'" not in said or "x-frame-options: deny" not in said
        by.judge("framing", path, told, framed)
        by.judge("cache", path, told, "cache-control: no-store" not in said)
        scripts = "script-src 'self'" not in said or "unsafe" in said or "nosniff" not in said
        by.judge("policy", path, told, scripts)


def other_tenants(by: PageAttacker) -> None:
    """The attacker's session on addresses of the victim's data."""
    victim, word = by.on.victim, by.on.victim["notification"]
    batch = json.loads(
        by.on.service.call(
            "GET", f"/api/v1/notifications/{word}", headers={"Authorization": f"Bearer {victim['key']}"}
        )[1]
    )["batchId"]
    for path in (
        f"notifications/{word}",
        f"notifications/{word}/message",
        f"batches/{batch}",
        f"find?q={word}",
        f"find?batch={batch}",
        "find?tenant=victim",
        f"export?batch={batch}",
        f"recipients?id={victim['recipient']}",
        f"templates/{victim['template']}",
        "inbox",
        "tail",
    ):
        told = by.get(f"/ui/{path}", by.mine)
        # `judge` looks for the victim's word.
        by.judge("theft", path, told, told.status < 300 and b"p-4711@" in told.body)
    for name in ("notification", "batch"):
        told = by.begin_stream(f"/ui/live/{name}?id={word}", "")
        by.judge("theft", f"the stream {name} without a session", told, told.status < 300)
    told = by.post(
        f"/ui/notifications/{word}/cancel", {"form_token": by.form_token(by.mine), "why": "x"}, by.mine
    )
    by.judge("theft", "cancel the victim's", told, told.status < 400)
    for path in ("keys", "audit"):
        told = by.get(f"/ui/{path}", by.mine)
        by.judge("theft", f"{path} without the scope", told, told.status < 300)


def stolen_sessions(by: PageAttacker) -> None:
    """Cookies that are not sessions: guessed, made from what the store has, or chosen beforehand."""
    rng = by.on.rng
    for attack, cookie in (
        ("the digest in the store", sha256(by.victims.encode()).hexdigest()),
        ("the token of a form", by.form_token(by.victims)),
        ("a key", by.on.victim["key"]),
        ("a guess", f"{rng.getrandbits(256):064x}"),
        ("half of it", by.victims[:32]),
        ("upper case", by.victims.upper() + "0"),
        ("nothing", ""),
        ("a very long one", "a" * 3_000),
    ):
        told = by.get("/ui/now", cookie)
        by.judge("session", attack, told, told.status == 200)
    chosen = "c" * 64
    told = by.post("/ui/sign-in", {"credential": by.on.key}, chosen)
    by.judge("session", "a session that the attacker chose", told, cookie_of(told) == chosen)
    told = by.get("/ui/now", chosen)
    by.judge("session", "the session that he chose, after a sign-in", told, told.status == 200)


def ended_sessions(by: PageAttacker) -> None:
    """A session after its key was revoked, and after signing out."""
    service = by.on.service
    status, body = service.call(
        "POST", "/api/v1/keys", {"name": "lost", "tenant": "mallory", "scopes": ["read", "operate"]}
    )
    assert status < 300, body
    made = json.loads(body)
    lost = by.sign_in(made["text"])
    assert by.get("/ui/now", lost).status == 200
    token = by.form_token(lost)
    status, body = service.call("POST", f"/api/v1/keys/{made['key']['id']}/revoke")
    assert status < 300, body
    for attack, told in (
        ("a page after the key was revoked", by.get("/ui/now", lost)),
        ("a stream after the key was revoked", by.begin_stream("/ui/live/now?at=now", lost)),
        (
            "an action after the key was revoked",
            by.post("/ui/notifications/x/cancel", {"form_token": token, "why": "x"}, lost),
        ),
    ):
        by.judge("revoked", attack, told, told.status < 300)
    left = by.sign_in(by.on.key)
    by.post("/ui/sign-out", {"form_token": by.form_token(left)}, left)
    told = by.get("/ui/now", left)
    by.judge("revoked", "a page after signing out", told, told.status == 200)


def led_away(by: PageAttacker) -> None:
    """Redirects to another site, and addresses made from the Host header."""
    for path in (
        f"/ui/now?next=//{EVIL}",
        f"/ui/sign-in?next=http://{EVIL}",
        f"/ui//{EVIL}/",
        f"//{EVIL}/ui/now",
        f"/ui/%2f%2f{EVIL}",
        f"/ui/find?q=//{EVIL}",
        "/ui/",
        "/",
    ):
        for attack, headers in (
            (path, {}),
            (f"{path} with a Host", {"Host": EVIL}),
            (f"{path} with a forwarded host", {"X_Forwarded_Host": EVIL, "X_Forwarded_Proto": "https"}),
        ):
            told = by.get(path, "", **headers)
            target = re.search(r"^location: (.*)$", told.headers, re.MULTILINE)
            away = target is not None and bool(re.match(r"[a-z]+:|//|\\", target[1].strip()))
            by.judge("redirect", attack, told, away)
            told = by.get(path, by.mine, **headers)
            linked = re.search(rb'(?:href|src|action)="[a-z]*:?//' + EVIL.encode(), told.body)
            by.judge("host", attack, told, linked is not None)


def odd_forms(by: PageAttacker) -> None:
    """Forms that are too large, have too many fields or another encoding, all with the right token."""
    token = by.form_token(by.mine)
    path = "/ui/notifications/01977420-dfe8-782e-af72-8b4fa42485e3/cancel"
    right = urlencode({"form_token": token, "why": "x"}).encode()
    part = f'--b\r\nContent-Disposition: form-data; name="form_token"\r\n\r\n{token}\r\n--b--\r\n'.encode()
    tries: Iterator[tuple[str, bytes, str]] = iter(
        (
            ("a large field", right + b"&a=" + b"a" * 70_000, FORM),
            ("many fields", right + b"&a=1" * 100, FORM),
            ("not UTF-8", right + b"&a=%ff%fe", FORM),
            ("no UTF-8 at all", right + b"&a=\xff\xfe", FORM),
            ("multipart", part, "multipart/form-data; boundary=b"),
            ("plain text", right, "text/plain"),
            ("JSON", json.dumps({"form_token": token}).encode(), "application/json"),
            ("no type", right, ""),
        )
    )
    for attack, body, kind in tries:
        told = by.post(path, body, by.mine, Content_Type=kind)
        # A form that is read gets as far as the notification, which does not exist.
        by.judge("forms", attack, told, told.status == 404 or told.status < 400)


def used_links(by: PageAttacker) -> None:
    """A link that signs in once, used again and guessed."""
    told = by.get(f"/ui/sign-in?link={by.on.sign_in_link}")
    assert cookie_of(told), "the link works once"
    told = by.get(f"/ui/sign-in?link={by.on.sign_in_link}")
    by.judge("link", "used again", told, bool(cookie_of(told)))
    for attack, link in (
        ("empty", ""),
        ("guessed", f"{by.on.rng.getrandbits(256):064x}"),
        ("the digest in the store", sha256(by.on.sign_in_link.encode()).hexdigest()),
        ("a session", by.victims),
    ):
        told = by.get(f"/ui/sign-in?link={link}")
        by.judge("link", attack, told, bool(cookie_of(told)))


def guessed_keys(by: PageAttacker) -> None:
    """Guesses credentials until the service refuses more, which it must do."""
    rng, key = by.on.rng, by.on.victim["key"]
    throttled = False
    for number in range(40):
        guess = key[:-4] + f"{rng.getrandbits(16):04x}"
        attack = rng.choice((guess, key[:-1], key.upper(), "admin", "", key * 9))
        told = by.try_credential(attack, X_Forwarded_For=f"10.0.0.{number}")
        by.judge("guess", attack[:60], told, bool(cookie_of(told)))
        throttled = throttled or told.status == 429
    by.judge("throttle", "40 guesses from one address", told, not throttled)
    told = by.try_credential(by.on.key)
    by.judge("throttle", "and a good key among them", told, bool(cookie_of(told)))


ATTACKS: tuple[Callable[[PageAttacker], None], ...] = (
    *(forged_forms, hostile_text, missing_headers, other_tenants, stolen_sessions),
    *(ended_sessions, led_away, odd_forms, used_links),
    guessed_keys,  # the last one, because no one can sign in for a minute afterwards
)

GUARDED = frozenset(
    {"csrf", "xss", "framing", "cache", "policy", "theft", "session", "revoked", "redirect", "host", "forms"}
    | {"link", "guess", "throttle"}
)
"""Names of the attacks. Each succeeds if its guard is removed."""


def pages(on: AttackTarget, count: int) -> None:
    """Attacks the pages. All attacks are made at least once, whatever the count."""
    by = PageAttacker(on)
    for attack in ATTACKS:
        attack(by)
