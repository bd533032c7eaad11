"""Creates the indexes of the declared metadata keys when a worker starts."""

from __future__ import annotations

import logging
from collections.abc import Collection

from homing.core.errors import StoreError
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import SupportsMetadataIndexes

log = logging.getLogger("homing.upkeep")

_AGAIN_MS = 60_000
"""Time after which a call that failed is repeated."""


async def index_declared_metadata(
    store: SupportsMetadataIndexes, keys: Collection[str], clock: Clock
) -> None:
    """Lets the store create and drop indexes, so that exactly these keys have one.

    Tries again while the store is unavailable. Until an index is complete, searches scan instead.
    """
    while True:
        try:
            await store.index_metadata(keys)
            return
        except StoreError as error:
            log.warning("the declared metadata keys cannot be indexed; trying again in a minute: %s", error)
        await clock.sleep_ms(_AGAIN_MS)
