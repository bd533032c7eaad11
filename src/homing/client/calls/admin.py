"""Admin, operation by operation.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.asking import given, part
from homing.client.calling import Calling
from homing.client.structs.admin import AdminRetried, AdminRetryBody, PurgeBody, Purged


class Admin(Calling):
    """The operations on admin."""

    def retry_notification(
        self, id: str, *, reason: str, force_provider: str | None = None, admin_override: bool = False
    ) -> AdminRetried:
        """Try one notification again now, with one attempt granted if none is left.

        A synchronous one is never tried again, and one that was resent lives on in its successor.
        """
        return self._ask(
            AdminRetried,
            "POST",
            f"/api/v1/admin/notifications/{part(id)}/retry",
            body=AdminRetryBody(reason=reason, force_provider=force_provider),
            headers=given({"X-Admin-Override": "true" if admin_override else None}),
        )

    def purge(
        self,
        *,
        days: float | None = None,
        delivered_days: float | None = None,
        sent_days: float | None = None,
        others_days: float | None = None,
        keys_days: float | None = None,
        dry_run: bool = False,
    ) -> Purged:
        """Remove what has ended and is past its age, of all tenants, in small steps.

        `complete` is false where there is more than could be removed in the time of one request.
        """
        return self._ask(
            Purged,
            "POST",
            "/api/v1/admin/purge",
            body=PurgeBody(
                days=days,
                delivered_days=delivered_days,
                sent_days=sent_days,
                others_days=others_days,
                keys_days=keys_days,
                dry_run=dry_run,
            ),
        )
