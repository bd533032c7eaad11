"""Read-only queries: notifications, dead letters, tallies and hourly sums."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from msgspec import json

from homing.core import views
from homing.core.model import (
    Channel,
    ErrorGroup,
    Filter,
    History,
    Page,
    Reason,
    RollUp,
    Status,
    Tally,
)
from homing.stores.codec import CAUSE_FIELDS, StoredRow, decode_causes, decode_messages, decode_rows, encode
from homing.stores.paging import that_fit
from homing.stores.sqlite.changes import HOUR_MS, SUMS, attempts_of, messages_of
from homing.stores.sqlite.filters import RARE, query
from homing.stores.sqlite.rows import rows_by_id
from homing.stores.sqlite.statements import Tx, json_row

_ORDER = {status: number for number, status in enumerate(Status)}
_CAUSES_OF = f"""
SELECT json_group_array(json_array(c.seq, json_array({", ".join(f"c.{f}" for f in CAUSE_FIELDS)})))
FROM (SELECT * FROM homing_causes WHERE seq = ? ORDER BY change) AS c
"""  # noqa: S608
_SIZES = """
SELECT json_group_array(json_array(c.seq, length(CAST(m.message AS BLOB))))
FROM ({chosen}) AS c CROSS JOIN homing_messages AS m ON m.seq = c.seq
"""
_PAGE = f"""
SELECT json_group_array({json_row("n")}), '[' || coalesce(group_concat(m.message), '') || ']'
FROM (SELECT value AS seq FROM json_each(?1)) AS c
CROSS JOIN homing_notifications AS n ON n.seq = c.seq
CROSS JOIN homing_messages AS m ON m.seq = n.seq
"""  # noqa: S608
_WAITING = """
SELECT due.seq FROM homing_queues AS q CROSS JOIN homing_notifications AS due INDEXED BY homing_due
  ON due.lane = q.lane AND due.tenant = q.tenant AND due.outlet = q.outlet
WHERE q.tenant = ?1 AND due.due_at IS NOT NULL AND due.due_at > ?2 AND due.due_at <= ?3
ORDER BY due.due_at, due.id LIMIT ?4
"""
_FOREVER = 2**62
_ERROR_GROUPS = f"""
SELECT json_group_array(json_array(reason, error_code, last_error, count, unacknowledged, newest))
FROM (
  SELECT n.reason, n.error_code, n.last_error, count(*) AS count,
    sum(n.acknowledged_at IS NULL) AS unacknowledged,
    max(printf('%020d', coalesce(n.failed_at, 0)) || n.id) AS newest
  FROM homing_notifications AS n INDEXED BY homing_rare
  WHERE n.tenant = ? AND n.status = 'failed' AND {RARE}
  GROUP BY coalesce(n.reason, ''), coalesce(n.error_code, ''),
    iif(coalesce(n.error_code, '') = '', coalesce(n.last_error, ''), '')
  ORDER BY count DESC, 1, 2, 3
  LIMIT ?)
"""  # noqa: S608
_TALLIES = """
SELECT json_group_array(json_array(status, attempts, count, purged)) FROM (
  SELECT status, attempts, sum(count) AS count, sum(purged) AS purged
  FROM homing_tallies WHERE ?1 IS NULL OR tenant = ?1
  GROUP BY status, attempts HAVING sum(count) <> 0 OR sum(purged) <> 0)
"""
_ROLL_UPS = f"""
SELECT json_group_array(json_array(hour_at, tenant, channel, provider, {", ".join(SUMS)})) FROM (
  SELECT * FROM homing_roll_ups
  WHERE hour_at > ?1 AND (?2 IS NULL OR tenant = ?2)
  ORDER BY hour_at, tenant, channel, provider)
"""  # noqa: S608
_OLDEST_RETRY = """
SELECT min((SELECT min(n.last_attempt_at) FROM homing_notifications AS n INDEXED BY homing_retrying
            WHERE n.tenant = t.tenant AND n.status = 'retrying'))
FROM (SELECT DISTINCT tenant FROM homing_tallies WHERE ?1 IS NULL OR tenant = ?1) AS t
"""

_SILENT = """
SELECT json_group_array(json_array(tenant, id)) FROM (
  SELECT n.tenant, n.id FROM homing_notifications AS n INDEXED BY homing_final
  WHERE n.status = ?1 AND n.updated_at > ?2 AND n.updated_at <= ?3
    AND n.due_at IS NULL AND n.lease_until IS NULL
    AND n.provider IN (SELECT value FROM json_each(?4))
  ORDER BY n.updated_at LIMIT ?5)
