"""The free space on the disk of a SQLite store."""

from __future__ import annotations

import shutil
from pathlib import Path

LEAST_FREE_BYTES = 200 * 1024 * 1024
"""Below this number of free bytes, `homing doctor` advises to free some space."""

FULL_DISK_BYTES = 20 * 1024 * 1024
"""Below this number of free bytes, `homing health` and `homing now` report that the disk is full."""

FULL_DISK_ADVICE = "free some space; on a full disk nothing is accepted (`homing purge` helps a little)"


def free_disk_bytes(store: str) -> int | None:
    """Returns the free bytes on the disk of a store. None if the store is not a local file."""
    path = store.removeprefix("sqlite:")
    if path == "memory:" or "://" in path:
        return None
    return shutil.disk_usage(Path(path).resolve().parent).free
