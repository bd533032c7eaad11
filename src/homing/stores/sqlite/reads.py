"""The read queries: single notifications, lists by filter, counts, error groups and roll-ups.

The SQL for a `Filter` uses the most selective index. There are few different statement texts, so the prepared
statements stay in the cache.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from msgspec import Struct, json

from homing.core.lifecycle import views
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.states import SUCCESSFUL, WAITING
from homing.core.notifications import Channel, Filter, History, Mode, Page, Reason, Status
from homing.core.statistics import (
    MOST_UNACKNOWLEDGED,
    ErrorGroup,
    GoalRollUp,
    MinuteRollUp,
    RollUp,
    Tally,
    Unacknowledged,
    WaitingGroups,
)
from homing.stores.common.change_effects import HOUR_MS, MINUTE_SUMS, MINUTES_KEPT_MS, SUMS
from homing.stores.common.codec import (
    ATTEMPT_FIELDS,
    CAUSE_FIELDS,
    Column,
    StoredAttempt,
    StoredRow,
    count_fitting,
    decode_causes,
    decode_rows,
    encode,
    round_up_to_ms,
    status_literals,
    to_column,
)
from homing.stores.common.minute_roll_ups import build_minute_roll_up, first_minute
from homing.stores.common.searches import (
    HAS_RECIPIENT_ID,
    MOST_INDEXED,
    SQLITE_RECIPIENT_KEY,
    contained_value,
    end_scan,
    recipient_parts,
)
from homing.stores.common.waiting_groups import WaitingRow, build_waiting_groups, merge_steps
from homing.stores.sqlite.change_recorder import ALL_MINUTES, attempts_of, messages_of
from homing.stores.sqlite.metadata_indexes import SqliteMetadataIndex, find_metadata_index
from homing.stores.sqlite.rows import messages_in, rows_by_id
from homing.stores.sqlite.statements import SqliteTransaction, json_row

_EQUAL = ("channel", "type", "provider", "batch_id", "address", "reason", "error_code")


_COMMON = (Status.PENDING, Status.SENDING, Status.SENT, Status.DELIVERED)

RARE = " AND ".join(f"n.status <> '{status.value}'" for status in _COMMON)
"""Condition of the index `homing_rare`. SQLite uses the index only if a query repeats this text exactly."""

_ALL_BUT_SUCCESSFUL = f"""(
  SELECT due.seq FROM homing_queues AS q CROSS JOIN homing_notifications AS due INDEXED BY homing_due
    ON due.lane = q.lane AND due.tenant = q.tenant AND due.outlet = q.outlet AND due.due_at IS NOT NULL
  WHERE q.tenant = ?1
  UNION ALL
  SELECT n.seq FROM homing_notifications AS n INDEXED BY homing_lease WHERE n.lease_until IS NOT NULL
  UNION ALL
  SELECT n.seq FROM homing_notifications AS n INDEXED BY homing_rare
  WHERE n.tenant = ?1 AND {RARE} AND n.status <> 'retrying'
) AS live CROSS JOIN homing_notifications AS n ON n.seq = live.seq"""  # noqa: S608

_MOST_ARE_SUCCESSFUL = f"""
SELECT coalesce(sum(count) FILTER (WHERE status IN ({status_literals(SUCCESSFUL)})) > 0.75 * sum(count), 0)
FROM homing_tallies WHERE tenant = ?
"""  # noqa: S608


_MISSING = """
SELECT json_group_array(j.value) FROM json_each(?1) AS j
WHERE NOT EXISTS (SELECT 1 FROM homing_notifications AS n WHERE n.id = j.value)
"""


# `e.value` of a number may have lost digits. With two paths, json_extract returns an array of JSON texts,
# which are exact. SQLite 3.40 finds no key with a double quote in this way; there, `e.value` has to do.
_HAS_METADATA = """EXISTS (
  SELECT 1 FROM homing_messages AS m
  JOIN json_each(iif(json_valid(m.message), m.message, '{}'), '$.metadata') AS e
  WHERE m.seq = n.seq AND instr(m.message, ?) > 0 AND e.key = ? AND CASE
    WHEN e.type IN ('integer', 'real') THEN coalesce(
      nullif(json_extract(m.message, e.fullkey, e.fullkey), '[null,null]'), json_array(e.value, e.value)) = ?
    WHEN e.type IN ('text', 'true', 'false') THEN iif(e.type = 'text', e.value, e.type) = ? END)"""


class SqliteFilterQuery(Struct, frozen=True):
    """The FROM and WHERE clauses of a SELECT over notifications `n`, and their parameters."""

    text: str
    parameters: tuple[Column, ...]

    def beyond(self, condition: str, value: Column) -> SqliteFilterQuery:
        """Returns the query with one more condition."""
        return SqliteFilterQuery(f"{self.text} AND {condition}", (*self.parameters, value))


def build_filter_query(
    tx: SqliteTransaction,
    tenant: str,
    filter: Filter,
    statuses: Collection[Status],
    *,
    by_id: bool = False,
    index: SqliteMetadataIndex | None = None,
) -> SqliteFilterQuery:
    """Builds the query for a filter, restricted to these statuses. No statuses means all.

    `created_until` is exclusive. If `by_id`, the caller adds a narrow range of ids, so the query starts from
    it. If `index` is given, the query starts from it.
    """
    conditions, parameters = ["n.tenant = ?1"], [to_column(tenant)]
    by_id = by_id and filter.recipient_id is None
    if index is not None:
        source = index.source
        conditions.append(index.condition)
        parameters += index.parameters
    else:
        source = _BY_TENANT if by_id else _source(tx, tenant, filter, frozenset(statuses))
    if source.endswith("homing_rare"):
        conditions.append(RARE)
    if source.endswith("homing_acknowledged"):
        conditions.append("n.status = 'failed'")  # SQLite uses the partial index only for a literal
    if statuses:
        conditions.append(f"n.status IN ({', '.join('?' * len(statuses))})")
        parameters += [status.value for status in statuses]
    for name in _EQUAL:
        value = getattr(filter, name)
        if value is not None:
            conditions.append(f"n.{name} = ?")
            parameters.append(to_column(value))
    for condition, value in _search_conditions(filter):
        conditions.append(condition)
        parameters.append(value)
    if filter.acknowledged is not None:
        conditions.append(f"n.acknowledged_at IS {'NOT ' if filter.acknowledged else ''}NULL")
    if filter.created_from is not None:
        conditions.append("n.created_at >= ?")
        parameters.append(round_up_to_ms(filter.created_from))
    if filter.created_until is not None:
        conditions.append("n.created_at < ?")
        parameters.append(round_up_to_ms(filter.created_until))
    for key, value in filter.metadata.items():
        conditions.append(_HAS_METADATA)
        parameters += [contained_value(value), key, f"[{value},{value}]", value]
    return SqliteFilterQuery(f"FROM {source} WHERE {' AND '.join(conditions)}", tuple(parameters))


def _source(tx: SqliteTransaction, tenant: str, filter: Filter, statuses: frozenset[Status]) -> str:
    indexed = "homing_notifications AS n INDEXED BY "
    if filter.batch_id is not None:
        return indexed + "homing_batch"
    if filter.recipient_id is not None:
        return _BY_RECIPIENT
    if filter.provider_message_id is not None:
        return "homing_notifications AS n"
    if filter.address is not None and tx.one(_NUMBER_OF_ADDRESS, filter.address) <= MOST_INDEXED:
        return indexed + "homing_address"
    if filter.acknowledged and statuses == {Status.FAILED}:
        return indexed + "homing_acknowledged"
    if statuses and not statuses.intersection(_COMMON):
        return indexed + "homing_rare"
    # A scan by id would read all the successful notifications to find the few others.
    if statuses and not statuses & SUCCESSFUL and tx.one(_MOST_ARE_SUCCESSFUL, tenant):
        return _ALL_BUT_SUCCESSFUL
    return indexed + "homing_tenant"


_NUMBER_OF_ADDRESS = f"""
SELECT count(*) FROM (
  SELECT 1 FROM homing_notifications INDEXED BY homing_address WHERE address = ? LIMIT {MOST_INDEXED + 1})
