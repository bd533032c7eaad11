"""Deliveries and contents for tests of email providers."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from hypothesis import strategies as st

from homing.core.notifications import Attachment, Channel, Content, Priority, Recipient
from homing.core.ports.providers import Delivery
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure

ID = "018d0c7e-5a00-7000-8000-000000000001"
NOW_MS = 1_705_320_000_000
"""2024-01-15 12:00:00 UTC, the time of the vectors."""


def a_mail(content: Content | None = None, **fields: Any) -> Delivery:
    given: dict[str, Any] = {
        "notification_id": ID,
        "tenant": "acme",
        "channel": Channel.EMAIL,
        "type": "order_confirmed",
        "priority": Priority.MEDIUM,
        "recipient": Recipient(email="ada@example.org"),
        "address": "ada@example.org",
        "content": content or Content(subject="Your order", text="It is on its way."),
        "idempotency_key": ID,
        "attempt": 1,
        "timeout_ms": 60_000,
        **fields,
    }
    return Delivery(**given)


class FakeTransport:
    """A transport that records its requests and returns the given response."""

    def __init__(self, answer: HttpResponse | TransportFailure) -> None:
        self.answer = answer
        self.requests: list[HttpRequest] = []

    async def send(self, request: HttpRequest, *, timeout_ms: int) -> HttpResponse | TransportFailure:
        self.requests.append(request)
        return self.answer

    async def close(self) -> None: ...


UNREACHABLE = FakeTransport(TransportFailure(code="connect", error="connection refused", written=False))

FULL = Content(
    subject="Grüße aus Köln – Ihre Bestellung ist unterwegs und kommt morgen an, wenn alles gut geht",
    text="Hallo Ada,\n\n.ein Punkt am Anfang\n.\nBis morgen!\n" + "lang " * 300,
    html="<p>Hallo <b>Ada</b> 🐦</p>",
    attachments=(
        Attachment("rechnung.pdf", "JVBERi0xLjQKJcOkw7zDtsOfCg==", "application/pdf"),
        Attachment('Ünï "code".txt', "w6TDtsO8\r\n", "text/plain"),
    ),
    headers={"X-Entity-Ref-ID": "order-17", "Auto-Submitted": "auto-generated"},
    unsubscribe_url="https://notify.example.com/u/opaque-token",
)
"""Long lines, leading dots, two alphabets, attachments with and without plain names."""

_line = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=120).filter(
    lambda text: "=?" not in text
)
_text = st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\t\n\r"), max_size=600)

contents = st.builds(
    Content,
    subject=_line,
    text=_text.filter(bool),
    html=st.none() | _text,
    attachments=st.lists(
        st.builds(
            Attachment,
            filename=st.from_regex(r"[\w äöü\"'()-]{0,40}\.[a-z]{1,4}", fullmatch=True)
            .map(str.strip)
            .filter(lambda name: name.strip(" .") != "" and "\n" not in name),
            content=st.binary(min_size=1, max_size=200).map(lambda data: b64encode(data).decode()),
            content_type=st.sampled_from(["text/plain", "application/pdf", "image/png"]),
        ),
        max_size=3,
    ).map(tuple),
    headers=st.none()
    | st.dictionaries(
        st.from_regex(r"X-[A-Z][a-z]{1,20}", fullmatch=True),
        st.from_regex(r"[!-<>-~]([ -<>-~]{0,200}[!-<>-~])?", fullmatch=True),
        max_size=3,
    ),
    unsubscribe_url=st.none() | st.just("https://notify.example.com/u/1"),
)
