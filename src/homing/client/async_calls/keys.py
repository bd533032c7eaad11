"""Keys, operation by operation, for asyncio.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from homing.client.asking import part
from homing.client.calling import AsyncCalling
from homing.client.structs.keys import KeyOrder, KeyPage, KeyQuery, NewKey, RotateOrder
from homing.core.access import Scope
from homing.core.keys import ApiKey


class AsyncKeys(AsyncCalling):
    """The operations on keys."""

    def list_keys(self, *, tenant: str | None = None, limit: int = 50) -> AsyncIterator[ApiKey]:
        """All keys, also those that have ended. What is shown of a key is not enough to use it."""
        return self._pages(KeyPage, "/api/v1/keys", KeyQuery(tenant=tenant, limit=limit))

    async def create_key(
        self,
        *,
        name: str,
        scopes: tuple[Scope, ...],
        tenant: str | None = None,
        expires_at: datetime | None = None,
        rate_per_second: float | None = None,
    ) -> NewKey:
        """Make a key. Its `text` is what a caller sends as `Authorization: Bearer …`; it is never shown
        again.
        """
        return await self._ask(
            NewKey,
            "POST",
            "/api/v1/keys",
            body=KeyOrder(
                name=name,
                scopes=scopes,
                tenant=tenant,
                expires_at=expires_at,
                rate_per_second=rate_per_second,
            ),
        )

    async def get_key(self, id: str) -> ApiKey:
        """One key, and when it was last used."""
        return await self._ask(ApiKey, "GET", f"/api/v1/keys/{part(id)}")

    async def revoke_key(self, id: str) -> ApiKey:
        """Refuse a key: at once in the process that answers this, within five seconds in all others."""
        return await self._ask(ApiKey, "POST", f"/api/v1/keys/{part(id)}/revoke")

    async def rotate_key(self, id: str, *, overlap_ms: int = 86400000) -> NewKey:
        """Make a new key in the place of this one, which stays good for a while.

        The new one has the same tenant, name, scopes and rate, and lives as long as the old one was
        made to.
        """
        return await self._ask(
            NewKey, "POST", f"/api/v1/keys/{part(id)}/rotate", body=RotateOrder(overlap_ms=overlap_ms)
        )
