"""Keys, operation by operation.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from homing.client.asking import part
from homing.client.calling import Calling
from homing.client.structs.keys import KeyOrder, KeyPage, KeyQuery, NewKey, RotateOrder
from homing.core.access import Scope
from homing.core.keys import ApiKey


class Keys(Calling):
    """The operations on keys."""

    def list_keys(self, *, tenant: str | None = None, limit: int = 50) -> Iterator[ApiKey]:
        """All keys, also those that have ended. What is shown of a key is not enough to use it."""
        return self._pages(KeyPage, "/api/v1/keys", KeyQuery(tenant=tenant, limit=limit))

    def create_key(
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
        return self._ask(
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

    def get_key(self, id: str) -> ApiKey:
        """One key, and when it was last used."""
        return self._ask(ApiKey, "GET", f"/api/v1/keys/{part(id)}")

    def revoke_key(self, id: str) -> ApiKey:
        """Refuse a key: at once in the process that answers this, within five seconds in all others."""
        return self._ask(ApiKey, "POST", f"/api/v1/keys/{part(id)}/revoke")

    def rotate_key(self, id: str, *, overlap_ms: int = 86400000) -> NewKey:
        """Make a new key in the place of this one, which stays good for a while.

        The new one has the same tenant, name, scopes and rate, and lives as long as the old one was
        made to.
        """
        return self._ask(
            NewKey, "POST", f"/api/v1/keys/{part(id)}/rotate", body=RotateOrder(overlap_ms=overlap_ms)
        )
