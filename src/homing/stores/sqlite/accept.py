"""Accepts submissions: stores each one completely, or returns the result stored under its idempotency key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import Struct, json

from homing.core.lifecycle.claims import (
    Acceptance,
    NewNotification,
    RequestKey,
    StoredRequest,
    Submission,
)
from homing.core.lifecycle.events import STATUS_CHANGED
from homing.core.lifecycle.rows import Change, new_row, shared_fields
from homing.stores.common.codec import Column, encode
from homing.stores.common.intake import SubmissionIntake
from homing.stores.common.repeated_requests import ids_to_look_up, may_be_taken
from homing.stores.sqlite.change_recorder import SqliteChangeRecorder
from homing.stores.sqlite.columns import OWN_FIELDS, SHARED_FIELDS, shared_columns
from homing.stores.sqlite.statements import SINKS, GroupedInsert, SqliteTransaction, build_insert

NEW_ROWS = GroupedInsert("homing_notifications", ("seq", *OWN_FIELDS), SHARED_FIELDS)

_INSERT_MESSAGES = build_insert("homing_messages", ("seq", "message"))

_INSERT_REQUESTS = build_insert(
    "homing_requests", ("tenant", "idempotency_key", "fingerprint", "batch_id", "ids", "created_at")
)

_UPSERT_DEDUPS = build_insert(
    "homing_dedups",
    ("tenant", "dedup_key", "id", "accepted_at", "kept_until"),
    " ON CONFLICT DO UPDATE SET id = excluded.id, accepted_at = excluded.accepted_at,"
    " kept_until = excluded.kept_until",
)

KNOWN_REQUESTS = """
SELECT json_group_array(json_array(
  r.tenant, r.idempotency_key, json_array(r.fingerprint, r.batch_id, json(r.ids))))
FROM json_each(?1) AS j CROSS JOIN homing_requests AS r
  ON r.tenant = json_extract(j.value, '$[0]') AND r.idempotency_key = json_extract(j.value, '$[1]')
"""

_KNOWN_DEDUPS = f"""
SELECT json_group_array(json_array(d.tenant, d.dedup_key, d.id, d.accepted_at))
FROM json_each(?1) AS j CROSS JOIN homing_dedups AS d
  ON d.tenant = json_extract(j.value, '$[0]') AND d.dedup_key = json_extract(j.value, '$[1]')
WHERE NOT EXISTS (
  SELECT 1 FROM homing_notifications AS n
  WHERE n.id = d.id AND n.status = 'cancelled' AND NOT {may_be_taken("homing_attempts", "n.seq")})
"""  # noqa: S608
"""The dedup key of a cancelled message does not count, unless a provider may have taken the message."""

LAST_SEQ_AND_KNOWN_IDS = f"""
SELECT json_array(
  coalesce((SELECT max(seq) FROM homing_notifications), 0),
  ({SINKS}),
  (SELECT json_group_array(json_array(n.id, n.tenant, n.batch_id))
   FROM json_each(?1) AS j CROSS JOIN homing_notifications AS n ON n.id = j.value))
