"""A sink that publishes events to a queue or topic of Azure Service Bus, over HTTPS."""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any, ClassVar
from urllib.parse import quote, quote_plus, urlsplit

from msgspec import Struct, json

from homing.core.errors import ConfigError, SinkUnavailable
from homing.core.lifecycle.events import NOTIFICATION_FAILED, Event, event_body, event_headers
from homing.net.endpoint_settings import check_base_url
from homing.net.http_messages import HttpRequest, HttpResponse, Transport
from homing.net.secrets import Secret, read_secret
from homing.sinks.http_publishing import BUSY_STATUSES, TAKEN, Round, SinkOverHttp, Verdict, WallClock

_TOKEN_S, _RENEW_S = 3_600, 600
"""Lifetime of an access token, and the time before its expiry at which it is replaced."""

_MIN_BATCH_BYTES, _MAX_BATCH_BYTES = 1_000, 1_000_000

_MAX_BATCH_EVENTS = 100

_SAFE_MESSAGE_BYTES = 60_000
"""Size up to which an answer of 403 cannot mean that a message is too large."""

_MAX_SKEW_MS = 300_000
"""Difference of the clocks with which access tokens may be refused."""

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")

_JSON_BATCH = "application/vnd.microsoft.servicebus.json"


class ConnectionString(Struct, frozen=True):
    """The parts of a connection string, as the Azure portal shows it."""

    host: str
    policy: str
    key: Secret
    entity: str
    """Queue or topic. Empty if the string is that of a whole namespace."""

    @classmethod
    def parse(cls, given: Secret, field: str = "connection_string") -> ConnectionString:
        """Parses a connection string. Raises `ConfigError`, without any part of it, if it is not valid."""
        parts: dict[str, str] = {}
        for part in given.reveal().strip().strip(";").split(";"):
            name, mark, value = part.partition("=")
            if not mark:
                raise ConfigError(field, "is not a list of NAME=VALUE, separated by semicolons")
            parts[name.strip().lower()] = value.strip()
        host = _host_of(parts.get("endpoint", ""))
        if not _HOST.fullmatch(host):
            raise ConfigError(field, "has no Endpoint like sb://NAMESPACE.servicebus.windows.net/")
        policy, key = parts.get("sharedaccesskeyname", ""), parts.get("sharedaccesskey", "")
        if not policy or not key:
            problem = "has no SharedAccessKeyName and SharedAccessKey; copy it from a shared access policy"
            raise ConfigError(field, problem)
        return cls(host, policy, Secret(key), parts.get("entitypath", ""))


def create_sas_token(uri: str, policy: str, key: Secret, expires_s: int) -> str:
    """Returns an access token for a resource, valid until `expires_s` (seconds since the epoch)."""
    resource = quote_plus(uri)
    digest = hmac.new(key.reveal().encode(), f"{resource}\n{expires_s}".encode(), sha256).digest()
    signature = quote_plus(b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_s}&skn={quote_plus(policy)}"


