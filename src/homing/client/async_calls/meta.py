"""Meta, operation by operation, for asyncio.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.calling import AsyncCalling


class AsyncMeta(AsyncCalling):
    """The operations on meta."""

    async def get_metrics(self) -> bytes:
        """What this process has counted, for Prometheus."""
        return await self._ask(bytes, "GET", "/metrics")
