"""Azure Communication Services: email, delivery reports, and the lookup of an operation."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from homing.core.callbacks import Callback, Heard
from homing.core.errors import ConfigError
from homing.core.model import Outcome, OutcomeKind, Receipt, ReceiptEvent
from homing.core.ports import Delivery
from homing.providers.acs_callbacks import AcsCallbacks
from homing.providers.acs_signature import AcsSigner, signed_host
from homing.providers.answers import error_table
from homing.providers.base_url import checked_base_url
from homing.providers.email import DEFAULT_SUBJECT, mail_of, mail_style, mailbox
from homing.providers.http import Answer, Request, Transport
from homing.providers.reading import as_object, error_text, json_object, text_of
from homing.providers.retry_after import retry_after_ms
from homing.providers.secret import Secret, secret
from homing.providers.wire import HttpProvider, NowMs, inside, wall_clock_ms

_TABLE = error_table("acs")
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
"""Codes that explain no more than the status 400."""
_encode = msgspec.json.Encoder().encode


class AcsProvider(HttpProvider):
    """Sends mail through a Communication Services resource.

    The operation id is derived from the notification and is the same for every attempt, so its result can be
    looked up even if the response was lost. The service does not promise that a repeated operation is sent
    only once.
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
        webhook_key: str | Secret = "",
        now_ms: NowMs = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        if connection_string:
            base_url, access_key = _connection(secret("connection_string", connection_string))
        self._origin = checked_base_url(base_url)
        self._signer = AcsSigner(secret("access_key", access_key).reveal(), signed_host(self._origin))
        self._path = urlsplit(self._origin).path
        self._version = f"api-version={quote(api_version, safe='')}"
        self._name_operations = name_operations
        self._style = mail_style(default_subject, unsubscribe_mailto)
        self._common_fields: dict[str, Any] = {
            "senderAddress": mailbox("sender_address", sender_address).address,
            **({"replyTo": [_reply_to(reply_to, reply_to_name)]} if reply_to else {}),
            **(
                {"userEngagementTrackingDisabled": not engagement_tracking}
                if engagement_tracking is not None
                else {}
            ),
        }
        self._callbacks = AcsCallbacks(webhook_key, named_by_us=name_operations)

    def build(self, delivery: Delivery, now_ms: int) -> Request:
        mail = mail_of(delivery, self._style)
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
                {"name": a.filename, "contentType": a.content_type, "contentInBase64": a.content}
                for a in mail.attachments
            ]
        named = (("Operation-Id", operation_id(delivery)),) if self._name_operations else ()
        return self._signed("POST", "/emails:send", now_ms, _encode(body), named)

    def classify(self, answer: Answer, now_ms: int) -> Outcome:
        decoded = json_object(answer.body)
        code, message = _error(decoded, answer)
        if answer.status == 202 and decoded.get("status") not in ("Failed", "Canceled"):
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=_operation(decoded, answer))
        wait_ms = None
        if answer.status == 429 or answer.status >= 500:
            wait_ms = retry_after_ms(answer.headers.get("retry-after"), now_ms)
        known = code if code in _TABLE.codes else None
        return _TABLE.outcome(
            known,
            answer.status,
            _error_text(code, message),
            retry_after_ms=wait_ms,
            other_code=code is not None and code not in _UNSPECIFIC_CODES,
        )

    def check_request(self) -> Request:
        """Returns a request for the status of an operation that does not exist.

        The service answers with 404.
        """
        return self._status_request(str(UUID(int=0)), self._now_ms())

    def is_up(self, answer: Answer) -> bool:
        return answer.status < 500 and answer.status not in (401, 403)

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        """Answers Event Grid's handshake, or reads a batch of delivery and engagement reports."""
        return self._callbacks.hear(callback, now_ms)

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        """Returns the operation's status, or None if the service does not know it or gave no answer."""
        operation = provider_message_id or (operation_id(delivery) if self._name_operations else None)
        if operation is None or not _OPERATION.fullmatch(operation):
            return None
        now_ms = self._now_ms()
        answer = await self._transport.send(
            self._status_request(operation, now_ms), timeout_ms=inside(delivery.timeout_ms)
        )
        if not isinstance(answer, Answer) or answer.status != 200:
            return None
        return looked_up(answer, operation, delivery, now_ms)

    def _status_request(self, operation: str, now_ms: int) -> Request:
        return self._signed("GET", f"/emails/operations/{operation}", now_ms)

    def _signed(
        self, method: str, path: str, now_ms: int, body: bytes = b"", more: tuple[tuple[str, str], ...] = ()
    ) -> Request:
        target = f"{path}?{self._version}"
        signed = self._signer.headers(method, self._path + target, body, now_ms)
        typed = (("Content-Type", "application/json"),) if body else ()
        return Request(url=self._origin + target, method=method, body=body, headers=(*signed, *typed, *more))


def operation_id(delivery: Delivery) -> str:
    """Returns the operation's UUID for all attempts: the idempotency key if it is a UUID, or else one derived
    from it.
    """
    try:
        return str(UUID(delivery.idempotency_key))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, f"homing:{delivery.idempotency_key}"))


def looked_up(answer: Answer, operation: str, delivery: Delivery, now_ms: int) -> Receipt | None:
    """Returns the receipt for the status of an operation, or None. Never raises, whatever the response is."""
    decoded = json_object(answer.body)
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
    """Parses `endpoint=https://…/;accesskey=…`. A key may end in `=`."""
    parts = dict(part.strip().partition("=")[::2] for part in given.reveal().split(";") if part.strip())
    found = {name.strip().lower(): value.strip() for name, value in parts.items()}
    if not found.get("endpoint") or not found.get("accesskey"):
        raise ConfigError("connection_string", "must look like endpoint=https://…;accesskey=…")
    return found["endpoint"], Secret(found["accesskey"])


def _reply_to(address: str, name: str) -> dict[str, str]:
    box = mailbox("reply_to", address, name, "reply_to_name")
    return {"address": box.address, "displayName": box.name} if box.name else {"address": box.address}


def _error(decoded: dict[str, Any], answer: Answer) -> tuple[str | None, str | None]:
    """Returns (code, message) of `{"error": {…}}`. The code may also come as a header."""
    error = as_object(decoded.get("error"))
    code = text_of(error.get("code"), 100) or text_of(answer.headers.get("x-ms-error-code"), 100)
    return code, error_text(error.get("message"))


def _error_text(code: str | None, message: str | None) -> str | None:
    """Returns the error text with its code, because the table may not list that code."""
    return f"{code}: {message}" if code and message else message or code


def _operation(decoded: dict[str, Any], answer: Answer) -> str | None:
    """Returns the operation's id from the body, or else from the URL for polling."""
    found = decoded.get("id")
    if isinstance(found, str) and _OPERATION.fullmatch(found):
        return found
    last = answer.headers.get("operation-location", "").partition("?")[0].rpartition("/")[2]
    return last if _OPERATION.fullmatch(last) else None
