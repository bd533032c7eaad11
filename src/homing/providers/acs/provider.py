"""Azure Communication Services: sends email, looks up operations, and signs the requests for both."""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from email.utils import formatdate
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.endpoint_settings import check_base_url
from homing.net.http_messages import Headers, HttpRequest, HttpResponse, Transport
from homing.net.retry_after import parse_retry_after_ms
from homing.net.secrets import Secret, SecretSetting, read_secret
from homing.providers.acs.callbacks import ID_VERSION, AcsCallbacks, with_version
from homing.providers.common.email_message import (
    DEFAULT_SUBJECT,
    build_email,
    check_email_defaults,
    check_mailbox,
)
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.http_provider import HttpProvider, WallClock, wall_clock_ms
from homing.providers.common.response_parsing import (
    as_object,
    decode_json_object,
    redacted_error_text,
    short_text_or_none,
)

_TABLE = load_error_table("acs")

_LATER_KEY = re.compile(r"([0-9a-f-]{36})-([0-9]{1,9})")

_LATER_VERSIONS = "689abcdef012345"
"""Version digits of the operations of later idempotency keys: all except that of a notification id, 7. They
start so that the first re-send, whose number is usually 1, has version 8, which is that of custom UUIDs."""

_OPERATION = re.compile(r"[A-Za-z0-9-]{1,100}")

_EVENT_BY_STATUS = {
    "NotStarted": ReceiptEvent.QUEUED,
    "Running": ReceiptEvent.QUEUED,
    "Succeeded": ReceiptEvent.SENT,
    "Failed": ReceiptEvent.FAILED,
    "Canceled": ReceiptEvent.FAILED,
}
"""The receipt for each status of an operation. `Succeeded` means handed over for delivery, not delivered."""

_UNSPECIFIC_CODES = ("BadRequest",)
"""Error codes that explain no more than the HTTP status 400 does."""

_encode = msgspec.json.Encoder().encode


