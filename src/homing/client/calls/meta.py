"""Meta, operation by operation.

Written by tools/make_client.py.
"""

from __future__ import annotations

from homing.client.calling import Calling


class Meta(Calling):
    """The operations on meta."""

    def get_metrics(self) -> bytes:
        """What this process has counted, for Prometheus."""
        return self._ask(bytes, "GET", "/metrics")
