"""Accepts submissions: stores each one completely, or returns the result stored under its idempotency key."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct
from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError

from homing.core.lifecycle.claims import (
    Acceptance,
    NewNotification,
    RequestKey,
    StoredRequest,
    Submission,
)
from homing.core.lifecycle.events import STATUS_CHANGED
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.rows import Change, new_row, shared_fields
from homing.core.lifecycle.states import FINAL_FAILURE_RANK, RECEIPT_RANK
from homing.core.notifications import OutcomeKind, Status
from homing.stores.common.codec import encode
from homing.stores.common.intake import SubmissionIntake
from homing.stores.common.repeated_requests import ids_to_look_up
from homing.stores.mongo.change_recorder import MongoChangeRecorder
from homing.stores.mongo.documents import Document, message_document, row_document
from homing.stores.mongo.errors import has_duplicate_key
from homing.stores.mongo.schema import ATTEMPTS, DEDUPS, MESSAGES, NOTIFICATIONS, REQUESTS
from homing.stores.mongo.transaction import MongoTransaction, OutdatedRows

_MAY_BE_TAKEN = (OutcomeKind.ACCEPTED.value, OutcomeKind.AMBIGUOUS.value, OutcomeKind.LOST.value)
_FAILED_RANKS = (RECEIPT_RANK[ReceiptEvent.FAILED], FINAL_FAILURE_RANK)


class IdsStoredAlready(OutdatedRows):
    """Raised if an id is stored already, although only the first id of its submission was looked up."""


class _Kind(Struct):
    """A set of new rows that differ only in id, batch and address."""

    change: Change
    """The change that creates the first of the rows."""
    document: Document
    """The document of the first row."""
    number: int = 0


class _MongoIntake(SubmissionIntake):
    def __init__(self, tx: MongoTransaction) -> None:
        super().__init__(tx.now)
        self.tx = tx
        self.recorder = MongoChangeRecorder(tx)
        self.new_requests: list[Document] = []
        self.kinds: dict[tuple[Any, ...], _Kind] = {}
        self.alone: list[Change] = []
        self.rows: list[Document] = []
        self.messages: list[Document] = []

    async def read(self, batch: Sequence[Submission], *, all_ids: bool) -> None:
        """Reads what is stored already of these submissions."""
        keys = [(s.tenant, s.idempotency_key) for s in batch if s.idempotency_key is not None]
        self.requests = await known_requests(self.tx, keys)
        self.dedups = await _known_dedups(self.tx, batch)
        ids = [n.id for s in batch for n in s.notifications] if all_ids else ids_to_look_up(batch)
        if ids:
            found = await self.tx.db.find(
                NOTIFICATIONS, {"_id": {"$in": ids}}, fields=("_id", "tenant", "batch_id")
            )
            self.stored = {one["_id"]: (one["tenant"], one["batch_id"]) for one in found}

    def add_request(self, key: RequestKey, request: StoredRequest) -> None:
        self.new_requests.append(
            {
                "_id": encode(key),
                "tenant": key[0],
                "idempotency_key": key[1],
                "fingerprint": request.fingerprint,
                "batch_id": request.batch_id,
                "ids": request.ids,
                "created_at": self.now,
            }
        )

    async def write(self) -> None:
        db = self.tx.db
        if self.rows:
            try:
                await db.insert(NOTIFICATIONS, self.rows)
            except BulkWriteError as error:
                if not has_duplicate_key(error):
                    raise
                raise IdsStoredAlready from error
            await db.insert(MESSAGES, self.messages)
            for kind in self.kinds.values():
                await self.recorder.record_all((kind.change,), kind.number)
            await self.recorder.record_all(self.alone)
            await self.recorder.write()
        await db.insert(REQUESTS, self.new_requests)
        await db.bulk_write(DEDUPS, [_dedup_write(*one) for one in self.new_dedups.items()])

    def add_row(self, submission: Submission, new: NewNotification) -> None:
        self.rows.append(self._document(submission, new))
        self.messages.append(
            message_document(submission.tenant, submission.batch_id, new.address, new.id, new.message)
        )

    def _document(self, submission: Submission, new: NewNotification) -> Document:
        """Returns the document of a row. Rows that are alike are computed and counted together."""
        if new.refused or STATUS_CHANGED in self.tx.subscribed:
            change = new_row(new, submission, self.now)
            self.recorder.add_failure_details(new.id, new.message)
            self.alone.append(change)
            return row_document(change.row)
        key = (submission.tenant, submission.lease_to, submission.lease_ms, shared_fields(new))
        kind = self.kinds.get(key)
        if kind is None:
            change = new_row(new, submission, self.now)
            kind = self.kinds[key] = _Kind(change, row_document(change.row))
        kind.number += 1
        return {
            **kind.document,
            "_id": new.id,
            "batch_id": submission.batch_id,
            "address": new.address,
        }


async def accept(
    tx: MongoTransaction, batch: Sequence[Submission], *, all_ids: bool = False
) -> tuple[Acceptance, ...]:
    """Stores each submission completely, or returns the result stored under its idempotency key.

    Unless `all_ids`, it looks up only the ids that show a repetition, and raises `IdsStoredAlready` if
    another one is stored already.
    """
    intake = _MongoIntake(tx)
    await intake.read(batch, all_ids=all_ids)
    answers = tuple(intake.accept(submission) for submission in batch)
    await intake.write()
    return answers


async def known_requests(
    tx: MongoTransaction, keys: Collection[RequestKey]
) -> dict[RequestKey, StoredRequest]:
    """Returns what is stored under these idempotency keys. An unknown key is absent from the result."""
    if not keys:
        return {}
    found = await tx.db.find(REQUESTS, {"_id": {"$in": [encode(tuple(key)) for key in keys]}})
    return {
        (one["tenant"], one["idempotency_key"]): StoredRequest(
            one["fingerprint"], one["batch_id"], tuple(one["ids"])
        )
        for one in found
    }


def _dedup_write(key: RequestKey, value: tuple[str, int, int]) -> ReplaceOne[Document]:
    id, accepted_at, kept_until = value
    place = {"_id": encode(key), "tenant": key[0], "dedup_key": key[1]}
    return ReplaceOne(
        {"_id": place["_id"]},
        {**place, "id": id, "accepted_at": accepted_at, "kept_until": kept_until},
        upsert=True,
    )


async def _known_dedups(
    tx: MongoTransaction, batch: Sequence[Submission]
) -> dict[RequestKey, tuple[str, int]]:
    """Returns the notifications stored under the dedup keys of these submissions.

    The dedup key of a cancelled message does not count, unless a provider may have taken the message.
    """
    keys = [(s.tenant, n.dedup_key) for s in batch for n in s.notifications if n.dedup_key is not None]
    if not keys:
        return {}
    found = await tx.db.find(DEDUPS, {"_id": {"$in": [encode(key) for key in keys]}})
    void = await _never_taken(tx, [one["id"] for one in found])
    return {
        (one["tenant"], one["dedup_key"]): (one["id"], one["accepted_at"])
        for one in found
        if one["id"] not in void
    }


async def _never_taken(tx: MongoTransaction, ids: Sequence[str]) -> frozenset[str]:
    """Returns those of the notifications that were cancelled and that no provider can have taken."""
    if not ids:
        return frozenset()
    cancelled = {
        one["_id"]
        for one in await tx.db.find(
            NOTIFICATIONS, {"_id": {"$in": list(ids)}, "status": Status.CANCELLED.value}, fields=("_id",)
        )
    }
    if not cancelled:
        return frozenset()
    attempts: dict[str, list[Document]] = {}
    for one in await tx.db.find(ATTEMPTS, {"of": {"$in": sorted(cancelled)}}):
        attempts.setdefault(one["of"], []).append(one)
    return frozenset(id for id in cancelled if not _may_be_taken(attempts.get(id, ())))


def _may_be_taken(attempts: Sequence[Document]) -> bool:
    """Returns True if a provider may have taken a message and has not reported its failure."""
    failed = [one for one in attempts if one["receipt_rank"] in _FAILED_RANKS]
    return any(
        one["outcome"] in _MAY_BE_TAKEN and not any(_is_same_message(one, other) for other in failed)
        for one in attempts
    )


def _is_same_message(one: Document, other: Document) -> bool:
    if one["change"] == other["change"]:
        return True
    message_id = one.get("provider_message_id")
    return (
        message_id is not None
        and one["provider"] == other["provider"]
        and message_id == other.get("provider_message_id")
    )
