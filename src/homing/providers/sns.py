"""AWS SNS: SMS, and push messages through the endpoints of its platform applications."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from time import monotonic

from msgspec.structs import replace

from homing.core.callbacks import Callback, CallbackRefused, Heard
from homing.core.errors import ConfigError
from homing.core.model import Channel, Outcome
from homing.core.ports import Delivery
from homing.providers import sns_answers
from homing.providers.answers import error_table
from homing.providers.base_url import checked_base_url
from homing.providers.http import Answer, Request, Transport
from homing.providers.refusals import checked_segments
from homing.providers.secret import Secret
from homing.providers.sigv4 import AwsKeys, SigV4Signer
from homing.providers.sns_callbacks import CertificateShelf, SnsCallbacks, may_confirm
from homing.providers.sns_message import SnsMessages, opt_out_form, sms_attributes
from homing.providers.wire import HttpProvider, NowMs, inside, wall_clock_ms

_FORM = (("Content-Type", "application/x-www-form-urlencoded; charset=utf-8"),)
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]")
_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]+")
_CHECK_FORM = b"Action=GetSMSAttributes&Version=2010-03-31"
_FETCH_MS = 5_000
_CREDENTIAL_ERRORS = ("InvalidClientTokenId", "SignatureDoesNotMatch", "IncompleteSignature", "ExpiredToken")


class SnsProvider(HttpProvider):
    """Sends to a phone number or an endpoint's ARN. See docs/reference/providers/sns.md."""

    channels = ("sms",)
    """Without `push`, which must be enabled in the settings: its addresses are SNS endpoints, not FCM tokens.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        region: str,
        access_key_id: str | Secret,
        secret_access_key: str | Secret,
        session_token: str | Secret = "",
        sender_id: str = "",
        sms_type: str = "Transactional",
        check_opt_out: bool = False,
        max_segments: int = 0,
        max_price: str | float | None = None,
        origination_number: str = "",
        push_ttl: bool = True,
        push_attributes: Mapping[str, str] | None = None,
        callback_topics: str | Sequence[str] = (),
        base_url: str = "",
        now_ms: NowMs = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        if not _REGION.fullmatch(region):
            raise ConfigError("region", f"is {region!r}; use a region like eu-west-1")
        china = ".cn" if region.startswith("cn-") else ""
        self._url = checked_base_url(base_url or f"https://sns.{region}.amazonaws.com{china}") + "/"
        self._keys = AwsKeys(access_key_id, secret_access_key, session_token)
        self._signer = SigV4Signer(self._keys, "sns", region)
        self._messages = SnsMessages(
            sms_attributes=sms_attributes(sender_id, sms_type, max_price, origination_number),
            push_attributes=tuple((name, "String", value) for name, value in (push_attributes or {}).items()),
            push_ttl=push_ttl,
            max_segments=checked_segments(max_segments),
        )
        self._check_opt_out = check_opt_out
        self._certificates = CertificateShelf()
        self._callbacks = SnsCallbacks(_check_topics(callback_topics), self._certificates)

    def build(self, delivery: Delivery, now_ms: int) -> Request:
        return self._signed(self._messages.body(delivery, now_ms), now_ms)

    def classify(self, answer: Answer, now_ms: int) -> Outcome:
        return sns_answers.classify(answer)

    async def send(self, delivery: Delivery) -> Outcome:
        """Sends one message. If the credentials have expired, reads them again and repeats the request once.

        Repeating is safe, because a request that was rejected for its credentials published nothing.
        """
        used, began = self._keys.credentials, monotonic()
        if self._check_opt_out and delivery.channel is Channel.SMS and await self._opted_out(delivery):
            return error_table("sns").outcome("OptedOut", 0, None)
        outcome = await super().send(_with_remaining_time(delivery, began))
        if outcome.error_code != "ExpiredToken" or not self._keys.newer_than(used):
            return outcome
        return await super().send(_with_remaining_time(delivery, began))

    async def _opted_out(self, delivery: Delivery) -> bool:
        """Asks SNS whether the recipient has opted out, because SNS accepts such an SMS without delivering
        it.

        Without a clear answer, the SMS is sent.
        """
        request = self._signed(opt_out_form(delivery.address), self._now_ms())
        answer = await self._transport.send(request, timeout_ms=inside(delivery.timeout_ms) // 3)
        return isinstance(answer, Answer) and sns_answers.says_opted_out(answer)

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        """Reads delivery-status events from one of our topics. `prepare` must have run before."""
        return self._callbacks.hear(callback, now_ms)

    async def prepare(self, callback: Callback, now_ms: int) -> None:
        """Fetches the certificate that verifies the callback, and confirms subscriptions. Never raises."""
        try:
            await self._fetch_certificate(self._callbacks.wanted(callback).certificate_url)
            message = self._callbacks.verified(callback, now_ms)
        except CallbackRefused:
            return  # `handle_callback` raises the same error.
        if message.subscribe_url is not None and may_confirm(message):
            await self._get(message.subscribe_url)

    async def _fetch_certificate(self, url: str) -> None:
        if self._certificates.get(url) is None:
            answer = await self._get(url)
            if answer is not None:
                self._certificates.put(url, answer.body)

    async def _get(self, url: str) -> Answer | None:
        """Fetches a URL that comes from outside. Returns None unless the status is 200."""
        request = Request(url=url, method="GET", guarded=True)
        answer = await self._transport.send(request, timeout_ms=_FETCH_MS)
        return answer if isinstance(answer, Answer) and answer.status == 200 else None

    def check_request(self) -> Request:
        return self._signed(_CHECK_FORM, self._now_ms())

    def is_up(self, answer: Answer) -> bool:
        """Returns False if the credentials are wrong. Those that only allow publishing are fine."""
        return super().is_up(answer) and sns_answers.classify(answer).error_code not in _CREDENTIAL_ERRORS

    def _signed(self, body: bytes, now_ms: int) -> Request:
        headers = self._signer.sign("POST", self._url, body, _FORM, now_ms)
        return Request(url=self._url, body=body, headers=headers)


def _with_remaining_time(delivery: Delivery, began: float) -> Delivery:
    """Returns the delivery with the timeout that is left since `began` (monotonic seconds)."""
    gone_ms = int((monotonic() - began) * 1000)
    return replace(delivery, timeout_ms=max(1, delivery.timeout_ms - gone_ms)) if gone_ms else delivery


def _check_topics(given: str | Sequence[str]) -> tuple[str, ...]:
    topics = (given,) if isinstance(given, str) else tuple(given)
    for topic in topics:
        if not _TOPIC.fullmatch(topic):
            raise ConfigError("callback_topics", f"contains {topic!r}, which is not the ARN of a topic")
    return topics