class AcsProvider(HttpProvider):
    """Sends email through a Communication Services resource.

    Unless `name_operations` is off, the operation id is derived from the idempotency key, so the result of an
    operation can be looked up even if the response was lost. The service does not promise that a repeated
    operation is sent only once.
    """

    channels = ("email",)

    def __init__(
        self,
        transport: Transport,
        *,
        sender_address: str,
        base_url: str = "",
        access_key: str | Secret = "",
        connection_string: str | Secret = "",
        reply_to: str = "",
        reply_to_name: str = "",
        api_version: str = "2025-09-01",
        name_operations: bool = True,
        engagement_tracking: bool | None = None,
        default_subject: str = DEFAULT_SUBJECT,
        unsubscribe_mailto: str | None = None,
        webhook_key: SecretSetting = "",
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        if connection_string:
            base_url, access_key = _connection(read_secret("connection_string", connection_string))
        self._origin = check_base_url(base_url)
        self._signer = AcsSigner(
            read_secret("access_key", access_key).reveal(), build_host_header(self._origin)
        )
        self._path = urlsplit(self._origin).path
        self._version = f"api-version={quote(api_version, safe='')}"
        self._name_operations = name_operations
        self._style = check_email_defaults(default_subject, unsubscribe_mailto)
        self._common_fields: dict[str, Any] = {
            "senderAddress": check_mailbox("sender_address", sender_address).address,
            **({"replyTo": [_reply_to(reply_to, reply_to_name)]} if reply_to else {}),
            **(
                {"userEngagementTrackingDisabled": not engagement_tracking}
                if engagement_tracking is not None
                else {}
            ),
        }
        self._callbacks = AcsCallbacks(webhook_key, has_notification_ids=name_operations)

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        mail = build_email(delivery, self._style)
        content = {"subject": mail.subject}
        if mail.text:
            content["plainText"] = mail.text
        if mail.html:
            content["html"] = mail.html
        body: dict[str, Any] = {
            **self._common_fields,
            "content": content,
            "recipients": {"to": [{"address": mail.to}]},
        }
        if mail.headers:
            body["headers"] = dict(mail.headers)
        if mail.attachments:
            body["attachments"] = [
                {
                    "name": a.filename,
                    "contentType": a.content_type,
                    "contentInBase64": a.content,
                    **({"contentId": a.content_id} if a.content_id is not None else {}),
                }
                for a in mail.attachments
            ]
        named = (("Operation-Id", operation_id(delivery)),) if self._name_operations else ()
        return self._signed("POST", "/emails:send", now_ms, _encode(body), named)

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        decoded = decode_json_object(answer.body)
        code, message = _error(decoded, answer)
        if answer.status == 202 and decoded.get("status") not in ("Failed", "Canceled"):
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=_operation(decoded, answer))
        wait_ms = None
        if answer.status == 429 or answer.status >= 500:
            wait_ms = parse_retry_after_ms(answer.headers.get("retry-after"), now_ms)
        known = code if code in _TABLE.codes else None
        return _TABLE.outcome(
            known,
            answer.status,
            _error_text(code, message),
            retry_after_ms=wait_ms,
            other_code=code is not None and code not in _UNSPECIFIC_CODES,
        )

    def check_request(self) -> HttpRequest:
        """Returns a request for the status of an operation that does not exist.

        A working service answers it with 404.
        """
        return self._status_request(str(UUID(int=0)), self._now_ms())

    def is_up(self, answer: HttpResponse) -> bool:
        return answer.status < 500 and answer.status not in (401, 403)

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        """Answers Event Grid's handshake, or reads a batch of delivery and engagement reports."""
        return self._callbacks.handle_callback(callback, now_ms)

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        """Returns a receipt with the operation's status.

        Returns None if the operation's id is unknown, or if the service returns no status for it.
        """
        operation = provider_message_id or (operation_id(delivery) if self._name_operations else None)
        if operation is None or not _OPERATION.fullmatch(operation):
            return None
        now_ms = self._now_ms()
        answer = await self._transport.send(
            self._status_request(operation, now_ms), timeout_ms=delivery.timeout_ms
        )
        if not isinstance(answer, HttpResponse) or answer.status != 200:
            return None
        return build_operation_receipt(answer, operation, delivery, now_ms)

    def _status_request(self, operation: str, now_ms: int) -> HttpRequest:
        return self._signed("GET", f"/emails/operations/{operation}", now_ms)

    def _signed(
        self, method: str, path: str, now_ms: int, body: bytes = b"", more: tuple[tuple[str, str], ...] = ()
    ) -> HttpRequest:
        target = f"{path}?{self._version}"
        signed = self._signer.headers(method, self._path + target, body, now_ms)
        typed = (("Content-Type", "application/json"),) if body else ()
        return HttpRequest(
            url=self._origin + target, method=method, body=body, headers=(*signed, *typed, *more)
        )


def operation_id(delivery: Delivery) -> str:
    """Returns the UUID of the operation, the same for all attempts with the same idempotency key.

    The first key is the notification's id, which is a UUID of version 7. A later key is that id with a number
    behind it. Its UUID is the same id with another version, so that reports still name the notification (see
    `notification_id_of`). Any other key becomes a UUID that is derived from it.
    """
    key = delivery.idempotency_key
    try:
        if (later := _LATER_KEY.fullmatch(key)) is not None and UUID(later[1]).version == int(ID_VERSION):
            return with_version(later[1], _LATER_VERSIONS[int(later[2]) % len(_LATER_VERSIONS)])
        return str(UUID(key))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, f"homing:{key}"))


