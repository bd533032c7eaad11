"""Accepts submissions: stores each one completely, or returns the result stored under its idempotency key.

This module uses only plain SQL with arrays as parameters, because it also runs on a caller's own connection,
with any supported driver. If two transactions use the same key, the unique index makes the second wait for
the first and then return what the first has stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any

from homing.core.errors import StoreBusy, StoreRejected
from homing.core.lifecycle.claims import (
    Acceptance,
    Claim,
    NewNotification,
    RequestKey,
    StoredRequest,
    Submission,
)
from homing.core.lifecycle.events import STATUS_CHANGED
from homing.core.lifecycle.rows import claim_of, new_row, shared_fields
from homing.core.ports.stores import AwaitPrevious
from homing.stores.common.codec import encode
from homing.stores.common.repeated_requests import (
    earlier_id,
    id_of_another_request,
    may_be_taken,
)
from homing.stores.postgres.change_recorder import PostgresChangeRecorder
from homing.stores.postgres.columns import find_invalid_id, is_id
from homing.stores.postgres.new_rows import (
    INSERT_MESSAGES,
    INSERT_UNKNOWN_MESSAGES,
    NewRow,
    NewRowKind,
    insert_new_rows,
    messages_of,
    number_rows,
    shared_columns,
    states_of,
)
from homing.stores.postgres.queues import QueueKey
from homing.stores.postgres.rows import queue_of
from homing.stores.postgres.statements import PostgresTransaction, transpose

_INSERT_KEYS = """
INSERT INTO homing.requests (tenant, idempotency_key, fingerprint, batch_id, ids, created_at)
SELECT u.tenant, u.idempotency_key, u.fingerprint, u.batch_id, '{}', $5::bigint
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
  AS u(tenant, idempotency_key, fingerprint, batch_id)
ORDER BY u.tenant, u.idempotency_key
ON CONFLICT (tenant, idempotency_key) DO NOTHING
RETURNING tenant, idempotency_key
"""

_KNOWN_KEYS = """
SELECT r.tenant, r.idempotency_key, r.fingerprint, r.batch_id, r.ids::text[]
FROM unnest($1::text[], $2::text[]) AS u(tenant, idempotency_key)
JOIN homing.requests AS r ON r.tenant = u.tenant AND r.idempotency_key = u.idempotency_key
"""

_WRITE_REQUEST_IDS = """
UPDATE homing.requests AS r SET ids = u.ids::uuid[]
FROM unnest($1::text[], $2::text[], $3::text[]) AS u(tenant, idempotency_key, ids)
WHERE r.tenant = u.tenant AND r.idempotency_key = u.idempotency_key
"""

_INSERT_DEDUPS = f"""
INSERT INTO homing.dedups AS d (tenant, dedup_key, id)
SELECT u.tenant, u.dedup_key, u.id
FROM unnest($1::text[], $2::text[], $3::text[]::uuid[]) AS u(tenant, dedup_key, id)
ORDER BY u.tenant, u.dedup_key
ON CONFLICT (tenant, dedup_key) DO UPDATE SET dedup_key = excluded.dedup_key
RETURNING tenant, dedup_key, id::text, accepted_at, EXISTS (
  SELECT 1 FROM homing.messages AS m JOIN homing.settled AS s ON s.seq = m.seq
  WHERE m.id = d.id AND s.status = 'cancelled' AND NOT {may_be_taken("homing.attempts", "m.seq")})