"""  # noqa: S608
"""If very many notifications have the address, a scan by id soon finds the newest of them without sorting."""

_BY_TENANT = "homing_notifications AS n INDEXED BY homing_tenant"

_LAST_ID = "~"
"""Sorts after all ids."""

_BY_RECIPIENT = (
    "homing_messages AS m INDEXED BY homing_recipient CROSS JOIN homing_notifications AS n ON n.seq = m.seq"
)

# The index on attempts begins with the provider, so the few providers are found first, each by one look-up.
_OF_PROVIDER_MESSAGE = """n.seq IN (
  WITH RECURSIVE p(name) AS (
    SELECT min(provider) FROM homing_attempts WHERE provider_message_id IS NOT NULL
    UNION ALL
    SELECT (SELECT min(a.provider) FROM homing_attempts AS a
            WHERE a.provider_message_id IS NOT NULL AND a.provider > p.name)
    FROM p WHERE p.name IS NOT NULL)
  SELECT a.seq FROM p CROSS JOIN homing_attempts AS a INDEXED BY homing_attempt_message
  WHERE a.provider = p.name AND a.provider_message_id = ?)"""


def _search_conditions(filter: Filter) -> list[tuple[str, Column]]:
    """Returns the conditions of the fields that only searches use, each with its parameter."""
    found: list[tuple[str, Column]] = []
    if filter.recipient_id is not None:
        start, key = recipient_parts(filter.recipient_id)
        found.append((f"{HAS_RECIPIENT_ID} AND {SQLITE_RECIPIENT_KEY} = ?", key))
        found.append(("instr(m.message, ?) = 1", start))
    if filter.provider_message_id is not None:
        found.append((_OF_PROVIDER_MESSAGE, filter.provider_message_id))
    if filter.id_prefix is not None:
        found += [("n.id >= ?", filter.id_prefix), ("n.id < ?", f"{filter.id_prefix}~")]
    return found


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
WHERE (?1 IS NULL OR q.tenant = ?1) AND due.due_at IS NOT NULL AND due.due_at > ?2 AND due.due_at <= ?3
ORDER BY due.due_at, due.id LIMIT ?4
"""

