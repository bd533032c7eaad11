"""A local file that keeps requests while the store is unavailable.

The requests are moved to the store later. Every line is one submission with an idempotency key, so a move
that is interrupted and repeated stores nothing twice. A request that the store refuses for good becomes a
dead letter under its own ids, and harms no other. A line is moved to `<name>.refused`, for an operator to
check, if it cannot be read, if its key belongs to a different request by then, if the store refuses its dead
letter too, or if it is too long for the dead letter, which then contains its beginning.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from homing.core.errors import ConfigError, IdempotencyConflict, StoreRejected, StoreUnavailable
from homing.core.lifecycle.claims import Acceptance, RequestKey, StoredRequest, Submission
from homing.core.ports.observers import NULL_OBSERVER, Observer
from homing.core.ports.stores import Store
from homing.engine.intake.dead_requests import MAX_REQUEST_CHARS, REFUSED_BY_STORE, dead_request, forms_of
from homing.engine.isolation import write_isolated

log = logging.getLogger("homing.spool")


_CHUNK_SIZE = 500


class Spool:
    """A file of submissions. Several processes may write to it and empty it."""

    def __init__(
        self,
        path: Path,
        observer: Observer = NULL_OBSERVER,
        on_accepted: Callable[[Sequence[Submission], Sequence[Acceptance]], None] = lambda batch, answers: (
            None
        ),
    ) -> None:
        if not path.parent.is_dir():
            raise ConfigError(
                "spool", f"the folder {path.parent} does not exist; create it, or choose another file"
            )
        self._path = path
        self._observer = observer
        self._on_accepted = on_accepted
        self._decoder = msgspec.json.Decoder(Submission)
        self._read_bytes = 0
        """Total length in bytes of the complete lines that this process has read."""
        self._inode = 0
        self._turn = asyncio.Lock()
        self._by_key: dict[RequestKey, StoredRequest] = {}
        self._set_aside: list[bytes] = []
        """Lines to write to the `.refused` file when all others are stored. A move that is interrupted and
        repeated would write them again."""
        self.written = False
        """True if a request was spooled since the task that empties the spool was last woken."""

    async def write(self, submission: Submission) -> tuple[str, tuple[str, ...]]:
        """Writes a submission to disk, and returns its batch id and notification ids.

        If the same request is spooled already, writes nothing and returns the existing ids.
        """
        if submission.idempotency_key is None:
            submission = replace(submission, idempotency_key=f"spool:{submission.batch_id}")
        try:
            kept = await asyncio.to_thread(self._append, submission)
        except OSError as error:
            raise StoreUnavailable(
                f"the spool file {self._path.name} cannot be written: {error.strerror}"
            ) from None
        self.written = True
        return kept

    @property
    def is_empty(self) -> bool:
        """True if the file is missing or empty, so that no request is spooled."""
        try:
            return self._path.stat().st_size == 0
        except OSError:
            return True

    async def known_requests(self, keys: Collection[RequestKey]) -> dict[RequestKey, StoredRequest]:
        """Returns what is spooled under these idempotency keys. An unknown key is absent from the result."""
        if self.is_empty:
            return {}
        return await asyncio.to_thread(self._find, keys)

    async def drain(self, store: Store) -> int:
        """Moves all submissions to the store and returns their number.

        Removes them from the file afterwards. Waits if another task of this process is moving them. Returns 0
        if another process is.
        """
        async with self._turn:
            if not self._path.exists():
                return 0
            with _open_private(self._sibling("draining"), "ab") as turn:
                try:
                    fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return 0  # another process is moving the submissions
                return await self._move_to_store(store)

    def waiting(self) -> int:
        """Returns the number of spooled submissions."""
        return len(self._lines()) if self._path.exists() else 0

    async def _move_to_store(self, store: Store) -> int:
        lines = await asyncio.to_thread(self._lines)
        self._set_aside.clear()  # an interrupted move begins again
        taken = 0
        for start in range(0, len(lines), _CHUNK_SIZE):
            chunk = [
                s for line in lines[start : start + _CHUNK_SIZE] if (s := self._decoded(line)) is not None
            ]
            if chunk:
                await self._accept(store, chunk)
            taken += len(chunk)
        if lines:
            await asyncio.to_thread(self._end_move, lines)
        return taken

    def _end_move(self, lines: Sequence[bytes]) -> None:
        """Writes what was set aside to the `.refused` file, and removes the lines that were moved."""
        if self._set_aside:
            with _open_private(self._sibling("refused"), "ab") as file:
                file.writelines(line + b"\n" for line in self._set_aside)
                file.flush()
                os.fsync(file.fileno())
        self._remove_lines(lines)

    def _find(self, keys: Collection[RequestKey]) -> dict[RequestKey, StoredRequest]:
        with self._locked():
            self._catch_up()
            return {key: self._by_key[key] for key in keys if key in self._by_key}

    async def _accept(self, store: Store, chunk: Sequence[Submission]) -> None:
        async def bury(submission: Submission, error: StoreRejected) -> Acceptance | None:
            await self._bury(store, submission, error)
            return None

        accept: Callable[[Sequence[Submission]], Awaitable[Sequence[Acceptance | None]]] = store.accept
        found = await write_isolated(chunk, accept, bury)
        stored = [one for one, answer in zip(chunk, found, strict=True) if answer is not None]
        answers = [answer for answer in found if answer is not None]
        self._observer.accepted(stored, answers)
        self._on_accepted(stored, answers)
        for submission, answer in zip(stored, answers, strict=True):
            if answer.conflict:
                log.error(
                    "a spooled request was rejected: its idempotency key "
                    "already belongs to a different request"
                )
                self._set_aside.append(msgspec.json.encode(submission))

    async def _bury(self, store: Store, submission: Submission, error: StoreRejected) -> None:
        """Stores a refused request as dead letters under the ids that its sender has got."""
        log.warning("the store refused a spooled request, which becomes a dead letter: %s", error)
        line, why = msgspec.json.encode(submission), REFUSED_BY_STORE
        text = line.decode()
        too_long = len(text) > MAX_REQUEST_CHARS
        if too_long:
            why += f"; the request is cut here and complete in {self._sibling('refused').name}"
            self._set_aside.append(line)
        for form in forms_of(_dead_letters(submission, text, why)):
            with suppress(StoreRejected):
                await store.accept([form])
                return
        log.error("a spooled request can be stored in no form and is moved to the .refused file: %s", error)
        if not too_long:
            self._set_aside.append(line)

    def _append(self, submission: Submission) -> tuple[str, tuple[str, ...]]:
        with self._locked():
            self._catch_up()
            key = (submission.tenant, submission.idempotency_key or "")
            if (known := self._by_key.get(key)) is not None:
                if known.fingerprint != submission.fingerprint:
                    raise IdempotencyConflict
                return known.batch_id, known.ids
            first = not self._path.exists()
            line = msgspec.json.encode(submission) + b"\n"
            with _open_private(self._path, "ab") as file:
                # Remove a partial line. A crash cut it short, so its request was never confirmed.
                file.truncate(self._read_bytes)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if first:
                self._sync_folder()
            self._catch_up()
            return submission.batch_id, tuple(new.id for new in submission.notifications)

    def _catch_up(self) -> None:
        """Reads lines that were added since the last call, or the whole file if it was replaced."""
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
            except (msgspec.DecodeError, RecursionError):
                continue  # moved to `.refused` when the spool is drained
            ids = tuple(new.id for new in submission.notifications)
            kept = StoredRequest(submission.fingerprint, submission.batch_id, ids)
            self._by_key[submission.tenant, submission.idempotency_key or ""] = kept

    def _lines(self) -> list[bytes]:
        with self._locked():
            return self._path.read_bytes().split(b"\n")[:-1]

    def _decoded(self, line: bytes) -> Submission | None:
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            log.error("a line of the spool cannot be read and is moved to the .refused file: %s", error)
            self._set_aside.append(line)
            return None

    def _remove_lines(self, lines: Sequence[bytes]) -> None:
        """Removes these lines from the beginning of the file. Lines added meanwhile stay.

        Does nothing if the file begins otherwise. A move that was cancelled goes on in its thread, and may
        have removed lines that the next move had already read.
        """
        with self._locked():
            found, moved = self._path.read_bytes(), b"".join(line + b"\n" for line in lines)
            if not found.startswith(moved):
                return
            fresh = self._sibling("new")
            with _open_private(fresh, "wb") as file:
                file.write(found[len(moved) :])
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            self._sync_folder()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with _open_private(self._sibling("lock"), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _sibling(self, ending: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{ending}")

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _dead_letters(submission: Submission, text: str, why: str) -> Submission:
    """Returns a submission of dead letters with the ids of a refused one. Each keeps the whole text."""
    dead = (
        dead_request(
            id=new.id,
            channel=new.channel,
            type=new.type,
            request=text,
            why=why,
            max_age_ms=new.max_age_ms,
        )
        for new in submission.notifications
    )
    return replace(submission, notifications=tuple(dead))


def _open_private(path: Path, mode: Literal["ab", "wb"]) -> BufferedWriter:
    """Opens a file for writing. Only its owner may read a new one, because it contains the recipients."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))
