"""Suppressions, operation by operation.

Written by tools/make_client.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from homing.client.calling import Calling
from homing.client.structs.suppressions import (
    SuppressionPage,
    SuppressionPlace,
    SuppressionQuery,
    SuppressionWritten,
)
from homing.core.model import Channel
from homing.core.recipients import Suppression


class Suppressions(Calling):
    """The operations on suppressions."""

    def list_suppressions(
        self, *, channel: Channel | None = None, address: str | None = None, limit: int = 50
    ) -> Iterator[Suppression]:
        """List addresses that must not be written to."""
        return self._pages(
            SuppressionPage,
            "/api/v1/suppressions",
            SuppressionQuery(channel=channel, address=address, limit=limit),
        )

    def add_suppression(
        self, *, channel: Channel, address: str, category: str = "*", why: str = ""
    ) -> Suppression:
        """Suppress an address on a channel: in one category, or (`*`) in all.

        What is on its way is skipped too: it is looked at before every attempt.
        """
        return self._ask(
            Suppression,
            "POST",
            "/api/v1/suppressions",
            body=SuppressionWritten(channel=channel, address=address, category=category, why=why),
        )

    def lift_suppression(self, *, channel: Channel, address: str, category: str = "*") -> None:
        """Lift one suppression."""
        self._ask(
            type(None),
            "DELETE",
            "/api/v1/suppressions",
            query=SuppressionPlace(channel=channel, address=address, category=category),
        )