class ServiceBusSink(SinkOverHttp):
    """Publishes events in batches. If a batch is refused, each of its events is published alone."""

    default_events: ClassVar[frozenset[str]] = frozenset({NOTIFICATION_FAILED})

    def __init__(
        self,
        transport: Transport,
        *,
        connection_string: str | Secret,
        entity: str = "",
        sessions: bool = False,
        max_batch_bytes: int = 200_000,
        timeout_ms: int = 10_000,
        base_url: str = "",
        now_ms: WallClock,
    ) -> None:
        super().__init__(transport, now_ms, timeout_ms)
        if not _MIN_BATCH_BYTES <= max_batch_bytes <= _MAX_BATCH_BYTES:
            problem = f"is {max_batch_bytes}; it must be between {_MIN_BATCH_BYTES} and {_MAX_BATCH_BYTES}"
            raise ConfigError("max_batch_bytes", problem)
        self._account = ConnectionString.parse(read_secret("connection_string", connection_string))
        self._entity = _choose_entity(entity, self._account.entity)
        self._resource = f"https://{self._account.host}/{self._entity}"
        base = check_base_url(base_url) if base_url else f"https://{self._account.host}"
        self._url = f"{base}/{quote(self._entity)}"
        self._sessions = sessions
        self._max_batch_bytes = max_batch_bytes
        self._batches = True
        """False once a batch was refused whose events were all accepted alone."""
        self._token, self._renew_at_ms = "", 0

    async def publish(self, events: Sequence[Event]) -> None:
        """Publishes events in order. Raises `SinkUnavailable` or `EventsRefused` unless all were taken."""
        round_ = self.start_round()
        for batch in self._split(events):
            if not round_.goes_on():
                break
            await self._publish_batch([event for event in batch if not round_.is_waiting(event)], round_)
        round_.finish()

    async def diagnose(self) -> str:
        """Checks that the namespace can be reached, and that its clock agrees. It publishes nothing."""
        headers = (("authorization", self._authorize()),)
        answer = await self.probe(HttpRequest(self._url, b"", headers, "GET"))
        if answer.status in (404, 410):
            raise SinkUnavailable(f"{answer.status}: there is no queue or topic {self._entity}")
        skew_ms = _skew_ms(answer, self._now_ms())
        if skew_ms is not None and abs(skew_ms) > _MAX_SKEW_MS:
            minutes = round(abs(skew_ms) / 60_000)
            raise SinkUnavailable(
                f"its clock differs from ours by {minutes} minutes, so it refuses our tokens"
            )
        what = f"whether {self._account.policy} may send to {self._entity}"
        return f"{self._account.host} answers; only an event shows {what}"

    def _split(self, events: Sequence[Event]) -> Iterator[list[Event]]:
        """Yields batches of limited size. An event that exceeds the size is a batch of its own."""
        batch: list[Event] = []
        size = 2
        for event in events:
            bytes_ = len(json.encode(self._item(event))) + 1
            full = size + bytes_ > self._max_batch_bytes or len(batch) >= _MAX_BATCH_EVENTS
            if batch and (full or not self._batches):
                yield batch
                batch, size = [], 2
            batch.append(event)
            size += bytes_
        if batch:
            yield batch

    async def _publish_batch(self, batch: Sequence[Event], round_: Round) -> None:
        if len(batch) > 1:
            body = json.encode([self._item(event) for event in batch])
            verdict = await self._post(body, (("content-type", _JSON_BATCH),), round_)
            if verdict.kind != "refused":
                round_.record(batch, verdict)
                return
        before = len(round_.refused)
        for event in batch:
            if not round_.goes_on():
                return
            if not round_.is_waiting(event):
                round_.record([event], await self._publish_one(event, round_))
        if len(batch) > 1 and len(round_.refused) == before and round_.goes_on():
            self._batches = False

    async def _publish_one(self, event: Event, round_: Round) -> Verdict:
        item = self._item(event)
        headers = [("content-type", "application/json")]
        headers.append(("brokerproperties", _ascii_json(item["BrokerProperties"])))
        headers += [(name, _ascii_json(value)) for name, value in item["UserProperties"].items()]
        return await self._post(event_body(event), headers, round_)

    def _item(self, event: Event) -> dict[str, Any]:
        """Returns an event as an element of a batch."""
        broker: dict[str, str] = {"MessageId": event.id, "Label": event.name}
        if event.notification_id is not None:
            broker["CorrelationId"] = event.notification_id
        if self._sessions:
            broker["SessionId"] = event.notification_id or event.name
        properties = event_headers(event)
        if event.traceparent is not None:
            properties["Diagnostic-Id"] = event.traceparent  # the name that Azure's own libraries use
        return {
            "Body": event_body(event).decode(),
            "BrokerProperties": broker,
            "UserProperties": properties,
        }

    async def _post(self, body: bytes, headers: Iterable[tuple[str, str]], round_: Round) -> Verdict:
        all_headers = (("authorization", self._authorize()), *headers)
        answer = await self.send(HttpRequest(f"{self._url}/messages", body, all_headers), round_)
        return answer if isinstance(answer, Verdict) else self._judge(answer, len(body))

    def _judge(self, answer: HttpResponse, size: int) -> Verdict:
        status = answer.status
        if 200 <= status < 300:
            return TAKEN
        if status == 401:
            self._token = ""
            return self.unavailable(answer, "the token was refused; check the key, the policy and the clock")
        if status in (404, 410):
            return self.unavailable(answer, f"there is no queue or topic {self._entity}")
        if status == 403 and size <= _SAFE_MESSAGE_BYTES:
            return self.unavailable(answer, f"the quota of {self._entity} is exceeded, or it is disabled")
        if status in BUSY_STATUSES or status >= 500:
            return self.unavailable(answer, "the server is busy")
        if status in (400, 403, 413):
            return Verdict("refused", f"{status}: the message is malformed or too large ({size} bytes)")
        return self.unavailable(answer, "the answer is not one of Azure Service Bus; check base_url")

    def _authorize(self) -> str:
        """Returns an access token. It is kept until it is about to expire."""
        now_ms = self._now_ms()
        if not self._token or not self._renew_at_ms - 1000 * _TOKEN_S < now_ms < self._renew_at_ms:
            expires_s = now_ms // 1000 + _TOKEN_S
            account = self._account
            self._token = create_sas_token(self._resource, account.policy, account.key, expires_s)
            self._renew_at_ms = 1000 * (expires_s - _RENEW_S)
        return self._token


def _host_of(endpoint: str) -> str:
    """Returns the host of an endpoint, or an empty string if the endpoint is not one of Service Bus."""
    try:
        parts = urlsplit(endpoint)
    except ValueError:  # such as an unfinished IPv6 address
        return ""
    return (parts.hostname or "") if parts.scheme in ("sb", "https") else ""


def _choose_entity(own: str, of_string: str) -> str:
    """Returns the queue or topic from the setting or from the connection string."""
    found = (own or of_string).strip("/")
    if own and of_string and own.strip("/") != of_string.strip("/"):
        raise ConfigError("entity", "is not the EntityPath of connection_string; set one of them")
    if not found or len(found) > 260 or not found.isprintable() or ".." in found:
        raise ConfigError("entity", "is missing or not valid; set it to the name of a queue or topic")
    return found


def _ascii_json(value: object) -> str:
    """Returns JSON that a header can carry."""
    text = json.encode(value).decode()
    return "".join(char if char.isascii() else _escape(char) for char in text)


def _escape(char: str) -> str:
    """Returns the JSON escape of a character, with two units beyond the Basic Multilingual Plane."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def _skew_ms(answer: HttpResponse, now_ms: int) -> int | None:
    """Returns how far the server's clock is ahead of ours, or None if the answer does not say."""
    try:
        return int(parsedate_to_datetime(answer.headers.get("date", "")).timestamp() * 1000) - now_ms
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
