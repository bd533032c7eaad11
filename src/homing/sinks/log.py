"""Events as log lines. Recipients do not appear in them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from homing.core.events import STATUS_CHANGED
from homing.core.model import Event
from homing.core.redact import redact

log = logging.getLogger("homing.events")


class LogSink:
    """Failures and alerts as warnings, status changes as information."""

    async def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            level = logging.INFO if event.name == STATUS_CHANGED else logging.WARNING
            payload = {key: value for key, value in event.payload.items() if key != "userId"}
            # A provider's words about a failure often name whom it could not reach.
            log.log(level, "%s %s", event.name, redact(msgspec.json.encode(payload).decode()))