"""  # noqa: S608

_UPDATE_DEDUPS = """
UPDATE homing.dedups AS d SET id = u.id, accepted_at = $5::bigint, kept_until = $5::bigint + u.window_ms
FROM unnest($1::text[], $2::text[], $3::text[]::uuid[], $4::bigint[]) AS u(tenant, dedup_key, id, window_ms)
WHERE d.tenant = u.tenant AND d.dedup_key = u.dedup_key
"""

_OWNERS = "SELECT id::text, tenant, batch_id FROM homing.messages WHERE id = ANY($1::text[]::uuid[])"

NOTIFY = "SELECT pg_notify(split_part('homing.live', '.', 1), '')"


_MAX_TRIES = 5

_idempotency_key_of = attrgetter("idempotency_key")

_shared_by_submission = attrgetter("tenant", "lease_to", "lease_ms")
"""Reads the fields of a submission that its rows depend on, except for the batch."""


class _Intake:
    """State of one accept call: the stored keys and ids it has read, and the rows and keys it will write."""

    def __init__(
        self, tx: PostgresTransaction, batch: Sequence[Submission], sure: bool, before: AwaitPrevious
    ) -> None:
        self.tx = tx
        self.batch = batch
        self.sure = sure
        self.before = before
        self.requests: dict[RequestKey, StoredRequest] = {}
        self.taken: set[RequestKey] = set()
        """Idempotency keys that this transaction is the first to use."""
        self.dedups: dict[RequestKey, tuple[str, int]] = {}
        self.stored: dict[str, tuple[str, str]] = {}
        self.new_requests: dict[RequestKey, tuple[str, ...]] = {}
        self.new_dedups: dict[RequestKey, tuple[str, int]] = {}
        """Dedup key → (id, dedup window in milliseconds)."""
        self.new: list[tuple[Submission, NewNotification]] = []

    async def learn(self) -> None:
        """Inserts the idempotency and dedup keys, or reads what is stored under them.

        Waits for transactions that are about to store something under the same keys.
        """
        first: dict[RequestKey, Submission] = {}
        if any(map(_idempotency_key_of, self.batch)):
            await self.before()
            first = await self._take_keys()
        deduped: list[Submission] = []
        for submission in self.batch:
            for new in submission.notifications:
                if new.dedup_key is not None:
                    deduped.append(submission)
                    break
        deduped = [s for s in deduped if s.idempotency_key is None or first.get(_key(s)) is s]
        if deduped:
            await self.before()
            ids = [n.id for s in deduped if s.idempotency_key is None for n in s.notifications]
            self.stored = await _owners(self.tx, ids)
            await self._take_dedups(deduped)

    def answer(self, submission: Submission) -> Acceptance:
        """Returns the result for a submission and notes what must be written for it."""
        news = submission.notifications
        if len(news) == 1 and not self.stored:  # fast path for the most common case
            (new,) = news
            if submission.idempotency_key is None and new.dedup_key is None and submission.lease_to is None:
                self.new.append((submission, new))
                return Acceptance(submission.batch_id, (new.id,))
        if submission.idempotency_key is not None:
            key = _key(submission)
            if key in self.requests:
                return self.requests[key].answer(submission.fingerprint)
            answer = self._answer_first(submission)
            self.requests[key] = StoredRequest(submission.fingerprint, submission.batch_id, answer.ids)
            self.new_requests[key] = answer.ids
            return answer
        return self._answer_first(submission)

    def _answer_first(self, submission: Submission) -> Acceptance:
        ids: list[str] = []
        duplicates: list[str] = []
        claims: list[Claim] = []
        for new in submission.notifications:
            if (new.dedup_key is not None or self.stored) and (earlier := self._earlier_id(submission, new)):
                ids.append(earlier)
                duplicates.append(earlier)
                continue
            self.new.append((submission, new))
            ids.append(new.id)
            if new.dedup_key is not None:
                key = (submission.tenant, new.dedup_key)
                self.dedups[key] = (new.id, self.tx.now)
                self.new_dedups[key] = (new.id, new.dedup_window_ms)
            if submission.lease_to is not None:
                row = new_row(new, submission, self.tx.now).row
                claims.append(claim_of(row, new.message, row.aged_from))
        if not duplicates and not claims:
            return Acceptance(submission.batch_id, tuple(ids))
        return Acceptance(
            submission.batch_id, tuple(ids), duplicates=frozenset(duplicates), claims=tuple(claims)
        )

    async def write(self) -> frozenset[str]:
        """Writes the new rows and keys. Returns the ids that an earlier, identical call has stored."""
        tx, there = self.tx, frozenset[str]()
        if self.new:
            invalid = find_invalid_id([new.id for _, new in self.new])
            if invalid is not None:
                raise StoreRejected(f"The id {invalid!r} is not a UUID in lower case.")
            there = await self._write_rows()
        if self.new_requests:
            rows = [(*key, "{" + ",".join(ids) + "}") for key, ids in self.new_requests.items()]
            await tx.rows(_WRITE_REQUEST_IDS, *transpose(rows, 3))
        if self.new_dedups:
            dedups = [(*key, *new) for key, new in self.new_dedups.items()]
            await tx.rows(_UPDATE_DEDUPS, *transpose(dedups, 4), tx.now)
        return there

    async def _write_rows(self) -> frozenset[str]:
        """Writes the new rows and returns the ids that were stored already.

        The rows are grouped by kind if all ids are known to be new and no row has an event or a cause.
        """
        tx = self.tx
        if not self.sure or STATUS_CHANGED in tx.subscribed:
            return await self._write_each()
        kinds: dict[tuple[Any, ...], NewRowKind] = {}
        kind_of_each: list[NewRowKind] = []
        kind, last_fields, last_shared = None, None, None
        for submission, new in self.new:
            fields, shared = shared_fields(new), _shared_by_submission(submission)
            # Most rows are of the same kind as the previous one.
            if kind is None or fields != last_fields or shared != last_shared:
                last_fields, last_shared = fields, shared
                kind = kinds.get((fields, shared))
                if kind is None:
                    kind = kinds[fields, shared] = NewRowKind(new_row(new, submission, tx.now))
            kind.number += 1
            kind_of_each.append(kind)
        found = list(kinds.values())
        if any(kind.change.cause is not None for kind in found):
            return await self._write_each()
        wanted = {queue_of(kind.change.row) for kind in found}
        if tx.queues.unknown(wanted):
            await self.before()
        queues = await tx.queues.find(tx, wanted)
        for kind in found:
            kind.columns = shared_columns(kind.change.row, queues[queue_of(kind.change.row)])
        await insert_new_rows(tx, self.new, kind_of_each, found, NOTIFY)
        return frozenset()

    async def _write_each(self) -> frozenset[str]:
        """Writes the new rows without grouping them, in one statement if possible.

        The messages need a separate statement if some ids may be stored already, or if events need them.
        """
        await self.before()
        tx, there = self.tx, frozenset[str]()
        new: list[NewRow] = [(new_row(n, s, tx.now), encode(n.message)) for s, n in self.new]
        rows = await number_rows(tx, new)
        writes = [(INSERT_MESSAGES, messages_of(rows))]
        if not self.sure or tx.subscribed:
            stored = {id for (id,) in await INSERT_UNKNOWN_MESSAGES.run(tx, messages_of(rows))}
            there = await self._repeated(stored)
            rows = [one for one in rows if one[1].row.id in stored]
            writes = []
        recorder = PostgresChangeRecorder(tx)
        for seq, change, _ in rows:
            recorder.record(seq, change)
        await recorder.write(*writes, *await states_of(tx, rows), last=NOTIFY)
        return there

    async def _repeated(self, stored: Collection[str]) -> frozenset[str]:
        """Returns the ids that were stored already, by an earlier attempt of this call whose answer was lost.

        Raises `StoreRejected` if one of them belongs to another request.
        """
        there = {new.id: (s.tenant, s.batch_id) for s, new in self.new if new.id not in stored}
        if not there:
            return frozenset()
        owners = await _owners(self.tx, list(there))
        for id, mine in there.items():
            if owners.get(id) != mine:
                raise id_of_another_request(id)
        return frozenset(there)

    async def _take_keys(self) -> dict[RequestKey, Submission]:
        """Inserts the idempotency keys and returns the first submission of each key that is new."""
        first: dict[RequestKey, Submission] = {}
        for submission in self.batch:
            if submission.idempotency_key is not None:
                first.setdefault(_key(submission), submission)
        rows = [(*key, s.fingerprint, s.batch_id) for key, s in sorted(first.items())]
        for _ in range(_MAX_TRIES):
            if not rows:
                break
            taken = await self.tx.rows(_INSERT_KEYS, *transpose(rows, 4), self.tx.now)
            self.taken |= {(tenant, key) for tenant, key in taken}
            rows = [row for row in rows if row[:2] not in self.taken]
            if not rows:
                break
            self.requests |= await known_requests(self.tx, [(row[0], row[1]) for row in rows])
            # A key that is neither new nor known was pruned between the two statements: insert it again.
            rows = [row for row in rows if row[:2] not in self.requests]
        if rows:
            raise StoreBusy(
                "An idempotency key was added and removed too often. Nothing was changed; try again."
            )
        return {key: first[key] for key in self.taken}

    async def _take_dedups(self, submissions: Sequence[Submission]) -> None:
        first: dict[RequestKey, str] = {}
        for submission in submissions:
            for new in submission.notifications:
                if new.dedup_key is not None and new.id not in self.stored:
                    first.setdefault((submission.tenant, new.dedup_key), new.id)
        rows = [(*key, id) for key, id in sorted(first.items())]
        if rows:
            known = await self.tx.rows(_INSERT_DEDUPS, *transpose(rows, 3))
            for tenant, key, id, accepted_at, cancelled in known:
                # A cancelled message does not count, unless a provider may have taken it.
                if accepted_at is not None and not cancelled:
                    self.dedups[tenant, key] = (id, accepted_at)

    def _earlier_id(self, submission: Submission, new: NewNotification) -> str | None:
        return earlier_id(submission, new, self.stored, self.dedups, self.tx.now)


async def wait_for_nothing() -> None:
    """Returns at once. It is the default for `before` if there is nothing to wait for."""


async def accept(
    tx: PostgresTransaction,
    batch: Sequence[Submission],
    *,
    sure: bool = False,
    before: AwaitPrevious = wait_for_nothing,
) -> tuple[Acceptance, ...]:
    """Stores each submission completely, or returns the result stored under its idempotency key.

    If `sure`, the caller expects all ids to be new, so they are not looked up. `DuplicateIds` is raised if
    one of them is not new. Until `before` has returned, this function takes no lock that other calls may have
    to wait for, such as those of keys and new queues.
    """
    intake = _Intake(tx, batch, sure, before)
    await intake.learn()
    answers = tuple([intake.answer(submission) for submission in batch])
    there = await intake.write()
    await before()
    if not there:
        return answers
    return tuple(_with_repeats(answer, there) for answer in answers)


async def known_requests(
    tx: PostgresTransaction, keys: Collection[RequestKey]
) -> dict[RequestKey, StoredRequest]:
    """Returns what is stored under these idempotency keys. An unknown key is absent from the result."""
    if not keys:
        return {}
    found = await tx.rows(_KNOWN_KEYS, [tenant for tenant, _ in keys], [key for _, key in keys])
    return {
        (tenant, key): StoredRequest(fingerprint, batch_id, tuple(ids))
        for tenant, key, fingerprint, batch_id, ids in found
    }


def queues_of(batch: Iterable[Submission]) -> set[QueueKey]:
    """Returns the queues that the notifications of a batch will wait in."""
    return {(new.lane, s.tenant, new.outlet) for s in batch for new in s.notifications}


def notify_channel(schema: str) -> str:
    """Returns the NOTIFY channel on which accepted notifications are announced."""
    return schema


def _key(submission: Submission) -> RequestKey:
    return submission.tenant, submission.idempotency_key or ""


def _with_repeats(answer: Acceptance, there: frozenset[str]) -> Acceptance:
    repeated = there.intersection(answer.ids)
    if not repeated:
        return answer
    return Acceptance(
        batch_id=answer.batch_id,
        ids=answer.ids,
        duplicates=answer.duplicates | repeated,
        claims=tuple(claim for claim in answer.claims if claim.id not in repeated),
    )


async def _owners(tx: PostgresTransaction, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    wanted: list[Any] = [id for id in ids if is_id(id)]
    if not wanted:
        return {}
    return {id: (tenant, batch) for id, tenant, batch in await tx.rows(_OWNERS, wanted)}
