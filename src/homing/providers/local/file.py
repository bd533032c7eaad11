"""Appends messages to a file as JSON lines, for trials and for other programs to read."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import msgspec

from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery


class FileProvider:
    """Writes one line per message. A message is accepted only once its complete line is on disk."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._encoder = msgspec.json.Encoder()

    async def send(self, delivery: Delivery) -> Outcome:
        line = self._encoder.encode(
            {
                "notificationId": delivery.notification_id,
                "tenant": delivery.tenant,
                "channel": delivery.channel,
                "type": delivery.type,
                "to": delivery.address,
                "attempt": delivery.attempt,
                "content": delivery.content,
                "metadata": delivery.metadata,
            }
        )
        try:
            await asyncio.to_thread(self._append, line + b"\n")
        except OSError as error:
            return Outcome(OutcomeKind.TRANSIENT, error_code="file", error=error.strerror or str(error))
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"file-{delivery.notification_id}")

    async def check(self) -> bool:
        return self._path.parent.is_dir()

    async def diagnose(self) -> str:
        """Returns an empty text if the file's folder exists. Otherwise raises an error that names it."""
        if not await self.check():
            raise FileNotFoundError(f"the folder {self._path.parent} does not exist")
        return ""

    async def close(self) -> None:
        """Does nothing: the file is opened for each write."""

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            end = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):  # the disk became full: remove the partial line
                os.ftruncate(descriptor, end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