_DUE_COUNTS = """
SELECT json_group_object(status, count) FROM (
  SELECT due.status, count(*) AS count
  FROM homing_queues AS q CROSS JOIN homing_notifications AS due INDEXED BY homing_due
    ON due.lane = q.lane AND due.tenant = q.tenant AND due.outlet = q.outlet
  WHERE (?1 IS NULL OR q.tenant = ?1) AND due.due_at IS NOT NULL AND due.due_at <= ?2
  GROUP BY due.status)
"""

_WAITING_GROUPS = """
SELECT json_group_array(json_array(lane, provider, reason, slot, number, late, oldest)) FROM (
  SELECT lane, provider, reason, iif(?3 IS NULL OR due_at <= ?2, NULL, due_at - due_at % ?3) AS slot,
    count(*) AS number, sum(aged_from <= ?2) AS late, min(iif(aged_from <= ?2, aged_from, NULL)) AS oldest
  FROM (
    SELECT n.lane, n.provider, n.reason, n.due_at, n.aged_from
    FROM homing_queues AS q CROSS JOIN homing_notifications AS n INDEXED BY homing_due
      ON n.lane = q.lane AND n.tenant = q.tenant AND n.outlet = q.outlet
    WHERE q.tenant = ?1 AND n.due_at IS NOT NULL LIMIT ?4)
  GROUP BY lane, provider, reason, slot ORDER BY slot, lane, provider, reason)
"""

# One range of the index per queue and step that has any rows: first what is due, then each step after now.
# That takes a third of the time of one GROUP BY over all rows, which would sort them.
_NEXT_DUE = """(
      SELECT n.due_at FROM homing_notifications AS n INDEXED BY homing_due
      WHERE n.lane = {of}.lane AND n.tenant = ?1 AND n.outlet = {of}.outlet AND n.due_at IS NOT NULL
        AND n.due_at > {after} ORDER BY n.due_at LIMIT 1)"""

_STEP_END = "s.next - s.next % ?3 + ?3 - 1"