def build_operation_receipt(
    answer: HttpResponse, operation: str, delivery: Delivery, now_ms: int
) -> Receipt | None:
    """Returns the receipt for the status of an operation, or None if the response has no known status.

    Never raises, whatever the response is.
    """
    decoded = decode_json_object(answer.body)
    status = decoded.get("status")
    event = _EVENT_BY_STATUS.get(status) if isinstance(status, str) else None
    if event is None:
        return None
    code, message = _error(decoded, answer)
    failed = event is ReceiptEvent.FAILED
    meaning = _TABLE.codes.get(code) if failed and code else None
    return Receipt(
        provider="acs",
        provider_message_id=operation,
        event=event,
        event_id=f"lookup:{operation}:{status}",
        at=now_ms,
        notification_id=delivery.notification_id,
        attempt=delivery.attempt,
        outcome=meaning.outcome if meaning else None,
        retry_after_ms=meaning.retry_after_ms if meaning else None,
        error_code=(code or str(status)) if failed else None,
        error=_error_text(code, message) if failed else None,
    )


def _connection(given: Secret) -> tuple[str, Secret]:
    """Returns the endpoint and the key of a connection string, `endpoint=https://…/;accesskey=…`.

    The key may end in `=`.
    """
    parts = dict(part.strip().partition("=")[::2] for part in given.reveal().split(";") if part.strip())
    found = {name.strip().lower(): value.strip() for name, value in parts.items()}
    if not found.get("endpoint") or not found.get("accesskey"):
        raise ConfigError("connection_string", "must look like endpoint=https://…;accesskey=…")
    return found["endpoint"], Secret(found["accesskey"])


def _reply_to(address: str, name: str) -> dict[str, str]:
    box = check_mailbox("reply_to", address, name, "reply_to_name")
    return {"address": box.address, "displayName": box.name} if box.name else {"address": box.address}


def _error(decoded: dict[str, Any], answer: HttpResponse) -> tuple[str | None, str | None]:
    """Returns (code, message) of `{"error": {…}}`.

    If the body has no code, the header `x-ms-error-code` is used.
    """
    error = as_object(decoded.get("error"))
    code = short_text_or_none(error.get("code"), 100) or short_text_or_none(
        answer.headers.get("x-ms-error-code"), 100
    )
    return code, redacted_error_text(error.get("message"))


def _error_text(code: str | None, message: str | None) -> str | None:
    """Returns the error text with its code, because the table may not list that code."""
    return f"{code}: {message}" if code and message else message or code


def _operation(decoded: dict[str, Any], answer: HttpResponse) -> str | None:
    """Returns the operation's id from the body or else from the header `operation-location`, or None."""
    found = decoded.get("id")
    if isinstance(found, str) and _OPERATION.fullmatch(found):
        return found
    last = answer.headers.get("operation-location", "").partition("?")[0].rpartition("/")[2]
    return last if _OPERATION.fullmatch(last) else None


_DEFAULT_PORT = {"https": 443, "http": 80}


class AcsSigner:
    """Signs requests to one endpoint.

    The key is decoded once; each request gets its own date and signature.
    """

    def __init__(self, access_key: str, host: str) -> None:
        try:
            self._key = b64decode(access_key, validate=True)
        except (NotBase64, ValueError):
            message = "is not valid base64; copy the key as the portal shows it"
            raise ConfigError("access_key", message) from None
        self._host = host

    def headers(self, method: str, target: str, body: bytes, now_ms: int) -> Headers:
        """Returns the signature headers. `target` is the path with its query, as in the request line."""
        date = formatdate(now_ms // 1000, usegmt=True)
        digest = b64encode(sha256(body).digest()).decode()
        signed = f"{method}\n{target}\n{date};{self._host};{digest}"
        signature = b64encode(hmac.digest(self._key, signed.encode(), "sha256")).decode()
        return (
            ("x-ms-date", date),
            ("x-ms-content-sha256", digest),
            (
                "Authorization",
                f"HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature={signature}",
            ),
        )


def build_host_header(base_url: str) -> str:
    """Returns the Host header for this URL, which includes the port unless it is the default one."""
    parts = urlsplit(base_url)
    host, port = parts.hostname or "", parts.port
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, _DEFAULT_PORT[parts.scheme]) else f"{shown}:{port}"
