"""AWS SNS: SMS, and push messages through the endpoints of its platform applications."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from time import monotonic

from msgspec.structs import replace

from homing.core.errors import CallbackRefused, ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback, ParsedCallback
from homing.core.notifications import Channel
from homing.core.ports.providers import Delivery
from homing.net.endpoint_settings import check_base_url
from homing.net.http_messages import HttpRequest, HttpResponse, Transport
from homing.net.secrets import Secret
from homing.providers.common.error_tables import check_max_segments, load_error_table
from homing.providers.common.http_provider import CheckFailed, HttpProvider, WallClock, wall_clock_ms
from homing.providers.sns import answers
from homing.providers.sns.callbacks import CertificateCache, SnsCallbacks, should_confirm
from homing.providers.sns.credentials import choose_credentials
from homing.providers.sns.message import SnsMessageBuilder, build_opt_out_form, build_sms_attributes
from homing.providers.sns.partitions import dns_suffix
from homing.providers.sns.signature import SigV4Signer

_FORM = (("Content-Type", "application/x-www-form-urlencoded; charset=utf-8"),)

_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]")

_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]+")

_CHECK_FORM = b"Action=GetSMSAttributes&Version=2010-03-31"

_FETCH_MS = 5_000

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException")
"""Errors after which newer credentials may be available: the used ones have expired or were deleted."""

_CREDENTIAL_ERRORS = (*_EXPIRED, "SignatureDoesNotMatch", "IncompleteSignature")


class SnsProvider(HttpProvider):
    """Sends to a phone number or an endpoint's ARN. See docs/reference/providers/sns.md."""

    channels = ("sms",)
    """The default excludes `push`, because SNS needs endpoint ARNs as addresses, not FCM tokens. The settings
    can add it.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        region: str,
        access_key_id: str | Secret = "",
        secret_access_key: str | Secret = "",
        session_token: str | Secret = "",
        profile: str = "",
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
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        if not _REGION.fullmatch(region):
            raise ConfigError("region", f"is {region!r}; use a region like eu-west-1")
        self._url = check_base_url(base_url or f"https://sns.{region}.{dns_suffix(region)}") + "/"
        self._keys = choose_credentials(
            access_key_id, secret_access_key, session_token, profile, region, now_ms
        )
        self._signer = SigV4Signer(self._keys, "sns", region)
        self._messages = SnsMessageBuilder(
            sms_attributes=build_sms_attributes(sender_id, sms_type, max_price, origination_number),
            push_attributes=tuple((name, "String", value) for name, value in (push_attributes or {}).items()),
            push_ttl=push_ttl,
            max_segments=check_max_segments(max_segments),
        )
        self._check_opt_out = check_opt_out
        self._certificates = CertificateCache()
        self._callbacks = SnsCallbacks(_check_topics(callback_topics), self._certificates)

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        return self._signed(self._messages.body(delivery, now_ms), now_ms)

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        return answers.classify(answer, now_ms)

    async def send(self, delivery: Delivery) -> Outcome:
        """Sends one message.

        If the credentials have expired or were deleted, reads them again and, if they have changed, repeats
        the request once. That is safe, because a request that was rejected for its credentials published
        nothing.
        """
        began = monotonic()
        # At most half of the time goes to the credentials: waiting for them is never ambiguous.
        failure = await self._keys.prepare(delivery.timeout_ms // 2)
        if failure is not None:
            return failure
        used = self._keys.credentials
        if (
            self._check_opt_out
            and delivery.channel is Channel.SMS
            and await self._opted_out(_with_remaining_time(delivery, began))
        ):
            return load_error_table("sns").outcome("OptedOut", 0, None)
        outcome = await super().send(_with_remaining_time(delivery, began))
        if outcome.error_code not in _EXPIRED:
            return outcome
        left_ms = _with_remaining_time(delivery, began).timeout_ms
        if not await self._keys.reload_if_replaced(used, left_ms // 2):
            return outcome
        return await super().send(_with_remaining_time(delivery, began))

    async def _opted_out(self, delivery: Delivery) -> bool:
        """Asks SNS whether the recipient has opted out, because SNS accepts such an SMS without delivering
        it.

        Without a clear answer, the SMS is sent.
        """
        request = self._signed(build_opt_out_form(delivery.address), self._now_ms())
        answer = await self._transport.send(request, timeout_ms=delivery.timeout_ms // 3)
        return isinstance(answer, HttpResponse) and answers.is_opted_out(answer)

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        """Reads delivery-status events from one of our topics. `prepare` must have run before."""
        return self._callbacks.handle_callback(callback, now_ms)

    async def prepare(self, callback: Callback, now_ms: int) -> None:
        """Fetches the certificate that verifies the callback, and confirms subscriptions. Never raises."""
        try:
            await self._fetch_certificate(self._callbacks.wanted(callback).certificate_url)
            message = self._callbacks.verified(callback, now_ms)
        except CallbackRefused:
            return  # `handle_callback` raises the same error.
        if message.subscribe_url is not None and should_confirm(message):
            await self._get(message.subscribe_url)

    async def _fetch_certificate(self, url: str) -> None:
        if self._certificates.get(url) is None:
            answer = await self._get(url)
            if answer is not None:
                self._certificates.put(url, answer.body)

    async def _get(self, url: str) -> HttpResponse | None:
        """Fetches a URL that a callback contains. Returns None unless the status is 200."""
        request = HttpRequest(url=url, method="GET", guarded=True)
        answer = await self._transport.send(request, timeout_ms=_FETCH_MS)
        return answer if isinstance(answer, HttpResponse) and answer.status == 200 else None

    async def examine(self) -> None:
        """Checks that there are credentials and that SNS accepts them."""
        if (missing := await self._keys.prepare(5_000)) is not None:
            raise CheckFailed.of(missing, "credentials")
        await super().examine()

    async def close(self) -> None:
        await self._keys.close()

    def check_request(self) -> HttpRequest:
        return self._signed(_CHECK_FORM, self._now_ms())

    def is_up(self, answer: HttpResponse) -> bool:
        """Returns False if the credentials are wrong. Credentials that only allow publishing are fine."""
        error_code = answers.classify(answer, self._now_ms()).error_code
        return super().is_up(answer) and error_code not in _CREDENTIAL_ERRORS

    def _signed(self, body: bytes, now_ms: int) -> HttpRequest:
        headers = self._signer.sign("POST", self._url, body, _FORM, now_ms)
        return HttpRequest(url=self._url, body=body, headers=headers)


def _with_remaining_time(delivery: Delivery, began: float) -> Delivery:
    """Returns the delivery with its timeout reduced by the time since `began`, in monotonic seconds."""
    gone_ms = int((monotonic() - began) * 1000)
    return replace(delivery, timeout_ms=max(1, delivery.timeout_ms - gone_ms)) if gone_ms else delivery


def _check_topics(given: str | Sequence[str]) -> tuple[str, ...]:
    topics = (given,) if isinstance(given, str) else tuple(given)
    for topic in topics:
        if not _TOPIC.fullmatch(topic):
            raise ConfigError("callback_topics", f"contains {topic!r}, which is not the ARN of a topic")
    return topics