_WAITING_STEPS = f"""
WITH RECURSIVE steps(lane, outlet, after, until, next) AS (
  SELECT q.lane, q.outlet, -1, ?2, {_NEXT_DUE.format(of="q", after="?2")}
  FROM homing_queues AS q WHERE q.tenant = ?1
  UNION ALL
  SELECT s.lane, s.outlet, s.until, {_STEP_END}, {_NEXT_DUE.format(of="s", after=_STEP_END)}
  FROM steps AS s WHERE s.next IS NOT NULL)
SELECT json_group_array(json_array(s.lane, iif(s.after < 0, NULL, s.until + 1 - ?3), json((
  SELECT json_group_array(json_array(provider, reason, number, late, oldest)) FROM (
    SELECT n.provider, n.reason, count(*) AS number, sum(n.aged_from <= ?2) AS late,
      min(iif(n.aged_from <= ?2, n.aged_from, NULL)) AS oldest
    FROM homing_notifications AS n INDEXED BY homing_due
    WHERE n.lane = s.lane AND n.tenant = ?1 AND n.outlet = s.outlet AND n.due_at IS NOT NULL
      AND n.due_at > s.after AND n.due_at <= s.until
    GROUP BY n.provider, n.reason)))))
FROM steps AS s
"""  # noqa: S608

_WAITING_TOTAL = f"""
SELECT coalesce(sum(count), 0) FROM homing_tallies
WHERE tenant = ? AND status IN ({status_literals(WAITING)})
"""  # noqa: S608

_RETRYING = """
SELECT n.seq FROM homing_notifications AS n INDEXED BY homing_last_attempt
WHERE n.tenant = ?1 AND n.status = 'retrying' ORDER BY n.last_attempt_at, n.id LIMIT ?2
"""

_FOREVER = 2**62

_ERROR_GROUPS = f"""
SELECT json_group_array(json_array(
  reason, error_code, last_error, count, unacknowledged, newest, last_hour, hour_before))
FROM (
  SELECT n.reason, n.error_code, n.last_error, count(*) AS count,
    sum(n.status = 'failed' AND n.acknowledged_at IS NULL) AS unacknowledged,
    max(printf('%020d', n.ended_at) || n.id) AS newest,
    sum(n.ended_at > ?4 - {HOUR_MS}) AS last_hour,
    sum(n.ended_at <= ?4 - {HOUR_MS} AND n.ended_at > ?4 - 2 * {HOUR_MS}) AS hour_before
  FROM (
    SELECT n.id, n.status, n.reason, n.error_code, n.last_error, n.acknowledged_at,
      coalesce(n.failed_at, n.last_attempt_at, 0) AS ended_at
    FROM homing_notifications AS n INDEXED BY homing_rare
    WHERE n.tenant = ?1 AND n.status = ?2 AND {RARE} ORDER BY n.id DESC LIMIT ?5) AS n
  GROUP BY coalesce(n.reason, ''), coalesce(n.error_code, ''),
    iif(coalesce(n.error_code, '') = '', coalesce(n.last_error, ''), '')
  ORDER BY count DESC, 1, 2, 3
  LIMIT ?3)
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

_MINUTES = f"""
SELECT json_group_array(json_array(step_at, tenant, channel, provider, {", ".join(MINUTE_SUMS)})) FROM (
  SELECT minute_at - minute_at % ?3 AS step_at, tenant, channel, provider,
    {", ".join(f"sum({name}) AS {name}" for name in MINUTE_SUMS)}
  FROM {ALL_MINUTES.format(after="?1")}
  WHERE ?2 IS NULL OR tenant = ?2
  GROUP BY step_at, tenant, channel, provider
  ORDER BY step_at, tenant, channel, provider)
"""  # noqa: S608

_LAST_ATTEMPTS = f"""
WITH chosen AS MATERIALIZED (
  SELECT n.seq, n.id FROM homing_notifications AS n WHERE n.tenant = ?1 ORDER BY n.id DESC LIMIT ?3),
numbered AS (
  SELECT chosen.id, a.*,
    row_number() OVER (PARTITION BY a.provider ORDER BY a.started_at DESC, a.seq DESC, a.change DESC) AS place
  FROM chosen CROSS JOIN homing_attempts AS a ON a.seq = chosen.seq)
