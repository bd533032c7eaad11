"""Where requests wait while the store is away: a local file, handed over later exactly once.

Every line is one submission with an idempotency key, so a hand-over that is cut short and repeated
stores nothing twice.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from homing.core.errors import StoreError
from homing.core.model import Submission
from homing.core.ports import Store

log = logging.getLogger("homing.spool")

_CHUNK = 500


class Spool:
    """A file of submissions. Several processes may write to it and drain it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_name(path.name + ".lock")

    async def write(self, submission: Submission) -> Submission:
        """Keeps a submission, on disk when this returns; the key it will be handed over under is added."""
        if submission.idempotency_key is None:
            submission = replace(submission, idempotency_key=f"spool:{submission.batch_id}")
        await asyncio.to_thread(self._append, msgspec.json.encode(submission) + b"\n")
        return submission

    async def drain(self, store: Store) -> int:
        """Hands everything over; how many submissions the store has taken. The file is emptied only then."""
        if not self._path.exists():
            return 0
        with self._path.with_name(self._path.name + ".draining").open("ab") as turn:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 0  # another one is at it
            return await self._hand_over(store)

    async def _hand_over(self, store: Store) -> int:
        waiting = await asyncio.to_thread(self._read)
        for start in range(0, len(waiting), _CHUNK):
            chunk = waiting[start : start + _CHUNK]
            for submission, answer in zip(chunk, await store.accept(chunk), strict=True):
                if answer.conflict:
                    await asyncio.to_thread(self._refuse, submission)
        if waiting:
            await asyncio.to_thread(self._forget, len(waiting))
        return len(waiting)

    def waiting(self) -> int:
        """How many submissions wait here."""
        return len(self._read()) if self._path.exists() else 0

    def _append(self, line: bytes) -> None:
        with self._locked():
            new = not self._path.exists()
            with self._path.open("ab") as file:
                file.truncate(self._whole_bytes())  # a line that a crash cut short was never answered
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if new:
                self._sync_folder()

    def _whole_bytes(self) -> int:
        return self._path.read_bytes().rfind(b"\n") + 1

    def _refuse(self, submission: Submission) -> None:
        """The key was used with another body meanwhile: kept aside for a person to look at."""
        refused = self._path.with_name(self._path.name + ".refused")
        log.error("a spooled request was refused: its idempotency key was used before; see %s", refused.name)
        with refused.open("ab") as file:
            file.write(msgspec.json.encode(submission) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> list[Submission]:
        """Whole lines only: one that a crash cut short was never answered."""
        with self._locked():
            raw = self._path.read_bytes()
        lines = raw.split(b"\n")[:-1]
        try:
            return [msgspec.json.decode(line, type=Submission) for line in lines]
        except msgspec.DecodeError as error:
            raise StoreError(f"the spool file {self._path.name} cannot be read: {error}") from None

    def _forget(self, count: int) -> None:
        """Removes the first `count` lines; what was added meanwhile stays."""
        with self._locked():
            rest = self._path.read_bytes().split(b"\n")[count:]
            fresh = self._path.with_name(self._path.name + ".new")
            with fresh.open("wb") as file:
                file.write(b"\n".join(rest))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            self._sync_folder()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock_path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
