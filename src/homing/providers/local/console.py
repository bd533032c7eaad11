"""Prints messages. This provider needs no account and is used if the settings list no provider."""

from __future__ import annotations

import sys
from typing import TextIO

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery


class ConsoleProvider:
    """Writes one readable line per message to a stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    async def send(self, delivery: Delivery) -> Outcome:
        content = delivery.content
        text = content.subject or content.title or content.text or content.body or ""
        line = f"[{delivery.channel.value}] to {delivery.address}: {' '.join(text.split())}\n"
        try:
            stream = self._stream or sys.stdout
            stream.write(line)
            stream.flush()
        except (OSError, ValueError) as error:
            return Outcome(OutcomeKind.TRANSIENT, error_code="console", error=str(error))
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"console-{delivery.notification_id}")

    async def check(self) -> bool:
        return True

    async def close(self) -> None:
        """Does nothing: the stream belongs to the caller."""
