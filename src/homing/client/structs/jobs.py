"""What the service takes and answers with: jobs.

Written by tools/make_client.py.
"""

from __future__ import annotations

from msgspec import Struct


class JobQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many."""

    limit: int = 50
