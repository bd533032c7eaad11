"""What a provider's test file supplies so that the suite can run against it."""

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
"""The suite's clock begins here, in 2027, and goes on by a second whenever it is asked."""

Made = Callable[[str, Transport, Callable[[], int]], Provider]


class Told(Struct, frozen=True, kw_only=True):
    """An answer of the provider, and what it means."""

    act: Act
    kind: OutcomeKind
    code: str | None = None
    """The outcome's error code; None: not looked at."""
    retry_after_ms: int | None = None
    """Looked at for throttled ones."""


class ProviderCase(Struct, frozen=True, kw_only=True):
    """One provider, as the suite needs to know it."""

    make: Made
    """`(base_url, transport, now_ms) -> provider`."""
    delivery: Delivery
    """Something that it can send. `a_delivery` makes one."""
    success: Act
    """The provider's answer to a message that it took."""
    message_id: str | None = None
    """The id in that answer."""
    failures: Mapping[str, Told]
    """By what a reader would call them: at least one for each outcome that the provider's table has."""
    throttle: Told
    """An answer that asks to wait, with how long."""
    secrets: tuple[str, ...] = ()
    """Credentials that were handed to `make`: they must not show anywhere."""
    aside: Callable[[Received], Act | None] = lambda received: None
    """Answers what is not a message: the request of an access token, say."""
    key: Callable[[Received], str | None] = lambda received: received.key
    """Where the request has the provider's idempotency key; None where there is none."""
    signature: Callable[[Received], str | None] = lambda received: None
    """What is made afresh for each attempt; None where nothing is."""


class Stage(Struct, frozen=True, kw_only=True):
    """A running server, the provider that talks to it, and what was said."""

    case: ProviderCase
    server: FaultServer
    provider: Provider
    transport: CurlTransport

    @property
    def messages(self) -> list[Received]:
        """What was received whole, without what `aside` answers."""
        return [one for one in self.server.received if self.case.aside(one) is None]

    def delivery(self, **changes: Any) -> Delivery:
        return replace(self.case.delivery, **changes)


@asynccontextmanager
async def stage(case: ProviderCase, *acts: Act) -> AsyncIterator[Stage]:
    """A server that does these acts with the messages that come, then takes all."""
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
    """One attempt; what is not named has a harmless value."""
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
