"""A sink that posts events to a URL, signed as Standard Webhooks 1.0.0 describes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from homing.core.errors import ConfigError, SinkUnavailable
from homing.core.lifecycle.events import Event, event_body, event_headers
from homing.net.endpoint_settings import read_extra_headers
from homing.net.http_messages import HttpRequest, HttpResponse, Transport
from homing.net.secrets import Secret, read_secret
from homing.net.standard_webhooks import build_signature_header, read_signing_keys
from homing.sinks.http_publishing import (
    BUSY_STATUSES,
    TAKEN,
    Round,
    SinkOverHttp,
    Verdict,
    WallClock,
    group_by_notification,
)

MAX_IN_FLIGHT = 64

_GONE_MS = 600_000
"""Pause after the answer 410, with which a receiver asks not to be called any more."""

_ENDPOINT_PROBLEMS = {
    401: "the endpoint asks for credentials; set headers",
    403: "the endpoint refuses us; check secret and headers",
    404: "the endpoint does not exist; check url",
    405: "the endpoint does not take POST requests; check url",
    410: "the endpoint is gone; change url, or remove the sink",
}
"""Answers that concern the endpoint as a whole rather than one event."""


class WebhookSink(SinkOverHttp):
    """Posts one signed request per event. The events of a notification follow one another, others overlap."""

    def __init__(
        self,
        transport: Transport,
        *,
        url: str | Secret,
        secret: str | Secret = "",
        secrets: Sequence[str | Secret] = (),
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = 10_000,
        max_in_flight: int = 16,
        now_ms: WallClock,
    ) -> None:
        super().__init__(transport, now_ms, timeout_ms)
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise ConfigError(
                "max_in_flight", f"is {max_in_flight}; it must be between 1 and {MAX_IN_FLIGHT}"
            )
        self._url = read_secret("url", url)
        self._host = _host_of(self._url)
        self._keys = read_signing_keys(secret, secrets)
        self._headers = read_extra_headers(headers or {})
        self._max_in_flight = max_in_flight

    async def publish(self, events: Sequence[Event]) -> None:
        """Posts the events. Raises `SinkUnavailable` or `EventsRefused` unless all were accepted."""
        round_, groups = self.start_round(), group_by_notification(events)

        async def work() -> None:
            while groups and round_.goes_on():
                for event in groups.popleft():
                    if not round_.goes_on() or round_.is_waiting(event):
                        break
                    round_.record([event], await self._post(event, round_))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self._max_in_flight, len(groups))):
                tasks.create_task(work())
        round_.finish()

    async def diagnose(self) -> str:
        """Checks that the endpoint can be reached. It posts nothing."""
        request = HttpRequest(self._url.reveal(), b"", self._headers, "HEAD", guarded=True)
        answer = await self.probe(request)
        if answer.status == 410:
            raise SinkUnavailable(f"410: {_ENDPOINT_PROBLEMS[410]}")
        return f"{self._host} answers; only an event shows whether it accepts the signature"

    async def _post(self, event: Event, round_: Round) -> Verdict:
        body, timestamp_s = event_body(event), self._now_ms() // 1000
        signature = build_signature_header(self._keys, event.id, timestamp_s, body)
        headers = (
            ("content-type", "application/json"),
            ("webhook-id", event.id),
            ("webhook-timestamp", str(timestamp_s)),
            ("webhook-signature", signature),
            *event_headers(event).items(),
            *self._headers,
        )
        answer = await self.send(HttpRequest(self._url.reveal(), body, headers, "POST", guarded=True), round_)
        return answer if isinstance(answer, Verdict) else self._judge(answer)

    def _judge(self, answer: HttpResponse) -> Verdict:
        status = answer.status
        if 200 <= status < 300:
            return TAKEN
        if status in BUSY_STATUSES:
            return self.unavailable(answer, "the endpoint is busy")
        if 300 <= status < 400:
            return self.unavailable(answer, "the endpoint redirects, which is not followed; change url")
        if status in _ENDPOINT_PROBLEMS:
            return self.unavailable(answer, _ENDPOINT_PROBLEMS[status], _GONE_MS if status == 410 else 0)
        return Verdict("refused", f"{status}: the endpoint refuses the event")


def _host_of(url: Secret) -> str:
    """Returns the host of the URL. Raises `ConfigError` if it is not valid, without showing it."""
    problem = ConfigError("url", "must be a URL like https://example.org/events, without credentials")
    try:
        parts = urlsplit(url.reveal())
    except ValueError:
        raise problem from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise problem
    return parts.hostname
