"""Vendors on real sockets, on their own thread: they accept everything unless a test says otherwise."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, defaultdict, deque
from typing import Any

from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction, answer
from support.smtp_servers import ScriptedSmtpServer, SmtpReply

_PATHS = {
    "token": "/token",
    "twilio": "/2010-04-01/",
    "sns": "/sns",
    "sendgrid": "/v3/mail/send",
    "acs": "/emails:send",
    "fcm": "messages:send",
    "webhook": "/",
}
"""Vendor → part of the path of its requests. The first one that fits decides."""


class VendorServer:
    """All vendors with an HTTP API on one address, and a mail server."""

    def __init__(self) -> None:
        self.told: dict[str, deque[ServerAction]] = defaultdict(deque)
        """What each vendor does with its next requests."""
        self.down: set[str] = set()
        """Vendors that refuse everything. `smtp` is the mail server."""
        self._calls: Counter[str] = Counter()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> VendorServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with FaultServer(script=self._act) as self._server, ScriptedSmtpServer(self._reply) as mail:
            self.url = self._server.url
            self.smtp_port = mail.port
            self._ready.set()
            await self._over.wait()

    def asked(self, vendor: str) -> bytes:
        """Returns this vendor's last message."""
        return self.received(vendor)[-1].body

    def received(self, vendor: str) -> list[ReceivedRequest]:
        """Returns this vendor's requests."""
        return [one for one in self._server.received if _vendor(one) == vendor]

    def _reply(self, connection: int, step: str) -> SmtpReply | None:
        is_refused = "smtp" in self.down and step == "MAIL"
        return b"451 4.3.0 the mail server is down\r\n" if is_refused else None

    def _act(self, received: ReceivedRequest) -> ServerAction:
        vendor = _vendor(received)
        self._calls[vendor] += 1
        if vendor in self.down:
            return answer(503, b"down")
        planned = self.told[vendor]
        return planned.popleft() if planned else self._taken(vendor, received)

    def _taken(self, vendor: str, received: ReceivedRequest) -> ServerAction:
        number = self._calls[vendor]
        match vendor:
            case "token":
                return json_answer(200, {"access_token": "ya29", "expires_in": 3600, "token_type": "Bearer"})
            case "twilio":
                return json_answer(201, {"sid": f"SM{number:032}", "status": "queued"})
            case "sns":
                said = f"<R><PublishResult><MessageId>sns-{number}</MessageId></PublishResult></R>"
                return answer(200, said.encode())
            case "sendgrid":
                return answer(202, headers={"x-message-id": f"sg-{number}"})
            case "acs":
                return json_answer(202, {"id": received.headers["operation-id"], "status": "Running"})
            case "fcm":
                return json_answer(200, {"name": f"projects/demo-proj/messages/{number}"})
            case _:
                wrong = received.headers.get("x-trigger-secret") == "WRONG_SECRET"
                return answer(401 if wrong else 200)


def json_answer(status: int, said: Any) -> ServerAction:
    return answer(status, json.dumps(said).encode(), {"content-type": "application/json"})


def _vendor(received: ReceivedRequest) -> str:
    return next(name for name, path in _PATHS.items() if path in received.path)
