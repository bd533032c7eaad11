"""Twilio's status callbacks: whether one is Twilio's (`X-Twilio-Signature`), and what it says. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Any
from urllib.parse import parse_qs, parse_qsl

from msgspec import Struct
from msgspec.structs import replace

from homing.core.callbacks import Callback, CallbackRefused, Heard
from homing.core.model import Receipt, ReceiptEvent
from homing.providers.answers import error_table
from homing.providers.failures import failed
from homing.providers.secret import Secret

Params = Sequence[tuple[str, str]]

_MOST_FIELDS = 500
_MAX_BODY_BYTES = 64 * 1024
"""Twilio's status callbacks have about 1 KiB. The body is decoded before its signature can be checked."""
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<user>[^/?#@]*@)?(?P<host>\[[^\]/?#]*\]|[^/?#:]*)(?P<port>:[0-9]*)?(?P<rest>[/?#].*)?",
    re.DOTALL,
)
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")

_EVENTS: dict[str, ReceiptEvent | None] = {
    "accepted": ReceiptEvent.QUEUED,
    "scheduled": ReceiptEvent.QUEUED,
    "queued": ReceiptEvent.QUEUED,
    "sending": ReceiptEvent.QUEUED,
    "sent": ReceiptEvent.SENT,
    "partially_delivered": ReceiptEvent.SENT,
    "delivered": ReceiptEvent.DELIVERED,
    "read": ReceiptEvent.DELIVERED,
    "undelivered": ReceiptEvent.FAILED,
    "failed": ReceiptEvent.FAILED,
    "canceled": ReceiptEvent.FAILED,
    "receiving": None,
    "received": None,
}
"""Every status of a message, and what it says of ours; None: of messages to us."""


class StatusReport(Struct, frozen=True, kw_only=True):
    """A message's status, from a callback or a look-up."""

    sid: str
    status: str
    error_code: str | None = None
    notification_id: str | None = None
    attempt: int = 0


class TwilioCallbacks:
    """Verifies and reads the callbacks of one account."""

    def __init__(self, auth_token: Secret | None, callback_url: str = "") -> None:
        self._auth_token = auth_token
        self._configured = callback_url.partition("#")[0].partition("?")[0]

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        if self._auth_token is None:
            raise CallbackRefused("auth_token is not set: Twilio signs with it, whatever key we send with")
        if len(callback.body) > _MAX_BODY_BYTES:
            raise CallbackRefused(
                f"the body has more than {_MAX_BODY_BYTES} bytes; Twilio sends no such callback"
            )
        token, signature = self._auth_token.reveal(), callback.headers.get("x-twilio-signature", "")
        # Behind a proxy the URL that Twilio called is the one we gave it, with the query it called it with.
        if not any(is_valid(token, url, callback, signature) for url in self._called(callback.url)):
            raise CallbackRefused("X-Twilio-Signature is missing, or is not of this request and auth_token")
        return read(callback, now_ms)

    def _called(self, url: str) -> tuple[str, ...]:
        _, mark, query = url.partition("?")
        ours = f"{self._configured}{mark}{query}"
        return (url, ours) if self._configured and ours != url else (url,)


def is_valid(auth_token: str, url: str, callback: Callback, signature: str) -> bool:
    """Whether Twilio, which knows the token, called this URL with this body."""
    params = _signed_params(url, callback)
    if params is None or not signature.isascii():
        return False
    # Every form is tried: how long it takes tells nothing of the signature.
    matches = [compare_digest(signature_of(auth_token, form, params), signature) for form in _forms(url)]
    return any(matches)


def signature_of(auth_token: str, url: str, params: Params) -> str:
    """The signature of a request: of a repeated name each distinct value, all in the order of code points."""
    signed = "".join(name + value for name, value in sorted(set(params)))
    text = (url + signed).encode("utf-8", "surrogatepass")
    return b64encode(digest(auth_token.encode(), text, "sha1")).decode()


def read(callback: Callback, now_ms: int) -> Heard:
    """What a verified callback says."""
    fields = dict(_form(callback) or ())
    sid = fields.get("MessageSid") or fields.get("SmsSid")
    status = fields.get("MessageStatus") or fields.get("SmsStatus")
    if not sid or not status or len(sid) > 64:
        return Heard(unreadable=1)
    report = StatusReport(
        sid=sid, status=status, error_code=fields.get("ErrorCode") or None, **_correlation(callback.url)
    )
    receipts = tuple(reported(report, now_ms))
    return Heard(receipts=receipts, ignored=0 if receipts else 1)


def reported(report: StatusReport, now_ms: int) -> Iterator[Receipt]:
    """The receipts of one status; none where it is not about a message of ours."""
    event = _EVENTS.get(report.status)
    if event is None:
        return
    receipt = Receipt(
        provider="twilio",
        provider_message_id=report.sid,
        event=event,
        event_id=f"{report.sid}:{report.status}",
        at=now_ms,
        notification_id=report.notification_id,
        attempt=report.attempt,
    )
    if event is ReceiptEvent.FAILED:
        yield from _failures(receipt, report)
        return
    yield receipt
    if report.status == "read":
        yield replace(receipt, event=ReceiptEvent.OPEN, event_id=f"{receipt.event_id}:open")


def _failures(receipt: Receipt, report: StatusReport) -> Iterator[Receipt]:
    code = report.error_code
    meaning = error_table("twilio").codes.get(code) if code and code.isdigit() else None
    told = code[:20] if code else report.status
    return failed(receipt, meaning, told, f"Twilio says {report.status}")


def _signed_params(url: str, callback: Callback) -> Params | None:
    """The fields that are part of the signature; None where the body is not vouched for."""
    form = _form(callback)
    if form is not None:
        return form
    claimed = _query(url).get("bodySHA256", [""])[0]
    if not claimed:
        return None if callback.body else ()
    vouched = claimed.isascii() and compare_digest(sha256(callback.body).hexdigest(), claimed)
    return () if vouched else None


def _form(callback: Callback) -> Params | None:
    """The fields of a form, decoded; None where the body is something else."""
    kind = callback.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return None
    try:
        text = callback.body.decode("utf-8", "replace")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return None


def _forms(url: str) -> list[str]:
    """The URL as it is, without its port, and with the default one: Twilio signs any of them."""
    parts = _URL.fullmatch(url)
    if parts is None:
        return [url]
    scheme, user, host, port, rest = (
        parts[name] or "" for name in ("scheme", "user", "host", "port", "rest")
    )
    default = ":443" if scheme == "https" else ":80"
    return [url, f"{scheme}://{user}{host}{'' if port.strip(':') else default}{rest}"]


def _query(url: str) -> dict[str, list[str]]:
    try:
        return parse_qs(url.partition("?")[2].partition("#")[0], max_num_fields=_MOST_FIELDS)
    except ValueError:
        return {}


def _correlation(url: str) -> dict[str, Any]:
    """Our own id and attempt, as they were put into the callback's URL."""
    query = _query(url)
    found, attempt = query.get("delivery", [""])[-1], query.get("attempt", [""])[-1]
    if not _ID.fullmatch(found):
        return {}
    number = int(attempt) if re.fullmatch(r"[0-9]{1,6}", attempt) else 0
    return {"notification_id": found, "attempt": number}
