"""SendGrid: email through its v3 API, and its signed Event Webhook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback, ParsedCallback
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.endpoint_settings import check_base_url
from homing.net.http_messages import Headers, HttpRequest, HttpResponse, Transport
from homing.net.retry_after import parse_retry_after_ms
from homing.net.secrets import Secret, SecretSetting, read_header_secret
from homing.providers.common.email_message import (
    DEFAULT_SUBJECT,
    Mailbox,
    OutgoingEmail,
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
from homing.providers.sendgrid.callbacks import ATTEMPT_ARG, NOTIFICATION_ARG, SendGridCallbacks

_TABLE = load_error_table("sendgrid")

_LONGEST_WAIT_MS = 24 * 3_600_000

_JSON = ("Content-Type", "application/json")

_INDEX = re.compile(r"\.\d+")

_encode = msgspec.json.Encoder().encode


class SendGridProvider(HttpProvider):
    """Sends email through SendGrid.

    SendGrid has no idempotency key; custom arguments link its events to attempts.
    """

    channels = ("email",)

    def __init__(
        self,
        transport: Transport,
        *,
        api_key: str | Secret,
        from_email: str,
        from_name: str = "",
        reply_to: str = "",
        base_url: str = "https://api.sendgrid.com",
        on_behalf_of: str = "",
        sandbox: bool = False,
        categories: Sequence[str] = (),
        asm_group_id: int | None = None,
        ip_pool_name: str = "",
        open_tracking: bool | None = None,
        click_tracking: bool | None = None,
        default_subject: str = DEFAULT_SUBJECT,
        unsubscribe_mailto: str | None = None,
        webhook_public_key: SecretSetting = "",
        webhook_tolerance_ms: int = 25 * 3_600_000,
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        if isinstance(categories, str) or len(categories) > 10:
            raise ConfigError("categories", "must be a list with at most 10 entries")
        self._key = read_header_secret("api_key", api_key)
        self._as_subuser = _subuser_headers(on_behalf_of)
        origin = check_base_url(base_url)
        self._url = f"{origin}/v3/mail/send"
        self._check_url = f"{origin}/v3/scopes"
        self._sandbox = sandbox
        self._style = check_email_defaults(default_subject, unsubscribe_mailto)
        self._common_fields: dict[str, Any] = {
            "from": _email_and_name(check_mailbox("from_email", from_email, from_name, "from_name")),
            **({"reply_to": _email_and_name(check_mailbox("reply_to", reply_to))} if reply_to else {}),
            **({"categories": list(categories)} if categories else {}),
            **({"asm": {"group_id": asm_group_id}} if asm_group_id is not None else {}),
            **({"ip_pool_name": ip_pool_name} if ip_pool_name else {}),
            **({"mail_settings": {"sandbox_mode": {"enable": True}}} if sandbox else {}),
            **_tracking(open_tracking, click_tracking),
        }
        self._callbacks = SendGridCallbacks(webhook_public_key, webhook_tolerance_ms)

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        mail = build_email(delivery, self._style)
        body: dict[str, Any] = {
            **self._common_fields,
            "personalizations": [
                {
                    "to": [{"email": mail.to}],
                    "custom_args": {
                        NOTIFICATION_ARG: delivery.notification_id,
                        ATTEMPT_ARG: str(delivery.attempt),
                    },
                }
            ],
            "subject": mail.subject,
            "content": _contents(mail),
        }
        if mail.headers:
            body["headers"] = dict(mail.headers)
        if mail.attachments:
            body["attachments"] = [
                {
                    "content": a.content,
                    "filename": a.filename,
                    "type": a.content_type,
                    **_shown_in_place(a.content_id),
                }
                for a in mail.attachments
            ]
        return HttpRequest(url=self._url, body=_encode(body), headers=(*self._headers(), _JSON))

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        if answer.status == 202 or (answer.status == 200 and self._sandbox):
            return Outcome(
                OutcomeKind.ACCEPTED, provider_message_id=answer.headers.get("x-message-id", "")[:255] or None
            )
        field, message = _first_error(answer.body)
        code = _find_listed_field(field) if answer.status == 400 else None
        wait_ms = _wait_ms(answer, now_ms) if answer.status in (429, 503) else None
        return _TABLE.outcome(
            code, answer.status, message, retry_after_ms=wait_ms, other_code=field is not None
        )

    def check_request(self) -> HttpRequest:
        return HttpRequest(url=self._check_url, method="GET", headers=self._headers())

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        """Verifies and reads a batch of events."""
        return self._callbacks.handle_callback(callback, now_ms)

    def _headers(self) -> Headers:
        return (("Authorization", f"Bearer {self._key.reveal()}"), *self._as_subuser)


def _subuser_headers(name: str) -> Headers:
    if not name:
        return ()
    if not (name.isascii() and name.isprintable()):
        raise ConfigError("on_behalf_of", "contains a character that is not allowed in a header")
    return (("on-behalf-of", name),)


def _email_and_name(box: Mailbox) -> dict[str, str]:
    return {"email": box.address, "name": box.name} if box.name else {"email": box.address}


def _contents(mail: OutgoingEmail) -> list[dict[str, str]]:
    """Returns the bodies, plain text first, because SendGrid requires this order."""
    parts = (("text/plain", mail.text), ("text/html", mail.html))
    return [{"type": kind, "value": text} for kind, text in parts if text]


def _tracking(opens: bool | None, clicks: bool | None) -> dict[str, Any]:
    """Returns the tracking settings. None leaves the choice to the account."""
    settings: dict[str, Any] = {}
    if clicks is not None:
        settings["click_tracking"] = {"enable": clicks, "enable_text": clicks}
    if opens is not None:
        settings["open_tracking"] = {"enable": opens}
    return {"tracking_settings": settings} if settings else {}


def _shown_in_place(content_id: str | None) -> dict[str, str]:
    if content_id is None:
        return {"disposition": "attachment"}
    return {"disposition": "inline", "content_id": content_id}


def _first_error(body: bytes) -> tuple[str | None, str | None]:
    """Returns (field without indexes, message) of the first entry in `{"errors": [{"message": …, "field":
    …}]}`.

    Each is None if it is missing.
    """
    errors = decode_json_object(body).get("errors")
    first = as_object(errors[0]) if isinstance(errors, list) and errors else {}
    field = short_text_or_none(first.get("field"))  # SendGrid also sends the text "null"
    return _INDEX.sub("", field) if field and field != "null" else None, redacted_error_text(
        first.get("message")
    )


def _find_listed_field(field: str | None) -> str | None:
    """Returns the field if the table lists it, or else the nearest enclosing field that it lists."""
    while field and field not in _TABLE.codes:
        field = field.rpartition(".")[0]
    return field or None


def _wait_ms(answer: HttpResponse, now_ms: int) -> int | None:
    """Returns the milliseconds until the rate limit resets, at most a day.

    Without a reset time, returns what Retry-After asks for, which SendGrid does not promise to send.
    """
    reset = answer.headers.get("x-ratelimit-reset", "").strip()
    if reset.isascii() and reset.isdigit() and len(reset) <= 12:
        return min(max(0, int(reset) * 1000 - now_ms), _LONGEST_WAIT_MS)
    return parse_retry_after_ms(answer.headers.get("retry-after"), now_ms)