SELECT json_group_array(json_array(id, json_array({", ".join(ATTEMPT_FIELDS)})))
FROM (SELECT * FROM numbered WHERE place <= ?2 ORDER BY started_at DESC, seq DESC, change DESC)
"""  # noqa: S608

_decode_last = json.Decoder(list[tuple[str, StoredAttempt]]).decode

_GOALS = """
SELECT json_group_array(json_array(hour_at, tenant, mode, met, missed)) FROM (
  SELECT * FROM homing_goals
  WHERE hour_at > ?1 AND (?2 IS NULL OR tenant = ?2)
  ORDER BY hour_at, tenant, mode)
"""

_UNACKNOWLEDGED = """
SELECT count(*), (
    SELECT min(n.failed_at) FROM homing_notifications AS n INDEXED BY {index}
    WHERE n.status = 'failed' AND n.acknowledged_at IS NULL AND {condition})
FROM (
  SELECT 1 FROM homing_notifications AS n INDEXED BY {index}
  WHERE n.status = 'failed' AND n.acknowledged_at IS NULL AND {condition} LIMIT {most})
"""

_UNACKNOWLEDGED_OF_ALL = _UNACKNOWLEDGED.format(
    index="homing_unacknowledged", condition="true", most=MOST_UNACKNOWLEDGED
)

_UNACKNOWLEDGED_OF_ONE = _UNACKNOWLEDGED.format(
    index="homing_unacknowledged", condition="n.tenant = ?1", most=MOST_UNACKNOWLEDGED
)

_OLDEST_RETRY = """
SELECT min((SELECT min(coalesce(n.first_failed_at, n.last_attempt_at))
            FROM homing_notifications AS n INDEXED BY homing_retrying
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

_decode_groups = json.Decoder(
    list[tuple[Reason | None, str | None, str | None, int, int, str, int, int]]
).decode

_decode_tallies = json.Decoder(list[tuple[Status, int, int, int]]).decode

_decode_roll_ups = json.Decoder(
    list[tuple[int, str, Channel, str, int, int, int, int, int, int, int, int, int]]
).decode

_decode_waiting = json.Decoder(list[WaitingRow]).decode

_decode_steps = json.Decoder(
    list[tuple[str, int | None, list[tuple[str, str | None, int, int, int | None]]]]
).decode

_decode_minutes = json.Decoder(list[list[Any]]).decode

_decode_goals = json.Decoder(list[tuple[int, str, Mode, int, int]]).decode

_decode_counts = json.Decoder(dict[Status, int]).decode

_decode_pairs = json.Decoder(tuple[tuple[str, str], ...]).decode

_decode_texts = json.Decoder(tuple[str, ...]).decode


def get(tx: SqliteTransaction, tenant: str, id: str) -> History | None:
    """Returns one notification with its history, or None if it does not exist or has another tenant."""
    found = rows_by_id(tx, (id,)).get(id)
    if found is None or found[1].tenant != tenant:
        return None
    seq, row = found
    causes = [cause for _, cause in decode_causes(tx.one(_CAUSES_OF, seq))]
    return views.history(row, messages_of(tx, (seq,))[seq], attempts_of(tx, (seq,))[seq], causes)


def find_missing(tx: SqliteTransaction, ids: Collection[str]) -> frozenset[str]:
    """Returns those of the ids under which no notification is stored."""
    return frozenset(json.decode(tx.one(_MISSING, encode(list(ids))), type=list[str]))


def list_page(
    tx: SqliteTransaction,
    tenant: str,
    filter: Filter,
    limit: int,
    cursor: str | None,
    oldest_first: bool = False,
    scan: int | None = None,
) -> Page:
    """Returns a page of the notifications that match the filter, the newest first or the oldest first.

    With `scan`, compares at most this many notifications with the filter, unless an index finds them.
    """
    beyond, order = (">", "ASC") if oldest_first else ("<", "DESC")
    last: str | None = None
    index = None if scan is None else find_metadata_index(tx, filter.metadata)
    if scan is not None and index is None:
        compared = f"SELECT n.id FROM {_BY_TENANT} WHERE n.tenant = ? AND n.id {beyond} ?"  # noqa: S608
        from_id = cursor if cursor is not None else ("" if oldest_first else _LAST_ID)
        last = tx.one(f"{compared} ORDER BY n.id {order} LIMIT 1 OFFSET ?", tenant, from_id, scan - 1)
    found = build_filter_query(tx, tenant, filter, filter.statuses, by_id=last is not None, index=index)
    if cursor is not None:
        found = found.beyond(f"n.id {beyond} ?", cursor)
    if last is not None:
        found = found.beyond("n.id <= ?" if oldest_first else "n.id >= ?", last)
    chosen = f"SELECT n.seq {found.text} ORDER BY n.id {order} LIMIT ?"
    return end_scan(_page(tx, chosen, *found.parameters, limit + 1, limit=limit), last)


def waiting(tx: SqliteTransaction, tenant: str | None, limit: int, ready: bool | None) -> Page:
    """Returns waiting notifications of one tenant, or of all if it is None, the earliest due first.

    `ready` selects those due now (True), those due later (False) or both (None).
    """
    first = tx.now if ready is False else -1
    last = tx.now if ready is True else _FOREVER
    return Page(items=_page(tx, _WAITING, tenant, first, last, limit, limit=limit).items)


def count_due(tx: SqliteTransaction, tenant: str | None) -> dict[Status, int]:
    """Returns the number of due notifications of one tenant, or of all if it is None, by status."""
    return _decode_counts(tx.one(_DUE_COUNTS, tenant, tx.now))


def waiting_groups(tx: SqliteTransaction, tenant: str, step_ms: int | None, limit: int) -> WaitingGroups:
    """Returns what waits, in groups. Counts at most `limit` notifications."""
    if step_ms is not None and tx.one(_WAITING_TOTAL, tenant) <= limit:
        return build_waiting_groups(_waiting_steps(tx, tenant, step_ms), limit)
    found = _decode_waiting(tx.one(_WAITING_GROUPS, tenant, tx.now, step_ms, limit + 1))
    return build_waiting_groups(found, limit)


def _waiting_steps(tx: SqliteTransaction, tenant: str, step_ms: int) -> list[WaitingRow]:
    """Returns all that waits, in groups by step of due time."""
    found = _decode_steps(tx.one(_WAITING_STEPS, tenant, tx.now, step_ms))
    return merge_steps(
        WaitingRow(lane, provider, reason, slot, number, late, oldest)
        for lane, slot, groups in found
        for provider, reason, number, late, oldest in groups
    )


def retrying(tx: SqliteTransaction, tenant: str, limit: int) -> Page:
    """Returns notifications that wait for a retry, that with the oldest last attempt first."""
    return Page(items=_page(tx, _RETRYING, tenant, limit, limit=limit).items)


def tallies(tx: SqliteTransaction, tenant: str | None) -> tuple[Tally, ...]:
    """Returns the number of notifications per status and number of attempts, in life-cycle order."""
    found = [Tally(*cell) for cell in _decode_tallies(tx.one(_TALLIES, tenant))]
    return tuple(sorted(found, key=lambda tally: (_ORDER[tally.status], tally.attempts)))


def error_groups(
    tx: SqliteTransaction, tenant: str, limit: int, status: Status, newest: int | None = None
) -> tuple[ErrorGroup, ...]:
    """Returns the dead letters, or what waits for a retry, grouped by error, the largest group first."""
    most = -1 if newest is None else newest
    found = _decode_groups(tx.one(_ERROR_GROUPS, tenant, status.value, limit, tx.now, most))
    return tuple(
        ErrorGroup(
            reason=reason,
            error_code=code,
            last_error=text,
            count=count,
            unacknowledged=unacknowledged,
            newest_at=views.optional_moment(int(example[:20])),
            example_id=example[20:],
            last_hour=last_hour,
            hour_before=hour_before,
        )
        for reason, code, text, count, unacknowledged, example, last_hour, hour_before in found
    )


def roll_ups(tx: SqliteTransaction, tenant: str | None, since_ms: int) -> tuple[RollUp, ...]:
    """Returns the sums of the hours that overlap the last `since_ms` milliseconds, the oldest first."""
    found = _decode_roll_ups(tx.one(_ROLL_UPS, tx.now - since_ms - HOUR_MS, tenant))
    return tuple(
        RollUp(
            hour_at=views.optional_moment(hour_at),
            tenant=whose,
            channel=channel,
            provider=provider,
            **dict(zip(SUMS, sums, strict=True)),
        )
        for hour_at, whose, channel, provider, *sums in found
    )


def minute_roll_ups(
    tx: SqliteTransaction, tenant: str | None, since_ms: int, step_ms: int
) -> tuple[MinuteRollUp, ...]:
    """Returns the sums of the steps that overlap the last `since_ms` milliseconds, the oldest first."""
    after = max(first_minute(tx.now, since_ms, step_ms), tx.now - MINUTES_KEPT_MS)
    found = _decode_minutes(tx.one(_MINUTES, after, tenant, step_ms))
    return tuple(build_minute_roll_up(*columns) for columns in found)


def last_attempts(
    tx: SqliteTransaction, tenant: str, per_provider: int, scan: int
) -> tuple[tuple[str, AttemptRecord], ...]:
    """Returns the last attempts of each provider, with the ids of their notifications."""
    return tuple(_decode_last(tx.one(_LAST_ATTEMPTS, tenant, per_provider, scan)))


def goal_roll_ups(tx: SqliteTransaction, tenant: str | None, since_ms: int) -> tuple[GoalRollUp, ...]:
    """Returns the punctuality of the hours that overlap the last `since_ms` milliseconds, oldest first."""
    found = _decode_goals(tx.one(_GOALS, tx.now - since_ms - HOUR_MS, tenant))
    return tuple(
        GoalRollUp(hour_at=views.optional_moment(hour_at), tenant=whose, mode=mode, met=met, missed=missed)
        for hour_at, whose, mode, met, missed in found
    )


def unacknowledged(tx: SqliteTransaction, tenant: str | None) -> Unacknowledged:
    """Returns the number of unacknowledged dead letters, and the time of the oldest."""
    if tenant is None:
        number, oldest = tx.cursor.execute(_UNACKNOWLEDGED_OF_ALL).fetchone()
    else:
        number, oldest = tx.cursor.execute(_UNACKNOWLEDGED_OF_ONE, (tenant,)).fetchone()
    return Unacknowledged(count=number, oldest_at=views.optional_moment(oldest))


def oldest_retry_at(tx: SqliteTransaction, tenant: str | None) -> datetime | None:
    """Returns the time of the oldest first failure of a retrying notification, or None if there is none."""
    at: int | None = tx.one(_OLDEST_RETRY, tenant)
    return views.optional_moment(at)


def silent(
    tx: SqliteTransaction, status: Status, providers: Collection[str], after: int, until: int, limit: int
) -> tuple[tuple[str, str], ...]:
    """Returns (tenant, id) of notifications with this status that last changed between `after` and `until`.

    Only notifications of these providers are returned, those unchanged for the longest time first.
    """
    found = tx.one(_SILENT, status.value, after, until, encode(list(providers)), max(0, limit))
    return _decode_pairs(found)


def tenants(tx: SqliteTransaction) -> tuple[str, ...]:
    """Returns all tenants that have or had notifications."""
    return _decode_texts(
        tx.one(
            "SELECT json_group_array(tenant) FROM"
            " (SELECT DISTINCT tenant FROM homing_tallies ORDER BY tenant)"
        )
    )


def _page(tx: SqliteTransaction, chosen: str, *parameters: Any, limit: int) -> Page:
    """Returns the selected notifications, as many as the limit and the maximum size of a page allow."""
    sizes = _decode_sizes(tx.one(_SIZES.format(chosen=chosen), *parameters))
    kept = [seq for seq, _ in sizes[: min(limit, count_fitting(size for _, size in sizes))]]
    rows, messages = tx.cursor.execute(_PAGE, (encode(kept),)).fetchone()
    found: list[tuple[int, StoredRow]] = decode_rows(rows)
    items = tuple(
        views.notification(row, message)
        for (_, row), message in zip(found, messages_in(tx, kept, messages), strict=True)
    )
    return Page(items=items, cursor=items[-1].id if items and len(items) < len(sizes) else None)
