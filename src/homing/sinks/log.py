"""A sink that writes events to the log, without the ids and addresses of recipients."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from homing.core.lifecycle.events import STATUS_CHANGED, Event
from homing.core.redaction import redact

log = logging.getLogger("homing.events")


class LogSink:
    """Logs failures and alerts as warnings, and status changes as information."""

    async def open(self) -> None:
        """Does nothing: there is no connection."""

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    async def publish(self, events: Sequence[Event]) -> None:
        """Writes one log line per event."""
        for event in events:
            level = logging.INFO if event.name == STATUS_CHANGED else logging.WARNING
            payload = {key: value for key, value in event.payload.items() if key != "userId"}
            # A provider's error text often contains the address it could not reach.
            log.log(level, "%s %s", event.name, redact(msgspec.json.encode(payload).decode()))
