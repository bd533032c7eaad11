"""A local server that answers as Azure Service Bus does over HTTPS, written from its public description."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import urllib.parse
from typing import Any

from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer
from homing.testing.fault_server import _head as read_head
from homing.testing.fault_server import _with_body as read_body

HOST = "homing-test.servicebus.windows.net"

KEY = "YW5vdGhlcitrZXkvd2l0aCtzaWducz09"


class ServiceBusServer(FaultServer):
    """One namespace with a few queues. Keeps each accepted message, in order, without repeated ones."""

    def __init__(self, tls: ssl.SSLContext, now_ms: int = 1_760_000_000_000) -> None:
        super().__init__(tls=tls)
        self.now_ms = now_ms
        self.queues = {"alerts"}
        self.sessions = False
        """True if messages need a SessionId, and a request may have messages of one session only."""
        self.max_bytes = 256 * 1024
        self.keys = {"send-only": KEY}
        self.full = False
        self.refused_ids: set[str] = set()
        self.messages: list[dict[str, Any]] = []
        """`Body`, `BrokerProperties` and `UserProperties` of each message that was taken."""
        self.statuses: list[int] = []

    def connection_string(self, policy: str = "send-only", key: str = KEY, entity: str = "alerts") -> str:
        ending = f";EntityPath={entity}" if entity else ""
        return f"Endpoint=sb://{HOST}/;SharedAccessKeyName={policy};SharedAccessKey={key}{ending}"

    @property
    def ids(self) -> list[str]:
        return [message["BrokerProperties"]["MessageId"] for message in self.messages]

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        received = await read_body(await read_head(reader, number), reader)
        self.received.append(received)
        act = self._acts.pop(0) if self._acts else self._answer(received)
        return await self._perform(act, writer)

    def _answer(self, received: ReceivedRequest) -> ServerAction:
        status = self._take(received)
        self.statuses.append(status)
        return answer(status, b"" if status == 201 else b"<Error/>", {"content-type": "application/xml"})

    def _take(self, received: ReceivedRequest) -> int:
        entity, _, rest = received.path.removeprefix("/").rpartition("/")
        if received.method != "POST" or rest != "messages":
            return 401  # a policy that may only send may not read the description of a queue
        entity = urllib.parse.unquote(entity)
        if not self._authorized(received, entity):
            return 401
        if entity not in self.queues:
            return 404
        if self.full or len(received.body) + sum(map(len, received.headers.values())) > self.max_bytes:
            return 403
        try:
            items = self._read(received)
        except (ValueError, KeyError, TypeError):
            return 400
        sessions = {one["BrokerProperties"].get("SessionId") for one in items}
        if self.sessions and (None in sessions or len(sessions) > 1):
            return 400
        if any(one["BrokerProperties"]["MessageId"] in self.refused_ids for one in items):
            return 400
        self.messages += [one for one in items if one["BrokerProperties"]["MessageId"] not in self.ids]
        return 201

    def _read(self, received: ReceivedRequest) -> list[dict[str, Any]]:
        if received.headers["content-type"] == "application/vnd.microsoft.servicebus.json":
            items = json.loads(received.body)
            if not isinstance(items, list) or not items:
                raise ValueError("not a list of messages")
            for one in items:
                if set(one) != {"Body", "BrokerProperties", "UserProperties"} or type(one["Body"]) is not str:
                    raise ValueError("not a message")
            return items
        own = {"authorization", "brokerproperties", "content-type", "content-length", "host", "accept"}
        properties = {
            name: json.loads(value)
            for name, value in received.headers.items()
            if name not in own and name != "user-agent"
        }
        broker = json.loads(received.headers["brokerproperties"])
        body = received.body.decode()
        return [{"Body": body, "BrokerProperties": broker, "UserProperties": properties}]

    def _authorized(self, received: ReceivedRequest, entity: str) -> bool:
        scheme, _, fields = received.headers.get("authorization", "").partition(" ")
        token = dict(urllib.parse.parse_qsl(fields))
        key = self.keys.get(token.get("skn", ""))
        if scheme != "SharedAccessSignature" or key is None or token["sr"] != f"https://{HOST}/{entity}":
            return False
        signed = f"{urllib.parse.quote_plus(token['sr'])}\n{token['se']}".encode()
        expected = base64.b64encode(hmac.new(key.encode(), signed, hashlib.sha256).digest()).decode()
        return token["sig"] == expected and int(token["se"]) * 1000 > self.now_ms
