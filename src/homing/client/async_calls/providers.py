"""Providers, operation by operation, for asyncio.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.asking import part
from homing.client.calling import AsyncCalling
from homing.client.structs.providers import (
    BreakerOrder,
    BreakerPhase,
    Health,
    ProviderView,
    TestMessage,
    Tried,
)
from homing.client.structs.queue import Items
from homing.core.model import Channel


class AsyncProviders(AsyncCalling):
    """The operations on providers."""

    async def list_providers(self) -> Items[ProviderView]:
        """The providers, the routes they are on, and their breakers as they are now."""
        return await self._ask(Items[ProviderView], "GET", "/api/v1/providers")

    async def get_provider(self, id: str) -> ProviderView:
        """One provider."""
        return await self._ask(ProviderView, "GET", f"/api/v1/providers/{part(id)}")

    async def check_providers(self) -> Items[Health]:
        """Ask every provider whether it is usable. Changes nothing."""
        return await self._ask(Items[Health], "POST", "/api/v1/providers/check")

    async def check_provider(self, id: str) -> Health:
        """Ask one provider whether it is usable. Changes nothing."""
        return await self._ask(Health, "POST", f"/api/v1/providers/{part(id)}/check")

    async def test_provider(self, id: str, *, address: str, channel: Channel | None = None) -> Tried:
        """Really send a test message, now, through this provider alone.

        Nothing is stored and nothing is tried again; breaker, rate limit and preferences are not asked.
        """
        return await self._ask(
            Tried,
            "POST",
            f"/api/v1/providers/{part(id)}/test",
            body=TestMessage(address=address, channel=channel),
        )

    async def set_breaker(self, id: str, *, phase: BreakerPhase, why: str = "") -> ProviderView:
        """Open or close a provider's breaker by hand, or give it back."""
        return await self._ask(
            ProviderView,
            "POST",
            f"/api/v1/providers/{part(id)}/breaker",
            body=BreakerOrder(phase=phase, why=why),
        )
