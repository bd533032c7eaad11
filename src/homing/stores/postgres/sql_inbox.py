"""Processes the inbox that the SQL functions (`homing.enqueue` and those for operators) write to.

Also stores the retry delays that these functions read.
"""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.ports.stores import VOID_TERM_MS, AcceptedEntry, InboxEntry, InboxEntryKind
from homing.stores.postgres import accept, amend
from homing.stores.postgres.statements import PostgresTransaction, transpose

_LEASE_ENTRIES = """
WITH due AS MATERIALIZED (
    SELECT number FROM homing.inbox WHERE lease_until <= $1 OR lease_until > $4
    ORDER BY number LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE homing.inbox AS i SET lease_until = $1 + $3 FROM due WHERE i.number = due.number
RETURNING i.number, i.kind, i.tenant, i.id::text, i.notification_id::text, i.request, i.already_failed,
    i.last_error, i.max_retries, i.who, i.why
"""

_REMOVE = """
DELETE FROM homing.inbox AS i USING unnest($1::bigint[], $2::text[]::uuid[]) AS u(number, id)
WHERE i.number = u.number AND i.id = u.id RETURNING i.number
"""

_WRITE_SCHEDULE = """
WITH new AS (
    SELECT retry - 1 AS retry, delay_ms FROM unnest($1::bigint[]) WITH ORDINALITY AS u(delay_ms, retry)
), gone AS (
    DELETE FROM homing.schedule WHERE retry >= cardinality($1::bigint[])
)
INSERT INTO homing.schedule AS s (retry, delay_ms)
SELECT new.retry, new.delay_ms FROM new LEFT JOIN homing.schedule AS old ON old.retry = new.retry
WHERE old.delay_ms IS DISTINCT FROM new.delay_ms ORDER BY new.retry
ON CONFLICT (retry) DO UPDATE SET delay_ms = excluded.delay_ms WHERE s.delay_ms <> excluded.delay_ms
"""


_COUNT_REQUESTS = """
SELECT count(*) FROM homing.inbox WHERE kind = 'send' AND ($1::text IS NULL OR tenant = $1)
"""


async def lease_entries(tx: PostgresTransaction, limit: int, lease_ms: int) -> tuple[InboxEntry, ...]:
    """Leases the oldest entries that are not leased and returns them in their order.

    A lease that ends too late is void: the clock was set back since.
    """
    void_after = tx.now + lease_ms + VOID_TERM_MS
    found = [
        InboxEntry(
            number=number,
            kind=InboxEntryKind(kind),
            tenant=tenant,
            id=id_,
            notification_id=about,
            request=request or "{}",
            already_failed=failed,
            last_error=error,
            max_retries=most,
            who=who,
            why=why,
        )
        for number, kind, tenant, id_, about, request, failed, error, most, who, why in await tx.rows(
            _LEASE_ENTRIES, tx.now, limit, lease_ms, void_after
        )
    ]
    return tuple(sorted(found, key=lambda entry: entry.number))


async def count_requests(tx: PostgresTransaction, tenant: str | None) -> int:
    """Returns the number of send requests in the inbox."""
    return int(await tx.one(_COUNT_REQUESTS, tenant))


async def accept_taken(tx: PostgresTransaction, batch: Sequence[AcceptedEntry]) -> int:
    """Accepts the submissions of inbox entries, removes the entries and returns their number.

    Entries that another worker has already removed are skipped. If an idempotency key belongs to a different
    request, the entry's `otherwise` submission is accepted instead.
    """
    mine = await _remove(tx, [one.entry for one in batch])
    kept = [one for one in batch if one.entry.number in mine]
    answers = await accept.accept(tx, [one.submission for one in kept])
    conflicts = [
        one.otherwise
        for one, answer in zip(kept, answers, strict=True)
        if answer.conflict and one.otherwise is not None
    ]
    await accept.accept(tx, conflicts)
    return len(kept)


async def amend_taken(tx: PostgresTransaction, entry: InboxEntry, command: Command) -> AmendResult | None:
    """Removes the inbox entry and applies its command.

    Returns None if another worker has removed it already.
    """
    if not await _remove(tx, [entry]):
        return None
    return await amend.amend(tx, entry.tenant, [entry.notification_id or ""], command, 1)


async def remove(tx: PostgresTransaction, entries: Sequence[InboxEntry]) -> None:
    """Removes inbox entries."""
    await _remove(tx, entries)


async def store_retry_delays(tx: PostgresTransaction, delays_ms: Sequence[int]) -> None:
    """Writes the retry delays for the SQL functions.

    Unchanged rows are skipped and not locked, because all workers write the same delays.
    """
    await tx.rows(_WRITE_SCHEDULE, list(delays_ms))


async def _remove(tx: PostgresTransaction, entries: Sequence[InboxEntry]) -> set[int]:
    """Removes those of the entries that still exist, and returns their numbers."""
    keys = sorted((entry.number, entry.id) for entry in entries)
    return {number for (number,) in await tx.rows(_REMOVE, *transpose(keys, 2))}
