"""Verifies Twilio's status callbacks (`X-Twilio-Signature`) and turns them into receipts. Pure."""

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

from homing.core.errors import CallbackRefused
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.net.secrets import Secret
from homing.providers.common.error_tables import failure_receipts, load_error_table
from homing.providers.common.response_parsing import decode_json_object

FormParams = Sequence[tuple[str, str]]


_MAX_FIELDS = 500

_MAX_BODY_BYTES = 64 * 1024
"""Largest body that is read.

Twilio's status callbacks have about 1 KiB. The body is decoded before its signature can be checked.
"""

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
"""The receipt for every message status. None marks the statuses of incoming messages."""


class TwilioStatusReport(Struct, frozen=True, kw_only=True):
    """The status of a message, from a callback or a lookup."""

    sid: str
    status: str
    error_code: str | None = None
    notification_id: str | None = None
    attempt: int = 0
    """The attempt that sent the message. 0 if it is not known."""


class TwilioCallbacks:
    """Verifies and reads the callbacks of one account."""

    def __init__(self, auth_tokens: Sequence[Secret], callback_url: str = "") -> None:
        self._auth_tokens = auth_tokens
        """While the token is being replaced, the new one and the old one."""
        self._configured = callback_url.partition("#")[0].partition("?")[0]

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        if not self._auth_tokens:
            raise CallbackRefused(
                "auth_token is not set; Twilio signs callbacks with it, even if an API key is used"
            )
        if len(callback.body) > _MAX_BODY_BYTES:
            raise CallbackRefused(
                f"the body has more than {_MAX_BODY_BYTES} bytes; Twilio's callbacks are smaller"
            )
        signature = callback.headers.get("x-twilio-signature", "")
        # Behind a proxy, Twilio signed the configured URL with the query of the request.
        if not any(
            is_signature_valid(token.reveal(), url, callback, signature)
            for token in self._auth_tokens
            for url in self._possible_urls(callback.url)
        ):
            raise CallbackRefused(
                "X-Twilio-Signature is missing or does not match this request and auth_token"
            )
        return read_callback(callback, now_ms)

    def _possible_urls(self, url: str) -> tuple[str, ...]:
        _, mark, query = url.partition("?")
        ours = f"{self._configured}{mark}{query}"
        return (url, ours) if self._configured and ours != url else (url,)


def is_signature_valid(auth_token: str, url: str, callback: Callback, signature: str) -> bool:
    """Returns True if the signature proves that the owner of the token called this URL with this body."""
    params = _signed_params(url, callback)
    if params is None or not signature.isascii():
        return False
    # All forms of the URL are compared, so that the time taken reveals nothing about the signature.
    matches = [
        compare_digest(compute_signature(auth_token, form, params), signature) for form in _url_variants(url)
    ]
    return any(matches)


def compute_signature(auth_token: str, url: str, params: FormParams) -> str:
    """Returns the signature of a request. Parameters are sorted, and repeated pairs are signed once."""
    signed = "".join(name + value for name, value in sorted(set(params)))
    text = (url + signed).encode("utf-8", "surrogatepass")
    return b64encode(digest(auth_token.encode(), text, "sha1")).decode()


def read_callback(callback: Callback, now_ms: int) -> ParsedCallback:
    """Reads a verified callback, whose fields are a form or, as some gateways pass them on, a JSON object."""
    fields = _fields(callback)
    sid = fields.get("MessageSid") or fields.get("SmsSid")
    status = fields.get("MessageStatus") or fields.get("SmsStatus")
    if not sid or not status or len(sid) > 64:
        return ParsedCallback(unreadable=1)
    report = TwilioStatusReport(
        sid=sid, status=status, error_code=fields.get("ErrorCode") or None, **_correlation(callback.url)
    )
    receipts = tuple(status_receipts(report, now_ms))
    return ParsedCallback(receipts=receipts, ignored=0 if receipts else 1)


def _fields(callback: Callback) -> dict[str, str]:
    form = _form(callback)
    if form is not None:
        return dict(form)
    found = decode_json_object(callback.body)
    return {name: str(value) for name, value in found.items() if isinstance(value, (str, int))}


def status_receipts(report: TwilioStatusReport, now_ms: int) -> Iterator[Receipt]:
    """Yields the receipts for one status; none if the status is unknown or of an incoming message."""
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


def _failures(receipt: Receipt, report: TwilioStatusReport) -> Iterator[Receipt]:
    code = report.error_code
    meaning = load_error_table("twilio").codes.get(code) if code and code.isdigit() else None
    error_code = code[:20] if code else report.status
    return failure_receipts(receipt, meaning, error_code, f"Twilio reported {report.status}")


def _signed_params(url: str, callback: Callback) -> FormParams | None:
    """Returns the form fields that are part of the signature, or None if the signature does not cover the
    body.
    """
    form = _form(callback)
    if form is not None:
        return form
    claimed = _query(url).get("bodySHA256", [""])[0]
    if not claimed:
        return None if callback.body else ()
    matches_hash = claimed.isascii() and compare_digest(sha256(callback.body).hexdigest(), claimed)
    return () if matches_hash else None


def _form(callback: Callback) -> FormParams | None:
    """Returns the decoded form fields, or None if the body is not a form."""
    kind = callback.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return None
    try:
        text = callback.body.decode("utf-8", "replace")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        return None


def _url_variants(url: str) -> list[str]:
    """Returns the URL, and the same URL without its port or, if it has none, with the default port.

    Twilio signs either.
    """
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
        return parse_qs(url.partition("?")[2].partition("#")[0], max_num_fields=_MAX_FIELDS)
    except ValueError:
        return {}


def _correlation(url: str) -> dict[str, Any]:
    """Returns the notification id and attempt that were added to the callback's URL."""
    query = _query(url)
    found, attempt = query.get("delivery", [""])[-1], query.get("attempt", [""])[-1]
    if not _ID.fullmatch(found):
        return {}
    number = int(attempt) if re.fullmatch(r"[0-9]{1,6}", attempt) else 0
    return {"notification_id": found, "attempt": number}
