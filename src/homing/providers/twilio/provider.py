"""Twilio Programmable Messaging: sends SMS, and WhatsApp as the channel `chat`, and looks up their status."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

from homing.core.errors import ConfigError
from homing.core.ids import id_time_ms
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.endpoint_settings import check_base_url
from homing.net.http_messages import Headers, HttpRequest, HttpResponse, Transport
from homing.net.retry_after import parse_retry_after_ms
from homing.net.secrets import Secret, SecretSetting, read_secret, read_secrets
from homing.providers.common.error_tables import check_max_segments, load_error_table
from homing.providers.common.http_provider import HttpProvider, Unsendable, WallClock, wall_clock_ms
from homing.providers.common.response_parsing import (
    as_object,
    decode_json_object,
    redacted_error_text,
    short_text_or_none,
)
from homing.providers.twilio.callbacks import TwilioCallbacks, TwilioStatusReport, status_receipts
from homing.providers.twilio.message import (
    TwilioMessageBuilder,
    check_callback_url,
    format_recipient,
    message_text,
    whatsapp_address,
)

_FORM = ("Content-Type", "application/x-www-form-urlencoded")

_ACCOUNT = re.compile(r"AC[0-9a-fA-F]{32}")

_SERVICE = re.compile(r"MG[0-9a-fA-F]{32}")

_API_KEY = re.compile(r"SK[0-9a-fA-F]{32}")

_CODE = re.compile(r"[0-9]{3,6}")

_MESSAGE = re.compile(r"(SM|MM)[0-9a-fA-F]{32}")


class TwilioProvider(HttpProvider):
    """Sends SMS and WhatsApp messages to phone numbers. See docs/reference/providers/twilio.md."""

    channels: tuple[str, ...] = ("sms",)
    """Channels that the provider serves. `chat`, which is WhatsApp, is added if `whatsapp_sender` is set."""

    def __init__(
        self,
        transport: Transport,
        *,
        account_sid: str,
        auth_token: SecretSetting = "",
        api_key_sid: str = "",
        api_key_secret: str | Secret = "",
        sender: str = "",
        messaging_service_sid: str = "",
        whatsapp_sender: str = "",
        callback_url: str = "",
        max_segments: int = 0,
        base_url: str = "https://api.twilio.com",
        smart_encoded: bool | None = None,
        risk_check: bool | None = None,
        shorten_urls: bool | None = None,
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        _check("account_sid", account_sid, _ACCOUNT, "AC")
        if messaging_service_sid:
            _check("messaging_service_sid", messaging_service_sid, _SERVICE, "MG")
        if bool(sender) == bool(messaging_service_sid):
            raise ConfigError("sender", "set either sender or messaging_service_sid, not both")
        tokens = read_secrets("auth_token", auth_token)
        if not tokens and not api_key_sid:
            tokens = (read_secret("auth_token", ""),)  # raises
        account = f"{check_base_url(base_url)}/2010-04-01/Accounts/{account_sid}"
        self._messages_url = f"{account}/Messages"
        self._authorization = _basic(account_sid, tokens[0] if tokens else None, api_key_sid, api_key_secret)
        self._messages = TwilioMessageBuilder(
            sender=sender,
            messaging_service_sid=messaging_service_sid,
            whatsapp_sender=whatsapp_address(whatsapp_sender) if whatsapp_sender else "",
            callback_url=check_callback_url(callback_url),
            max_segments=check_max_segments(max_segments),
            extras=_extras(smart_encoded, risk_check, shorten_urls),
        )
        self._callbacks = TwilioCallbacks(tokens, callback_url)
        if whatsapp_sender:
            self.channels = ("sms", "chat")

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        body = self._messages.body(delivery, now_ms)
        return HttpRequest(url=f"{self._messages_url}.json", body=body, headers=(*self._headers(), _FORM))

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        return classify(answer, now_ms)

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        """Verifies and reads a status callback."""
        return self._callbacks.handle_callback(callback, now_ms)

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        """Returns a receipt with the message's status, or None if the status cannot be determined.

        Without a message id, searches for the only recent message to the recipient with the same text.
        """
        if provider_message_id is None:
            return await self._search(delivery)
        if not _MESSAGE.fullmatch(provider_message_id):
            return None
        body = await self._ask(f"{self._messages_url}/{provider_message_id}.json", delivery.timeout_ms)
        return build_lookup_receipt(body, delivery, self._now_ms())

    async def _search(self, delivery: Delivery) -> Receipt | None:
        try:
            query = build_list_query(delivery)
        except Unsendable:
            return None
        body = await self._ask(f"{self._messages_url}.json?{query}", delivery.timeout_ms)
        found = find_only_match(body, delivery)
        return None if found is None else build_lookup_receipt(found, delivery, self._now_ms())

    async def _ask(self, url: str, timeout_ms: int) -> dict[str, Any]:
        """Returns the JSON object that a GET request returns, or an empty one if it fails."""
        request = HttpRequest(url=url, headers=self._headers(), method="GET")
        answer = await self._transport.send(request, timeout_ms=timeout_ms)
        return (
            decode_json_object(answer.body)
            if isinstance(answer, HttpResponse) and answer.status == 200
            else {}
        )

    def check_request(self) -> HttpRequest:
        """Returns a request for the list of messages, because an API key may not read the account itself."""
        return HttpRequest(url=f"{self._messages_url}.json?PageSize=1", headers=self._headers(), method="GET")

    def _headers(self) -> Headers:
        return (("Authorization", self._authorization.reveal()), ("Accept", "application/json"))


def classify(answer: HttpResponse, now_ms: int) -> Outcome:
    """Returns the outcome of a response. Never raises, whatever the response contains."""
    body, table = decode_json_object(answer.body), load_error_table("twilio")
    if 200 <= answer.status < 300:
        sid = short_text_or_none(body.get("sid"))
        if sid is not None:
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=sid)
        return table.outcome("unreadable", answer.status, None)
    if answer.status in (404, 405) and answer.body and not body:
        return table.outcome("not_twilio", answer.status, None)
    return table.outcome(
        _code(body),
        answer.status,
        redacted_error_text(body.get("message") or body.get("detail") or body.get("title")),
        retry_after_ms=parse_retry_after_ms(answer.headers.get("retry-after"), now_ms),
    )


def _code(body: dict[str, Any]) -> str | None:
    """Returns Twilio's error number, even if the table does not list it, or None if there is none.

    Only digits are accepted, so a response cannot contain one of Homing's own codes.
    """
    code = body.get("code")
    text = code if isinstance(code, str) else str(code) if isinstance(code, int) else ""
    return text if _CODE.fullmatch(text) else None


def _check(field: str, given: str, form: re.Pattern[str], prefix: str) -> None:
    if not form.fullmatch(str(given)):
        raise ConfigError(
            field, f"must be {prefix} followed by 32 hexadecimal digits, as shown in the Twilio console"
        )


def _basic(account: str, token: Secret | None, key: str, key_secret: str | Secret) -> Secret:
    """Returns the value of the Authorization header.

    With an API key, the auth token serves only to verify callbacks.
    """
    if key:
        _check("api_key_sid", key, _API_KEY, "SK")
        token = read_secret("api_key_secret", key_secret)
    assert token is not None  # the settings were rejected if both are missing
    pair = f"{key or account}:{token.reveal()}"
    return Secret(f"Basic {b64encode(pair.encode()).decode()}")


def _extras(
    smart_encoded: bool | None, risk_check: bool | None, shorten_urls: bool | None
) -> tuple[tuple[str, str], ...]:
    """Returns the optional form fields. A setting of None leaves the choice to the account."""
    fields = []
    if smart_encoded is not None:
        fields.append(("SmartEncoded", "true" if smart_encoded else "false"))
    if risk_check is not None:
        fields.append(("RiskCheck", "enable" if risk_check else "disable"))
    if shorten_urls is not None:
        fields.append(("ShortenUrls", "true" if shorten_urls else "false"))
    return tuple(fields)


PAGE_SIZE = 20
"""Messages per page of a lookup. Twenty fit into the largest response that the HTTP client reads."""


_MAX_CLOCK_DIFFERENCE = timedelta(minutes=1)

_LATEST_MS = 253_402_300_799_000  # the last second of the year 9999


def build_lookup_receipt(answer: dict[str, Any], delivery: Delivery, now_ms: int) -> Receipt | None:
    """Returns the receipt for Twilio's description of a message, or None if it has no usable status."""
    sid, status = short_text_or_none(answer.get("sid")), short_text_or_none(answer.get("status"))
    if sid is None or status is None:
        return None
    code = answer.get("error_code")
    report = TwilioStatusReport(
        sid=sid,
        status=status,
        error_code=str(code) if isinstance(code, (int, str)) and code else None,
        notification_id=delivery.notification_id,
        attempt=delivery.attempt,
    )
    # The first receipt of a status is the one that changes the notification.
    return next(iter(status_receipts(report, now_ms)), None)


