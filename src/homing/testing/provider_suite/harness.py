"""Helpers of the provider suite: the description of a provider, a running test bed, and a test delivery."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from homing.core.notifications import Channel, Content, OutcomeKind, Priority, Recipient
from homing.core.ports.providers import Delivery, Provider
from homing.core.send_request import ADDRESS_FIELD
from homing.net.http_client import CurlTransport
from homing.net.http_messages import Transport
from homing.net.ssrf_guard import AddressGuard, parse_networks
from homing.testing.fault_server import FaultServer, ReceivedRequest, ServerAction

NOW_MS = 1_800_000_000_000
"""Start of the suite's clock, in epoch milliseconds: January 2027. The clock advances by one second with
each call."""

MakeProvider = Callable[[str, Transport, Callable[[], int]], Provider]
"""Creates the provider: `(base_url, transport, now_ms) -> provider`."""


class ExpectedOutcome(Struct, frozen=True, kw_only=True):
    """A response of the vendor and the outcome that the provider must return for it."""

    act: ServerAction
    kind: OutcomeKind
    code: str | None = None
    """Expected error code of the outcome. None if the code does not matter."""
    retry_after_ms: int | None = None
    """Expected wait before a retry, in milliseconds. Checked only for `ProviderCase.throttle`."""


class ProviderCase(Struct, frozen=True, kw_only=True):
    """Describes one provider to the suite."""

    make: MakeProvider
    """Creates the provider."""
    delivery: Delivery
    """A delivery that the provider can send. `a_delivery` creates one."""
    success: ServerAction
    """The vendor's response to an accepted message."""
    message_id: str | None = None
    """Message id in the `success` response. None if the response has no message id."""
    failures: Mapping[str, ExpectedOutcome]
    """Failures by a descriptive name: at least one for each outcome in the provider's error table."""
    throttle: ExpectedOutcome
    """A response that asks the client to wait and states for how long."""
    secrets: tuple[str, ...] = ()
    """Credentials that `make` uses. They must not appear in outcomes, logs or `repr`."""
    aside: Callable[[ReceivedRequest], ServerAction | None] = lambda received: None
    """Returns the action for a request that is not a message, such as a request for an access token.
    Returns None for a message."""
    key: Callable[[ReceivedRequest], str | None] = lambda received: received.key
    """Returns a request's idempotency key, or None if the provider sends none."""
    signature: Callable[[ReceivedRequest], str | None] = lambda received: None
    """Returns the part of a request that must differ between attempts, or None if there is no such part."""


class ProviderTestbed(Struct, frozen=True, kw_only=True):
    """A running fault server, and a provider that sends to it."""

    case: ProviderCase
    server: FaultServer
    provider: Provider
    transport: CurlTransport

    @property
    def messages(self) -> list[ReceivedRequest]:
        """Returns the messages that were received completely, without the requests that `aside` handles."""
        return [one for one in self.server.received if self.case.aside(one) is None]

    def delivery(self, **changes: Any) -> Delivery:
        """Returns the case's delivery with these fields changed."""
        return replace(self.case.delivery, **changes)


@asynccontextmanager
async def open_testbed(case: ProviderCase, *acts: ServerAction) -> AsyncIterator[ProviderTestbed]:
    """Starts a fault server, and a provider that sends to it.

    The server takes these actions for the first messages and accepts all later messages.
    """
    left = list(acts)

    def script(received: ReceivedRequest) -> ServerAction:
        beside = case.aside(received)
        return beside if beside is not None else left.pop(0) if left else case.success

    ticks = iter(range(NOW_MS, NOW_MS + 10_000_000, 1_000))
    transport = CurlTransport(guard=AddressGuard(networks=parse_networks(["127.0.0.0/8"], "test"), http=True))
    async with FaultServer(script) as server:
        provider = case.make(server.url, transport, lambda: next(ticks))
        try:
            yield ProviderTestbed(case=case, server=server, provider=provider, transport=transport)
        finally:
            await provider.close()
            await transport.close()


def a_delivery(channel: Channel, address: str, content: Content | None = None, **fields: Any) -> Delivery:
    """Returns a delivery for a first attempt. `fields` override its defaults."""
    return Delivery(
        **{
            "notification_id": "018f4e6a-7c11-7d2a-9d3e-2f1b3c4d5e6f",
            "tenant": "default",
            "channel": channel,
            "type": "order_confirmed",
            "priority": Priority.MEDIUM,
            "recipient": Recipient(**{ADDRESS_FIELD[channel]: address}),
            "address": address,
            "content": content or Content(subject="Hello", title="Hello", body="Your order is on its way."),
            "idempotency_key": "018f4e6a-7c11-7d2a-9d3e-2f1b3c4d5e6f",
            "attempt": 1,
            "timeout_ms": 60_000,
            **fields,
        }
    )