"""  # noqa: S608


class _Kind(Struct):
    """A set of new rows that differ only in id, batch and address."""

    change: Change
    """The change that creates the first of the rows."""
    seq: int
    """The seq of the first row."""
    own: list[Column]
    """The columns of each row that the others do not share, one row after the other."""
    number: int = 0
    """Number of rows."""


_decode_requests = json.Decoder(list[tuple[str, str, StoredRequest]]).decode

_decode_dedups = json.Decoder(list[tuple[str, str, str, int]]).decode

_decode_before = json.Decoder(tuple[int, str | None, list[tuple[str, str, str]]]).decode


class _SqliteIntake(SubmissionIntake):
    def __init__(self, tx: SqliteTransaction, batch: Sequence[Submission]) -> None:
        super().__init__(tx.now)
        self.tx = tx
        self.recorder = SqliteChangeRecorder(tx)
        self.requests = known_requests(tx, _keys_of(batch))
        self.dedups = _known_dedups(tx, batch)
        # One statement: each takes a few microseconds, of which a transaction with one notification has 300.
        before = tx.one(LAST_SEQ_AND_KNOWN_IDS, encode(ids_to_look_up(batch)))
        self.seq, sinks, stored = _decode_before(before)
        tx.set_sinks(sinks)
        self.stored = {id: (tenant, batch_id) for id, tenant, batch_id in stored}
        self.new_requests: list[tuple[Column, ...]] = []
        self.kinds: dict[tuple[Any, ...], _Kind] = {}
        self._announced = STATUS_CHANGED in tx.subscribed
        self._last_key: tuple[Any, ...] = ()
        self._last_kind: _Kind | None = None
        self.rows: dict[tuple[Column, ...], list[Column]] = {}
        """Shared columns → own columns of each row that has them, one row after the other."""
        self.messages: list[Column] = []
        """Seq and message of each row, one row after the other."""

    def add_request(self, key: RequestKey, request: StoredRequest) -> None:
        columns = (request.fingerprint, request.batch_id, encode(request.ids), self.now)
        self.new_requests.append((*key, *columns))

    def write(self) -> None:
        tx = self.tx
        if self.rows:
            NEW_ROWS.run(tx, self.rows)
            _INSERT_MESSAGES.run_flat(tx, self.messages)
            for kind in self.kinds.values():
                self.recorder.record_all(((kind.seq, kind.change),), kind.number)
            self.recorder.write()
        if self.new_requests:
            _INSERT_REQUESTS.run(tx, self.new_requests)
        if self.new_dedups:
            _UPSERT_DEDUPS.run(tx, [(*key, *earlier) for key, earlier in self.new_dedups.items()])

    def add_row(self, submission: Submission, new: NewNotification) -> None:
        self.seq += 1
        self._own_columns(submission, new).extend((self.seq, new.id, submission.batch_id, new.address))
        self.messages += (self.seq, encode(new.message))

    def _own_columns(self, submission: Submission, new: NewNotification) -> list[Column]:
        """Returns the list of own columns for rows of this kind, whose shared columns are computed once.

        Rows that publish an event or are rejected are recorded one by one.
        """
        if new.refused or self._announced:
            change = new_row(new, submission, self.now)
            self.recorder.add_failure_details(self.seq, new.message)
            self.recorder.record(self.seq, change)
            return self.rows.setdefault(shared_columns(change.row), [])
        key = (submission.tenant, submission.lease_to, submission.lease_ms, shared_fields(new))
        if key == self._last_key:  # quicker than a look-up, which hashes the key
            kind: _Kind | None = self._last_kind
        else:
            kind = self.kinds.get(key)
        if kind is None:
            change = new_row(new, submission, self.now)
            own = self.rows.setdefault(shared_columns(change.row), [])
            kind = self.kinds[key] = _Kind(change, self.seq, own)
        kind.number += 1
        self._last_key, self._last_kind = key, kind
        return kind.own


def accept(
    tx: SqliteTransaction,
    batch: Sequence[Submission],
    on_written: Callable[[int, int], None] = lambda before, after: None,
) -> tuple[Acceptance, ...]:
    """Stores each submission completely, or returns the result stored under its idempotency key.

    Calls `on_written` with the seqs of the newest row before and after that.
    """
    intake = _SqliteIntake(tx, batch)
    before = intake.seq
    answers = tuple(intake.accept(submission) for submission in batch)
    intake.write()
    on_written(before, intake.seq)
    return answers


def known_requests(tx: SqliteTransaction, keys: Collection[RequestKey]) -> dict[RequestKey, StoredRequest]:
    """Returns what is stored under these idempotency keys. An unknown key is absent from the result."""
    if not keys:
        return {}
    found = _decode_requests(tx.one(KNOWN_REQUESTS, encode(keys)))
    return {(tenant, key): request for tenant, key, request in found}


def _keys_of(batch: Sequence[Submission]) -> list[RequestKey]:
    return [(s.tenant, s.idempotency_key) for s in batch if s.idempotency_key is not None]


def _known_dedups(tx: SqliteTransaction, batch: Sequence[Submission]) -> dict[RequestKey, tuple[str, int]]:
    keys = [(s.tenant, n.dedup_key) for s in batch for n in s.notifications if n.dedup_key is not None]
    if not keys:
        return {}
    found = _decode_dedups(tx.one(_KNOWN_DEDUPS, encode(keys)))
    return {(tenant, key): (id, accepted_at) for tenant, key, id, accepted_at in found}
