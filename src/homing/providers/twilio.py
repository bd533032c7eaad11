"""Twilio Programmable Messaging: SMS, and WhatsApp as the channel `chat`."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any

from homing.core.callbacks import Callback, Heard
from homing.core.errors import ConfigError
from homing.core.model import Outcome, OutcomeKind, Receipt
from homing.core.ports import Delivery
from homing.providers.answers import error_table
from homing.providers.base_url import checked_base_url
from homing.providers.http import Answer, Headers, Request, Transport
from homing.providers.reading import error_text, json_object, text_of
from homing.providers.refusals import checked_segments
from homing.providers.retry_after import retry_after_ms
from homing.providers.secret import Secret, secret
from homing.providers.twilio_callbacks import TwilioCallbacks
from homing.providers.twilio_lookup import found_among, list_query, receipt_of
from homing.providers.twilio_message import TwilioMessages, as_whatsapp, checked_callback_url
from homing.providers.wire import HttpProvider, NowMs, Unsendable, inside, wall_clock_ms

_FORM = ("Content-Type", "application/x-www-form-urlencoded")
_ACCOUNT = re.compile(r"AC[0-9a-fA-F]{32}")
_SERVICE = re.compile(r"MG[0-9a-fA-F]{32}")
_API_KEY = re.compile(r"SK[0-9a-fA-F]{32}")
_CODE = re.compile(r"[0-9]{3,6}")
_MESSAGE = re.compile(r"(SM|MM)[0-9a-fA-F]{32}")


class TwilioProvider(HttpProvider):
    """Sends SMS and WhatsApp messages to phone numbers. See docs/reference/providers/twilio.md."""

    channels: tuple[str, ...] = ("sms",)
    """Also includes `chat`, which is WhatsApp, if `whatsapp_sender` is set."""

    def __init__(
        self,
        transport: Transport,
        *,
        account_sid: str,
        auth_token: str | Secret = "",
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
        now_ms: NowMs = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        _check("account_sid", account_sid, _ACCOUNT, "AC")
        if messaging_service_sid:
            _check("messaging_service_sid", messaging_service_sid, _SERVICE, "MG")
        if bool(sender) == bool(messaging_service_sid):
            raise ConfigError("sender", "set either sender or messaging_service_sid, not both")
        token = secret("auth_token", auth_token) if auth_token or not api_key_sid else None
        account = f"{checked_base_url(base_url)}/2010-04-01/Accounts/{account_sid}"
        self._messages_url = f"{account}/Messages"
        self._authorization = _basic(account_sid, token, api_key_sid, api_key_secret)
        self._messages = TwilioMessages(
            sender=sender,
            messaging_service_sid=messaging_service_sid,
            whatsapp_sender=as_whatsapp(whatsapp_sender) if whatsapp_sender else "",
            callback_url=checked_callback_url(callback_url),
            max_segments=checked_segments(max_segments),
            extras=_extras(smart_encoded, risk_check, shorten_urls),
        )
        self._callbacks = TwilioCallbacks(token, callback_url)
        if whatsapp_sender:
            self.channels = ("sms", "chat")

    def build(self, delivery: Delivery, now_ms: int) -> Request:
        body = self._messages.body(delivery, now_ms)
        return Request(url=f"{self._messages_url}.json", body=body, headers=(*self._headers(), _FORM))

    def classify(self, answer: Answer, now_ms: int) -> Outcome:
        return classify(answer, now_ms)

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        """Verifies and reads a status callback."""
        return self._callbacks.hear(callback, now_ms)

    async def look_up(self, delivery: Delivery, provider_message_id: str | None) -> Receipt | None:
        """Returns the message's status. Without its id, searches for the only message with the same text."""
        if provider_message_id is None:
            return await self._search(delivery)
        if not _MESSAGE.fullmatch(provider_message_id):
            return None
        body = await self._ask(f"{self._messages_url}/{provider_message_id}.json", delivery.timeout_ms)
        return receipt_of(body, delivery, self._now_ms())

    async def _search(self, delivery: Delivery) -> Receipt | None:
        try:
            query = list_query(delivery)
        except Unsendable:
            return None
        body = await self._ask(f"{self._messages_url}.json?{query}", delivery.timeout_ms)
        found = found_among(body, delivery)
        return None if found is None else receipt_of(found, delivery, self._now_ms())

    async def _ask(self, url: str, timeout_ms: int) -> dict[str, Any]:
        """Returns the JSON object that a GET request returns, or an empty one if it fails."""
        request = Request(url=url, headers=self._headers(), method="GET")
        answer = await self._transport.send(request, timeout_ms=inside(timeout_ms))
        return json_object(answer.body) if isinstance(answer, Answer) and answer.status == 200 else {}

    def check_request(self) -> Request:
        """Returns a request for the list of messages. An API key may not read the account itself."""
        return Request(url=f"{self._messages_url}.json?PageSize=1", headers=self._headers(), method="GET")

    def _headers(self) -> Headers:
        return (("Authorization", self._authorization.reveal()), ("Accept", "application/json"))


def classify(answer: Answer, now_ms: int) -> Outcome:
    """Returns the outcome of a response. Never raises, whatever the response contains."""
    body, table = json_object(answer.body), error_table("twilio")
    if 200 <= answer.status < 300:
        sid = text_of(body.get("sid"))
        if sid is not None:
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=sid)
        return table.outcome("unreadable", answer.status, None)
    if answer.status in (404, 405) and answer.body and not body:
        return table.outcome("not_twilio", answer.status, None)
    return table.outcome(
        _code(body),
        answer.status,
        error_text(body.get("message") or body.get("detail") or body.get("title")),
        retry_after_ms=retry_after_ms(answer.headers.get("retry-after"), now_ms),
    )


def _code(body: dict[str, Any]) -> str | None:
    """Returns Twilio's error number, also if the table does not list it.

    Never returns one of our own codes.
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
    """Returns the Authorization header. With an API key, the auth token serves only to verify callbacks."""
    if key:
        _check("api_key_sid", key, _API_KEY, "SK")
        token = secret("api_key_secret", key_secret)
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