"""

_decode_sizes = json.Decoder(list[tuple[int, int]]).decode
_decode_groups = json.Decoder(list[tuple[Reason | None, str | None, str | None, int, int, str]]).decode
_decode_tallies = json.Decoder(list[tuple[Status, int, int, int]]).decode
_decode_roll_ups = json.Decoder(list[tuple[int, str, Channel, str, int, int, int, int, int, int, int]]).decode
_decode_pairs = json.Decoder(tuple[tuple[str, str], ...]).decode
_decode_texts = json.Decoder(tuple[str, ...]).decode


def get(tx: Tx, tenant: str, id: str) -> History | None:
    """Returns one notification with its history, or None if it does not exist or has another tenant."""
    found = rows_by_id(tx, (id,)).get(id)
    if found is None or found[1].tenant != tenant:
        return None
    seq, row = found
    causes = [cause for _, cause in decode_causes(tx.one(_CAUSES_OF, seq))]
    return views.history(row, messages_of(tx, (seq,))[seq], attempts_of(tx, (seq,))[seq], causes)


def list_page(tx: Tx, tenant: str, filter: Filter, limit: int, cursor: str | None) -> Page:
    """Returns a page of the notifications that match the filter, the newest first."""
    found = query(tx, tenant, filter, filter.statuses)
    if cursor is not None:
        found = found.beyond("n.id < ?", cursor)
    chosen = f"SELECT n.seq {found.text} ORDER BY n.id DESC LIMIT ?"
    return _page(tx, chosen, *found.parameters, limit + 1, limit=limit)


def waiting(tx: Tx, tenant: str, limit: int, ready: bool | None) -> Page:
    """Returns waiting notifications, the earliest due first.

    `ready` selects those due now (True), those due later (False) or both (None).
    """
    first = tx.now if ready is False else -1
    last = tx.now if ready is True else _FOREVER
    return Page(items=_page(tx, _WAITING, tenant, first, last, limit, limit=limit).items)


def tallies(tx: Tx, tenant: str | None) -> tuple[Tally, ...]:
    """Returns the counts by status, in the order of the life cycle, and number of attempts."""
    found = [Tally(*cell) for cell in _decode_tallies(tx.one(_TALLIES, tenant))]
    return tuple(sorted(found, key=lambda tally: (_ORDER[tally.status], tally.attempts)))


def error_groups(tx: Tx, tenant: str, limit: int) -> tuple[ErrorGroup, ...]:
    """Returns the dead letters grouped by error, the largest group first."""
    groups = []
    for reason, code, text, count, unacknowledged, newest in _decode_groups(
        tx.one(_ERROR_GROUPS, tenant, limit)
    ):
        groups.append(
            ErrorGroup(
                reason=reason,
                error_code=code,
                last_error=text,
                count=count,
                unacknowledged=unacknowledged,
                newest_at=views.when(int(newest[:20])),
                example_id=newest[20:],
            )
        )
    return tuple(groups)


def roll_ups(tx: Tx, tenant: str | None, since_ms: int) -> tuple[RollUp, ...]:
    """Returns the sums of the hours that end within the last `since_ms`, the oldest first."""
    found = _decode_roll_ups(tx.one(_ROLL_UPS, tx.now - since_ms - HOUR_MS, tenant))
    return tuple(
        RollUp(
            hour_at=views.when(hour_at),
            tenant=whose,
            channel=channel,
            provider=provider,
            **dict(zip(SUMS, sums, strict=True)),
        )
        for hour_at, whose, channel, provider, *sums in found
    )


def oldest_retry_at(tx: Tx, tenant: str | None) -> datetime | None:
    """Returns the earliest time of a last attempt among the retrying notifications, if any."""
    at: int | None = tx.one(_OLDEST_RETRY, tenant)
    return views.when(at)


def silent(
    tx: Tx, status: Status, providers: Collection[str], after: int, until: int, limit: int
) -> tuple[tuple[str, str], ...]:
    """Returns (tenant, id) of notifications with this status that last changed between `after` and `until`.

    The longest unchanged come first.
    """
    found = tx.one(_SILENT, status.value, after, until, encode(list(providers)), max(0, limit))
    return _decode_pairs(found)


def tenants(tx: Tx) -> tuple[str, ...]:
    """Returns all tenants that have or had notifications."""
    return _decode_texts(
        tx.one(
            "SELECT json_group_array(tenant) FROM"
            " (SELECT DISTINCT tenant FROM homing_tallies ORDER BY tenant)"
        )
    )


def _page(tx: Tx, chosen: str, *parameters: Any, limit: int) -> Page:
    """Returns the selected notifications, as many as the limit and the maximum size of a page allow."""
    sizes = _decode_sizes(tx.one(_SIZES.format(chosen=chosen), *parameters))
    kept = [seq for seq, _ in sizes[: min(limit, that_fit(size for _, size in sizes))]]
    rows, messages = tx.cursor.execute(_PAGE, (encode(kept),)).fetchone()
    found: list[tuple[int, StoredRow]] = decode_rows(rows)
    items = tuple(
        views.notification(row, message)
        for (_, row), message in zip(found, decode_messages(messages), strict=True)
    )
    return Page(items=items, cursor=items[-1].id if items and len(items) < len(sizes) else None)
