"""`ProviderCase` describes a provider to the suite; `stage` starts a server for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from homing.core.model import Channel, Content, OutcomeKind, Priority, Recipient
from homing.core.ports import Delivery, Provider
from homing.core.request import ADDRESS_FIELD
from homing.providers.guard import Guard, networks
from homing.providers.http import Transport
from homing.providers.transport import CurlTransport
from homing.testing.faults import Act, FaultServer, Received

NOW_MS = 1_800_000_000_000
"""Start of the suite's clock, in 2027. The clock advances by one second with each call."""

Made = Callable[[str, Transport, Callable[[], int]], Provider]
"""Creates the provider: `(base_url, transport, now_ms) -> provider`."""


class Told(Struct, frozen=True, kw_only=True):
    """A response of the vendor and the outcome that the provider must return for it."""

    act: Act
    kind: OutcomeKind
    code: str | None = None
    """Expected error code of the outcome. None if the code does not matter."""
    retry_after_ms: int | None = None
    """Expected wait. Checked only for `ProviderCase.throttle`."""


class ProviderCase(Struct, frozen=True, kw_only=True):
    """Describes one provider to the suite."""

    make: Made
    """Creates the provider."""
    delivery: Delivery
    """A delivery that the provider can send. `a_delivery` creates one."""
    success: Act
    """The vendor's response to an accepted message."""
    message_id: str | None = None
    """Message id in the `success` response. None if it has none."""
    failures: Mapping[str, Told]
    """Failures by a descriptive name: at least one for each outcome in the provider's error table."""
    throttle: Told
    """A response that asks the client to wait and states for how long."""
    secrets: tuple[str, ...] = ()
    """Credentials that `make` uses. They must not appear in outcomes, logs or `repr`."""
    aside: Callable[[Received], Act | None] = lambda received: None
    """Returns the action for a request that is not a message, such as a request for an access token, else
    None."""
    key: Callable[[Received], str | None] = lambda received: received.key
    """Returns a request's idempotency key, or None if the provider sends none."""
    signature: Callable[[Received], str | None] = lambda received: None
    """Returns the part of a request that must differ between attempts, or None if there is no such part."""


class Stage(Struct, frozen=True, kw_only=True):
    """A running fault server, and a provider that sends to it."""

    case: ProviderCase
    server: FaultServer
    provider: Provider
    transport: CurlTransport

    @property
    def messages(self) -> list[Received]:
        """Returns the messages that were received completely, without the requests that `aside` handles."""
        return [one for one in self.server.received if self.case.aside(one) is None]

    def delivery(self, **changes: Any) -> Delivery:
        """Returns the case's delivery with these fields changed."""
        return replace(self.case.delivery, **changes)


@asynccontextmanager
async def stage(case: ProviderCase, *acts: Act) -> AsyncIterator[Stage]:
    """Starts a server that takes these actions for the first messages and accepts all later ones."""
    left = list(acts)

    def script(received: Received) -> Act:
        beside = case.aside(received)
        return beside if beside is not None else left.pop(0) if left else case.success

    ticks = iter(range(NOW_MS, NOW_MS + 10_000_000, 1_000))
    transport = CurlTransport(guard=Guard(networks=networks(["127.0.0.0/8"], "test"), http=True))
    async with FaultServer(script) as server:
        provider = case.make(server.url, transport, lambda: next(ticks))
        try:
            yield Stage(case=case, server=server, provider=provider, transport=transport)
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
