"""Wakes the workers of other processes when something was accepted, through a change stream.

A process that has accepted something touches one document, at most once at a time, and every worker watches
that document. A lost wake-up only delays work until the next poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pymongo
from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from homing.stores.mongo.schema import WAKE_UPS
from homing.stores.mongo.transaction import SwallowedCancellation

log = logging.getLogger("homing.store")

_KEY = "accepted"

_TIMEOUT_S = 5.0
"""Longest time for sending a wake-up, or for closing the change stream."""

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
"""First and longest pause before a lost change stream is opened again."""


class WakeUps:
    """The wake-ups that this process sends and receives."""

    def __init__(self, database: Callable[[], Any]) -> None:
        """`database` returns the database of the open connection."""
        self._database = database
        self._announcing: asyncio.Task[None] | None = None
        self._again = False
        self.hears = False
        """True while the change stream is open."""

    def announce(self) -> None:
        """Wakes the workers of other processes. Does not wait for that."""
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self._announce(), name="homing-wake-up")
        else:
            self._again = True

    async def listen(self, wake: Callable[[], None]) -> None:
        """Calls `wake` after each announcement, until it is cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                with SwallowedCancellation():
                    changes = await self._database()[WAKE_UPS].watch()
                try:
                    self.hears, pause_s = True, _FIRST_PAUSE_S
                    wake()  # something may have been accepted before the stream was open
                    while changes.alive:
                        with SwallowedCancellation():
                            change = await changes.try_next()  # answered within a second
                        if change is not None:
                            wake()
                finally:
                    with pymongo.timeout(_TIMEOUT_S):
                        await changes.close()
            except PyMongoError as error:
                if self.hears:
                    name = type(error).__name__
                    log.warning("wake-ups by MongoDB are interrupted, workers poll meanwhile: %s", name)
            finally:
                self.hears = False
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def close(self) -> None:
        """Waits for an announcement in progress."""
        if self._announcing is not None:
            await asyncio.gather(self._announcing, return_exceptions=True)

    async def _announce(self) -> None:
        self._again = True
        while self._again:
            self._again = False
            try:
                touched = self._database()[WAKE_UPS].with_options(write_concern=WriteConcern(1))
                with pymongo.timeout(_TIMEOUT_S):
                    await touched.update_one({"_id": _KEY}, {"$inc": {"number": 1}}, upsert=True)
            except PyMongoError as error:
                log.debug("a wake-up was lost: %s", type(error).__name__)
                return
