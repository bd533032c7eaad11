"""Where requests wait while the store is away: a local file, handed over later exactly once.

Every line is one submission with an idempotency key, so a hand-over that is cut short and repeated
stores nothing twice. A line that nobody can read, or whose key was used otherwise meanwhile, is put aside
into `<name>.refused` for a person to look at.
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
from msgspec import Struct
from msgspec.structs import replace

from homing.core.errors import ConfigError, IdempotencyConflict, StoreUnavailable
from homing.core.model import Submission
from homing.core.observing import NOBODY, Observer
from homing.core.ports import Store

log = logging.getLogger("homing.spool")

_CHUNK = 500


class _Kept(Struct, frozen=True):
    """What must be known of a submission that waits: enough to answer the same request again."""

    fingerprint: str
    batch_id: str
    ids: tuple[str, ...]


class Spool:
    """A file of submissions. Several processes may write to it and drain it."""

    def __init__(self, path: Path, observer: Observer = NOBODY) -> None:
        if not path.parent.is_dir():
            raise ConfigError(
                "spool", f"the folder {path.parent} does not exist; make it, or name another file"
            )
        self._path = path
        self._observer = observer
        self._decoder = msgspec.json.Decoder(Submission)
        self._read_bytes = 0
        """How much of the file this process has seen, in whole lines."""
        self._inode = 0
        self._by_key: dict[tuple[str, str], _Kept] = {}
        self.written = False
        """Something was put here that nobody was told to fetch."""

    async def write(self, submission: Submission) -> tuple[str, tuple[str, ...]]:
        """Keeps a submission, on disk when this returns; (batch id, ids) of it, or of the one kept before."""
        if submission.idempotency_key is None:
            submission = replace(submission, idempotency_key=f"spool:{submission.batch_id}")
        try:
            kept = await asyncio.to_thread(self._keep, submission)
        except OSError as error:
            raise StoreUnavailable(
                f"the spool file {self._path.name} cannot be written: {error.strerror}"
            ) from None
        self.written = True
        return kept

    async def drain(self, store: Store) -> int:
        """Hands everything over; how many submissions the store has taken. The file is emptied only then."""
        if not self._path.exists():
            return 0
        with self._beside("draining").open("ab") as turn:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 0  # another one is at it
            return await self._hand_over(store)

    def waiting(self) -> int:
        """How many submissions wait here."""
        return len(self._lines()) if self._path.exists() else 0

    async def _hand_over(self, store: Store) -> int:
        lines = await asyncio.to_thread(self._lines)
        taken = 0
        for start in range(0, len(lines), _CHUNK):
            chunk = [s for line in lines[start : start + _CHUNK] if (s := self._decoded(line)) is not None]
            answers = await store.accept(chunk)
            self._observer.accepted(chunk, answers)
            for submission, answer in zip(chunk, answers, strict=True):
                if answer.conflict:
                    log.error("a spooled request was refused: its idempotency key was used otherwise before")
                    self._put_aside(msgspec.json.encode(submission))
            taken += len(chunk)
        if lines:
            await asyncio.to_thread(self._forget, len(lines))
        return taken

    def _keep(self, submission: Submission) -> tuple[str, tuple[str, ...]]:
        with self._locked():
            self._catch_up()
            key = (submission.tenant, submission.idempotency_key or "")
            if (known := self._by_key.get(key)) is not None:
                if known.fingerprint != submission.fingerprint:
                    raise IdempotencyConflict
                return known.batch_id, known.ids
            first = not self._path.exists()
            line = msgspec.json.encode(submission) + b"\n"
            with self._path.open("ab") as file:
                file.truncate(self._read_bytes)  # a line that a crash cut short was never answered
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if first:
                self._sync_folder()
            self._catch_up()
            return submission.batch_id, tuple(new.id for new in submission.notifications)

    def _catch_up(self) -> None:
        """Reads what was added since the last time; from the beginning if the file is another one."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._read_bytes, self._inode = 0, 0
            self._by_key.clear()
            return
        if found.st_ino != self._inode or found.st_size < self._read_bytes:
            self._read_bytes, self._inode = 0, found.st_ino
            self._by_key.clear()
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            *whole, _ = file.read().split(b"\n")
        for line in whole:
            self._read_bytes += len(line) + 1
            try:
                submission = self._decoder.decode(line)
            except msgspec.DecodeError:
                continue  # put aside at the hand-over
            ids = tuple(new.id for new in submission.notifications)
            kept = _Kept(submission.fingerprint, submission.batch_id, ids)
            self._by_key[submission.tenant, submission.idempotency_key or ""] = kept

    def _lines(self) -> list[bytes]:
        with self._locked():
            return self._path.read_bytes().split(b"\n")[:-1]

    def _decoded(self, line: bytes) -> Submission | None:
        try:
            return self._decoder.decode(line)
        except msgspec.DecodeError as error:
            log.error("a line of the spool cannot be read and is put aside: %s", error)
            self._put_aside(line)
            return None

    def _put_aside(self, line: bytes) -> None:
        with self._beside("refused").open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _forget(self, count: int) -> None:
        """Removes the first `count` lines; what was added meanwhile stays."""
        with self._locked():
            rest = self._path.read_bytes().split(b"\n")[count:]
            fresh = self._beside("new")
            with fresh.open("wb") as file:
                file.write(b"\n".join(rest))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            self._sync_folder()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._beside("lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _beside(self, ending: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{ending}")

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