def build_list_query(delivery: Delivery) -> str:
    """Returns the query for all messages to the recipient since the day the notification was created.

    Raises `Unsendable` if the recipient's address is not usable.
    """
    since = _made_at(delivery) - _MAX_CLOCK_DIFFERENCE
    return urlencode(
        {"To": format_recipient(delivery), "DateSent>": since.date().isoformat(), "PageSize": PAGE_SIZE}
    )


def find_only_match(answer: dict[str, Any], delivery: Delivery) -> dict[str, Any] | None:
    """Returns the only listed message with this text that was created since the notification was.

    Returns None if no message or several match, or if there are more pages: then it is unclear which message
    is ours.
    """
    listed = answer.get("messages")
    if not isinstance(listed, list) or answer.get("next_page_uri") is not None:
        return None
    text, since = message_text(delivery.content), _made_at(delivery) - _MAX_CLOCK_DIFFERENCE
    same = [one for one in map(as_object, listed) if text and _is_same(one, text, since)]
    return same[0] if len(same) == 1 else None


def _is_same(message: dict[str, Any], text: str, since: datetime) -> bool:
    made = message.get("date_created")
    try:
        made_at = parsedate_to_datetime(made) if isinstance(made, str) else None
    except (ValueError, OverflowError):
        made_at = None
    if made_at is None or made_at.tzinfo is None or made_at < since:
        return False
    return message.get("body") == text and str(message.get("direction")).startswith("outbound")


def _made_at(delivery: Delivery) -> datetime:
    made_ms = min(id_time_ms(delivery.notification_id), _LATEST_MS)
    return datetime.fromtimestamp(made_ms / 1000, UTC)
