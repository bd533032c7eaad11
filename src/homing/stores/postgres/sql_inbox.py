"""Processes the inbox that the SQL functions (`homing.enqueue` and those for operators) write to.

Also stores the retry delays that these functions read.
"""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.ports.stores import (
    VOID_TERM_MS,
    AcceptedEntry,
    InboxAcceptance,
    InboxEntry,
    InboxEntryKind,
    RetryRule,
)
from homing.stores.postgres import accept, amend
from homing.stores.postgres.statements import PostgresTransaction, transpose

# An entry without a lease time is never leased: the previous release does not know its command, and must not
# take it when the lease of a worker of this release has expired.
_LEASE_ENTRIES = """
WITH due AS MATERIALIZED (
    SELECT number FROM homing.inbox WHERE lease_until <= $1 OR lease_until > $4 OR lease_until IS NULL
    ORDER BY number LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE homing.inbox AS i SET lease_until = CASE WHEN i.lease_until IS NULL THEN NULL ELSE $1 + $3 END
FROM due WHERE i.number = due.number
RETURNING i.number, i.kind, i.tenant, i.id::text, i.notification_id::text, i.request, i.enqueued_at,
    i.already_failed, i.last_error, i.max_retries, i.who, i.why
"""

_REMOVE = """
DELETE FROM homing.inbox AS i USING unnest($1::bigint[], $2::text[]::uuid[]) AS u(number, id)
WHERE i.number = u.number AND i.id = u.id RETURNING i.number
"""

_WRITE_HASHES = """
UPDATE homing.requests AS r
SET body_hash = homing.body_hash(u.request, u.already_failed, u.last_error, u.max_retries)
FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[], $5::text[], $6::integer[])
    AS u(tenant, idempotency_key, request, already_failed, last_error, max_retries)
WHERE r.tenant = u.tenant AND r.idempotency_key = u.idempotency_key AND r.body_hash IS NULL
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

# Delays are passed as texts such as {60000,300000}, because arrays of arrays must be rectangular.
_WRITE_RULES = """
WITH new AS (
    SELECT u.position::integer AS position, u.tenant, u.type, u.origin, u.channel, u.priority,
        u.delays::bigint[] AS delays
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
        WITH ORDINALITY AS u(tenant, type, origin, channel, priority, delays, position)
), gone AS (
    DELETE FROM homing.retry_rules WHERE position > cardinality($1::text[])
)
INSERT INTO homing.retry_rules AS r (position, tenant, type, origin, channel, priority, delays_ms)
SELECT new.* FROM new LEFT JOIN homing.retry_rules AS old ON old.position = new.position
WHERE (old.tenant, old.type, old.origin, old.channel, old.priority, old.delays_ms)
    IS DISTINCT FROM (new.tenant, new.type, new.origin, new.channel, new.priority, new.delays)
ORDER BY new.position
ON CONFLICT (position) DO UPDATE SET tenant = excluded.tenant, type = excluded.type, origin = excluded.origin,
    channel = excluded.channel, priority = excluded.priority, delays_ms = excluded.delays_ms
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
            enqueued_at=enqueued_at,
            already_failed=failed,
            last_error=error,
            max_retries=most,
            who=who,
            why=why,
        )
        for (
            number,
            kind,
            tenant,
            id_,
            about,
            request,
            enqueued_at,
            failed,
            error,
            most,
            who,
            why,
        ) in await tx.rows(_LEASE_ENTRIES, tx.now, limit, lease_ms, void_after)
    ]
    return tuple(sorted(found, key=lambda entry: entry.number))


async def count_requests(tx: PostgresTransaction, tenant: str | None) -> int:
    """Returns the number of send requests in the inbox."""
    return int(await tx.one(_COUNT_REQUESTS, tenant))


async def accept_taken(tx: PostgresTransaction, batch: Sequence[AcceptedEntry]) -> InboxAcceptance:
    """Accepts the submissions of inbox entries and removes the entries.

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
    identified = [
        (e.tenant, one.submission.idempotency_key, e.request, e.already_failed, e.last_error, e.max_retries)
        for one, answer in zip(kept, answers, strict=True)
        if one.submission.idempotency_key is not None and not answer.conflict
        for e in (one.entry,)
    ]
    if identified:
        await tx.run(_WRITE_HASHES, *transpose(identified, 6))
    refused = sum(any(new.refused for new in one.submission.notifications) for one in kept)
    return InboxAcceptance(entries=len(kept), refused=refused + len(conflicts))


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


async def store_retry_delays(
    tx: PostgresTransaction, delays_ms: Sequence[int], rules: Sequence[RetryRule]
) -> None:
    """Writes the retry delays for the SQL functions and views.

    Unchanged rows are skipped and not locked, because all workers write the same delays.
    """
    await tx.rows(_WRITE_SCHEDULE, list(delays_ms))
    columns = [
        (r.tenant, r.type, r.origin, r.channel, r.priority, f"{{{','.join(map(str, r.delays_ms))}}}")
        for r in rules
    ]
    await tx.rows(_WRITE_RULES, *transpose(columns, 6))


async def _remove(tx: PostgresTransaction, entries: Sequence[InboxEntry]) -> set[int]:
    """Removes those of the entries that still exist, and returns their numbers."""
    keys = sorted((entry.number, entry.id) for entry in entries)
    return {number for (number,) in await tx.rows(_REMOVE, *transpose(keys, 2))}
