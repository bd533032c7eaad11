"""Web Push over real sockets: outcomes of a push service's responses, and hosts that are off limits."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from homing import OutcomeKind
from homing.net.http_client import CurlTransport
from homing.providers.webpush.provider import WebPushProvider
from homing.testing.fault_server import (
    RESET_AFTER_READING,
    FaultServer,
    ServerAction,
    answer,
    html_page,
    throttle,
)
from support.push_deliveries import a_push
from support.web_push_browser import Browser

BROWSER = Browser()
K = OutcomeKind
PEM = (
    ec.generate_private_key(ec.SECP256R1())
    .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    .decode()
)


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (answer(201, headers={"location": "/m/1"}), K.ACCEPTED),
        (html_page(410), K.DEAD_ADDRESS),
        (throttle("3"), K.THROTTLED),
        (RESET_AFTER_READING, K.AMBIGUOUS),
    ],
)
async def test_each_response_of_a_push_service_has_its_outcome(act: ServerAction, kind: OutcomeKind) -> None:
    async with FaultServer(otherwise=act) as server:
        transport = CurlTransport()
        provider = WebPushProvider(
            transport, vapid_private_key=PEM, vapid_subject="mailto:push@example.com", base_url=server.url
        )
        outcome = await provider.send(a_push(address=BROWSER.subscription()))
        await transport.close()
    assert outcome.kind is kind
    (received,) = server.received
    assert received.path == "/send/abc?v=1"
    assert BROWSER.read(received.body)["title"] == "T"


async def test_an_endpoint_inside_the_network_is_not_called() -> None:
    async with FaultServer() as server:
        transport = CurlTransport()
        provider = WebPushProvider(transport, vapid_private_key=PEM, vapid_subject="https://example.org")
        for host in ("127.0.0.1", "localhost"):
            endpoint = f"https://{host}:{server.port}/x"
            outcome = await provider.send(a_push(address=BROWSER.subscription(endpoint=endpoint)))
            assert outcome.kind is K.BAD_RECIPIENT
        await transport.close()
    assert server.connections == 0
