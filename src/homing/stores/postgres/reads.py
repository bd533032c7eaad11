"""The read queries: single notifications, lists by filter, counts, error groups and roll-ups.

The SQL for a `Filter` starts from the messages or from the states, whichever reads fewer rows.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import msgspec
from msgspec import Struct

from homing.core.lifecycle import views
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.rows import CauseRecord
from homing.core.lifecycle.states import LIVE, SUCCESSFUL, WAITING
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
from homing.stores.common.change_effects import HOUR_MS, MINUTE_SUMS, SUMS
from homing.stores.common.codec import (
    ATTEMPT_FIELDS,
    CAUSE_FIELDS,
    MAX_PAGE_BYTES,
    Column,
    StoredAttempt,
    decode_message,
    round_up_to_ms,
    status_literals,
    to_column,
)
from homing.stores.common.minute_roll_ups import build_minute_roll_up, first_minute
from homing.stores.common.searches import (
    HAS_RECIPIENT_ID,
    MOST_INDEXED,
    POSTGRES_RECIPIENT_KEY,
    contained_value,
    end_scan,
    id_range,
    recipient_parts,
)
from homing.stores.common.waiting_groups import WaitingRow, build_waiting_groups, merge_steps
from homing.stores.postgres.change_recorder import LATENESS_OF_LEDGER, attempts_of, messages_of
from homing.stores.postgres.columns import is_id
from homing.stores.postgres.metadata_indexes import find_metadata_index, metadata_condition
from homing.stores.postgres.rows import SELECTED, find_stored_ids, rows_by_id, rows_from
from homing.stores.postgres.statements import PostgresTransaction

_MESSAGE_FIELDS = ("channel", "type", "batch_id", "address")

_STATE_FIELDS = ("provider", "reason", "error_code")

_FEW_ROWS = 20_000
"""If at most this many rows have the wanted statuses, the query starts from the states."""

_RARE_FACTOR = 20
"""The query also starts from the states if at most one row in this many has one of the wanted statuses."""

_MANY_ROWS = 50_000
"""The query never starts from the states if more rows than this have the wanted statuses: sorting them takes
long, and a scan by id soon finds the newest of them."""

_COUNTS = """
SELECT coalesce(sum(count) FILTER (WHERE status = ANY($2::text[])), 0), coalesce(sum(count), 0)
FROM homing.all_tallies WHERE tenant = $1
"""


class PostgresFilterQuery(Struct, frozen=True):
    """The FROM and WHERE clauses of a SELECT over messages `m`, and their parameters."""

    text: str
    parameters: tuple[Column, ...]

    def beyond(self, condition: str, value: Column) -> PostgresFilterQuery:
        """Returns the query with one more condition, in which `{}` stands for the value."""
        place = f"${len(self.parameters) + 1}"
        return PostgresFilterQuery(f"{self.text} AND {condition.format(place)}", (*self.parameters, value))

    def limited(self, order: str, limit: int) -> PostgresFilterQuery:
        """Returns the query for the first `limit` rows in this order.

        The limit is a literal. For a parameter, PostgreSQL expects a tenth of the table, and would rather
        read and sort all rows that match than scan by id until it has found enough.
        """
        return PostgresFilterQuery(f"{self.text} ORDER BY {order} LIMIT {int(limit)}", self.parameters)


async def build_filter_query(
    tx: PostgresTransaction,
    tenant: str,
    filter: Filter,
    statuses: Collection[Status],
    *,
    by_id: bool = False,
    index: str | None = None,
) -> PostgresFilterQuery:
    """Builds the query for a filter, restricted to these statuses. No statuses means all.

    If `by_id`, the caller adds a narrow range of ids, so the query starts from it. If `index` is a key of the
    metadata, the query starts from the index of that key.

    `created_until` is exclusive. The statuses are literals, not parameters, because otherwise PostgreSQL
    cannot use a partial index for them.
    """
    wanted = frozenset(statuses)
    is_searched = by_id or index is not None or any(getattr(filter, name) is not None for name in _SEARCHED)
    acknowledged = filter.acknowledged is True and wanted == {Status.FAILED}
    if not is_searched and await _are_few(tx, tenant, wanted, acknowledged=acknowledged):
        states = _states_alone(wanted, acknowledged=acknowledged)
        text = f"FROM {states} AS s JOIN homing.messages AS m ON m.seq = s.seq"
    else:
        text = f"FROM homing.messages AS m{_states_joined(filter, wanted)}"
    found = PostgresFilterQuery(f"{text} WHERE m.tenant = $1", (tenant,))
    if wanted:
        found = PostgresFilterQuery(
            f"{found.text} AND s.status IN ({status_literals(wanted)})", found.parameters
        )
    for alias, names in (("m", _MESSAGE_FIELDS), ("s", _STATE_FIELDS)):
        for name in names:
            value = getattr(filter, name)
            if value is not None:
                found = found.beyond(f"{alias}.{name} = {{}}", to_column(value))
    if filter.address is not None and await tx.one(_NUMBER_OF_ADDRESS, filter.address) <= MOST_INDEXED:
        found = found.beyond("left(m.address, 300) = left({}::text, 300)", filter.address)
    found = _add_search(found, filter)
    if filter.acknowledged is not None:
        is_set = "NOT NULL" if filter.acknowledged else "NULL"
        found = PostgresFilterQuery(f"{found.text} AND s.acknowledged_at IS {is_set}", found.parameters)
    if filter.created_from is not None:
        found = found.beyond("m.created_at >= {}", round_up_to_ms(filter.created_from))
    if filter.created_until is not None:
        found = found.beyond("m.created_at < {}", round_up_to_ms(filter.created_until))
    for key, value in filter.metadata.items():
        if key == index:
            found = found.beyond(metadata_condition(key, "{}"), value)
        found = found.beyond("strpos(m.message, {}) > 0", contained_value(value))
        known = PostgresFilterQuery(found.text, (*found.parameters, key))
        place, metadata = f"${len(known.parameters)}::text", "m.message::json -> 'metadata'"
        is_plain = f"json_typeof({metadata} -> {place}) NOT IN ('object', 'array')"
        found = known.beyond(f"{is_plain} AND {metadata} ->> {place} = {{}}", value)
    return found


def _add_search(found: PostgresFilterQuery, filter: Filter) -> PostgresFilterQuery:
    """Returns the query with the conditions of the fields that only searches use."""
    if filter.recipient_id is not None:
        start, key = recipient_parts(filter.recipient_id)
        # The condition of the index is literal text with braces, which `beyond` would replace.
        known = PostgresFilterQuery(f"{found.text} AND {HAS_RECIPIENT_ID}", found.parameters)
        found = known.beyond(f"{POSTGRES_RECIPIENT_KEY} = {{}}", key)
        found = found.beyond("starts_with(m.message, {})", start)
    if filter.provider_message_id is not None:
        found = found.beyond(_OF_PROVIDER_MESSAGE, filter.provider_message_id)
    if filter.id_prefix is not None:
        first, last = id_range(filter.id_prefix)
        found = found.beyond("m.id >= {}::text::uuid", first).beyond("m.id <= {}::text::uuid", last)
    return found


_NUMBER_OF_ADDRESS = f"""
SELECT count(*) FROM (
  SELECT 1 FROM homing.messages WHERE left(address, 300) = left($1::text, 300)
  LIMIT {MOST_INDEXED + 1}) AS chosen
"""  # noqa: S608
"""If very many notifications have the address, a scan by id soon finds the newest of them without sorting."""

_NUMBER_ACKNOWLEDGED = f"""
SELECT count(*) FROM (
  SELECT 1 FROM homing.settled WHERE tenant = $1 AND status = 'failed' AND acknowledged_at IS NOT NULL
  LIMIT {_FEW_ROWS + 1}) AS chosen
"""  # noqa: S608

_OF_PROVIDER_MESSAGE = "m.seq IN (SELECT a.seq FROM homing.attempts AS a WHERE a.provider_message_id = {})"

_SEARCHED = ("batch_id", "address", "recipient_id", "provider_message_id", "id_prefix")
"""Fields with an index of their own, from which a query starts whatever the statuses are."""


async def _are_few(
    tx: PostgresTransaction, tenant: str, statuses: frozenset[Status], *, acknowledged: bool
) -> bool:
    """Returns True if reading all rows with these statuses is cheaper than scanning the messages by id.

    A scan by id would read all the successful notifications to find the few others. If `acknowledged`, only
    dead letters that were acknowledged count.
    """
    if acknowledged:
        return bool(await tx.one(_NUMBER_ACKNOWLEDGED, tenant) <= _FEW_ROWS)
    if not statuses or statuses & SUCCESSFUL:
        return False
    [(number, total)] = await tx.rows(_COUNTS, tenant, [status.value for status in statuses])
    return bool(number <= _FEW_ROWS or (number <= _MANY_ROWS and number * _RARE_FACTOR <= total))


def _states_alone(statuses: frozenset[Status], *, acknowledged: bool = False) -> str:
    """Returns a subquery for the tenant's rows with these statuses, by the indexes of the state tables.

    If `acknowledged`, only dead letters that were acknowledged are selected.

    OFFSET 0 makes the planner run the subquery before the join.
    """
    columns = ", ".join(f"l.{name}" for name in ("seq", "status", "acknowledged_at", *_STATE_FIELDS))
    parts = []
    if statuses & WAITING:
        parts.append(
            f"SELECT {columns} FROM homing.queues AS q JOIN homing.live AS l"  # noqa: S608
            " ON l.queue = q.id AND l.due_at IS NOT NULL WHERE q.tenant = $1"
        )
    if Status.SENDING in statuses:
        parts.append(
            f"SELECT {columns} FROM homing.live AS l WHERE l.lease_until IS NOT NULL AND l.tenant = $1"  # noqa: S608
        )
    if statuses - LIVE:
        ended = f"l.tenant = $1 AND l.status IN ({status_literals(statuses - LIVE)})"
        if acknowledged:
            ended += " AND l.acknowledged_at IS NOT NULL"
        parts.append(f"SELECT {columns} FROM homing.settled AS l WHERE {ended}")  # noqa: S608
    return f"({' UNION ALL '.join(parts)} OFFSET 0)"


def _states_joined(filter: Filter, statuses: frozenset[Status]) -> str:
    """Returns the join with the table that holds these statuses, or "" if the filter needs no state."""
    if statuses:
        table = "live" if statuses <= LIVE else "states" if statuses & LIVE else "settled"
    elif filter.acknowledged is not None or any(getattr(filter, name) is not None for name in _STATE_FIELDS):
        table = "states"
    else:
        return ""
    return f" JOIN homing.{table} AS s ON s.seq = m.seq"


_CHOSEN = (11, 26, 51, 101, 201, 301, 501, 1001)
"""Numbers of rows that are chosen for a page."""

_ORDER = {status: number for number, status in enumerate(Status)}

_FOREVER = 2**62

_CAUSES_OF = f"SELECT {', '.join(CAUSE_FIELDS)} FROM homing.causes WHERE seq = $1 ORDER BY change"  # noqa: S608

# Chooses the rows once, so the page and the question whether more follow are about the same rows.
_PAGE = f"""
WITH chosen AS MATERIALIZED ({{chosen}}), sized AS MATERIALIZED (
  SELECT chosen.seq, row_number() OVER so_far AS place, sum(octet_length(m.message)) OVER so_far AS bytes,
    count(*) OVER () AS number
  FROM chosen JOIN homing.messages AS m ON m.seq = chosen.seq
  WINDOW so_far AS (ORDER BY {{order}} ROWS UNBOUNDED PRECEDING))
SELECT {SELECTED}, sized.number, m.message
FROM sized JOIN homing.rows AS r ON r.seq = sized.seq JOIN homing.messages AS m ON m.seq = sized.seq
WHERE sized.place <= ${{limit}}::integer AND (sized.place = 1 OR sized.bytes <= {MAX_PAGE_BYTES})
ORDER BY sized.place
"""  # noqa: S608

# Reads the earliest due rows of each of the tenant's queues by the index that claims use, then merges them.
WAITING_ROWS = """
SELECT due.seq, due.due_at FROM homing.queues AS q
CROSS JOIN LATERAL (
  SELECT l.seq, l.due_at FROM homing.live AS l
  WHERE l.queue = q.id AND l.due_at IS NOT NULL AND l.due_at > $2 AND l.due_at <= $3
  ORDER BY l.due_at, l.seq LIMIT $4) AS due
WHERE q.tenant = $1
ORDER BY due.due_at, due.seq LIMIT $4
"""

_DUE_COUNTS = """
SELECT l.status, count(*) FROM homing.queues AS q
JOIN homing.live AS l ON l.queue = q.id AND l.due_at IS NOT NULL AND l.due_at <= $1
WHERE {whose} GROUP BY l.status
"""

WAITING_GROUPS = """
SELECT lane, provider, reason,
  CASE WHEN $3::bigint IS NULL OR due_at <= $2 THEN NULL ELSE due_at - due_at % $3::bigint END AS slot,
  count(*), count(*) FILTER (WHERE aged_from <= $2), min(aged_from) FILTER (WHERE aged_from <= $2)
FROM (
  SELECT q.lane, w.provider, w.reason, w.due_at, w.aged_from FROM homing.queues AS q
  CROSS JOIN LATERAL (
    SELECT l.provider, l.reason, l.due_at, l.aged_from FROM homing.live AS l
    WHERE l.queue = q.id AND l.due_at IS NOT NULL ORDER BY l.due_at, l.seq LIMIT $4) AS w
  WHERE q.tenant = $1 LIMIT $4) AS chosen
GROUP BY 1, 2, 3, 4 ORDER BY 4 NULLS FIRST, 1, 2, 3
"""

# All that waits. Its groups are few, but the planner expects many and would sort the rows.
_WAITING_STEPS = """
SELECT q.lane, w.provider, w.reason, w.slot, w.number, w.late, w.oldest FROM (
  SELECT l.queue, l.provider, l.reason,
    CASE WHEN l.due_at <= $2 THEN NULL ELSE l.due_at - l.due_at % $3::bigint END AS slot,
    count(*) AS number, count(*) FILTER (WHERE l.aged_from <= $2) AS late,
    min(l.aged_from) FILTER (WHERE l.aged_from <= $2) AS oldest
  FROM {source} AND l.due_at IS NOT NULL GROUP BY 1, 2, 3, 4) AS w
JOIN homing.queues AS q ON q.id = w.queue
"""

_STEPS_BY_QUEUE = _WAITING_STEPS.format(
    source="homing.queues AS own JOIN homing.live AS l ON l.queue = own.id WHERE own.tenant = $1"
)

_STEPS_BY_SCAN = _WAITING_STEPS.format(source="homing.live AS l WHERE l.tenant = $1")

_WITHOUT_SORTS = "SET LOCAL enable_sort = off"

# Takes half as long as an index does for a tenant who has most of the rows, which are read in order.
_BY_SCAN = f"{_WITHOUT_SORTS}; SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off"

_WAITING_TOTALS = f"""
SELECT coalesce(sum(count) FILTER (WHERE tenant = $1), 0), coalesce(sum(count), 0)
FROM homing.all_tallies WHERE status IN ({status_literals(WAITING)})
"""  # noqa: S608

ALL_WAITING_ROWS = WAITING_ROWS.replace("q.tenant = $1", "$1::text IS NULL")

_ERROR_GROUPS = """
WITH dead AS (
  SELECT s.seq, s.reason, s.error_code, s.last_error, s.acknowledged_at, s.status,
    coalesce(s.failed_at, s.last_attempt_at, 0) AS ended_at,
    CASE WHEN coalesce(s.error_code, '') = '' THEN coalesce(s.last_error, '') ELSE '' END AS said
  FROM homing.{table} AS s WHERE s.tenant = $1 AND s.status = '{status}' ORDER BY s.seq DESC LIMIT $4
), groups AS (
  SELECT count(*) AS count,
    count(*) FILTER (WHERE status = 'failed' AND acknowledged_at IS NULL) AS unacknowledged,
    max(ARRAY[ended_at, seq]) AS newest,
    count(*) FILTER (WHERE ended_at > $3::bigint - 3600000) AS last_hour,
    count(*) FILTER (
      WHERE ended_at <= $3::bigint - 3600000 AND ended_at > $3::bigint - 7200000) AS hour_before
  FROM dead GROUP BY coalesce(reason, ''), coalesce(error_code, ''), said
  ORDER BY count(*) DESC, coalesce(reason, ''), coalesce(error_code, ''), said LIMIT $2
)
SELECT n.reason, n.error_code, n.last_error, g.count, g.unacknowledged, g.newest[1] AS newest_at,
  m.id::text AS example_id, g.last_hour, g.hour_before
FROM groups AS g
JOIN homing.{table} AS n ON n.seq = g.newest[2]
JOIN homing.messages AS m ON m.seq = g.newest[2]
ORDER BY g.count DESC, coalesce(n.reason, ''), coalesce(n.error_code, ''), coalesce(n.last_error, '')
"""

ERROR_GROUPS = _ERROR_GROUPS.format(table="settled", status="failed")

ERROR_GROUPS_OF_RETRIES = _ERROR_GROUPS.format(table="live", status="retrying")

RETRYING = """
SELECT l.seq, l.last_attempt_at FROM homing.live AS l
WHERE l.tenant = $1 AND l.status = 'retrying' ORDER BY l.last_attempt_at, l.seq LIMIT $2
"""

_TALLIES = """
SELECT status, attempts, sum(count)::bigint AS count, sum(purged)::bigint AS purged
FROM homing.all_tallies WHERE {whose}
GROUP BY status, attempts HAVING sum(count) <> 0 OR sum(purged) <> 0
"""

_ROLL_UPS = f"""
SELECT hour_at, tenant, channel, provider, {", ".join(SUMS)} FROM homing.all_roll_ups
WHERE hour_at > $1 AND {{whose}} ORDER BY hour_at, tenant, channel, provider
"""  # noqa: S608

_MINUTES = f"""
SELECT minute_at - minute_at % ${{step}} AS step_at, tenant, channel, provider,
  {", ".join(f"sum({name})::bigint" for name in MINUTE_SUMS)}
FROM (
  SELECT minute_at, tenant, channel, provider, {", ".join(MINUTE_SUMS)}
  FROM homing.minute_roll_ups WHERE minute_at > $1 AND {{whose}}
  UNION ALL
  SELECT minute_at, tenant, channel, provider, {", ".join(SUMS)}, attempt_ms, {LATENESS_OF_LEDGER}
  FROM homing.ledger WHERE minute_at > $1 AND {" + ".join(SUMS)} > 0 AND {{whose}}) AS sums
GROUP BY step_at, tenant, channel, provider ORDER BY step_at, tenant, channel, provider
"""  # noqa: S608

LAST_ATTEMPTS = f"""
WITH chosen AS MATERIALIZED (
  SELECT m.seq, m.id FROM homing.messages AS m WHERE m.tenant = $1 ORDER BY m.id DESC LIMIT $3),
numbered AS (
  SELECT chosen.id, a.*,
    row_number() OVER (PARTITION BY a.provider ORDER BY a.started_at DESC, a.seq DESC, a.change DESC) AS place
  FROM chosen CROSS JOIN LATERAL (SELECT * FROM homing.attempts AS a WHERE a.seq = chosen.seq) AS a)
SELECT id::text, {", ".join(ATTEMPT_FIELDS)} FROM numbered WHERE place <= $2
ORDER BY started_at DESC, seq DESC, change DESC
"""  # noqa: S608

_GOALS = """
SELECT hour_at, tenant, mode, sum(met)::bigint, sum(missed)::bigint FROM (
  SELECT hour_at, tenant, mode, met, missed FROM homing.goals WHERE hour_at > $1 AND {whose}
  UNION ALL
  SELECT hour_at, tenant, mode, met, missed FROM homing.ledger
  WHERE met + missed > 0 AND hour_at > $1 AND {whose}) AS sums
GROUP BY hour_at, tenant, mode ORDER BY hour_at, tenant, mode
"""

_UNACKNOWLEDGED = f"""
SELECT count(*), (
    SELECT min(failed_at) FROM homing.settled
    WHERE status = 'failed' AND acknowledged_at IS NULL AND {{whose}})
FROM (
  SELECT 1 FROM homing.settled WHERE status = 'failed' AND acknowledged_at IS NULL AND {{whose}}
  LIMIT {MOST_UNACKNOWLEDGED}) AS chosen
"""  # noqa: S608

OLDEST_RETRY = """
SELECT min(coalesce(first_failed_at, last_attempt_at)) FROM homing.live WHERE status = 'retrying' AND {whose}
"""

SILENT = """
SELECT s.tenant, m.id::text FROM (
  SELECT seq, tenant, updated_at FROM homing.settled
  WHERE status = $1 AND updated_at > $2 AND updated_at <= $3 AND provider = ANY($4::text[])
  ORDER BY updated_at LIMIT $5) AS s
JOIN homing.messages AS m ON m.seq = s.seq ORDER BY s.updated_at, s.seq
"""

_TENANTS = "SELECT tenant FROM homing.tallies UNION SELECT tenant FROM homing.ledger ORDER BY tenant"


async def get(tx: PostgresTransaction, tenant: str, id: str) -> History | None:
    """Returns one notification with its history, or None if it does not exist or has another tenant."""
    found = (await rows_by_id(tx, (id,))).get(id) if is_id(id) else None
    if found is None or found[1].tenant != tenant:
        return None
    seq, row = found
    causes = [
        CauseRecord(kind=kind, name=name, at=at, before=Status(before), after=Status(after), who=who, why=why)
        for kind, name, at, before, after, who, why in await tx.rows(_CAUSES_OF, seq)
    ]
    messages, attempts = await messages_of(tx, (seq,)), await attempts_of(tx, (seq,))
    return views.history(row, messages[seq], attempts[seq], causes)


async def find_missing(tx: PostgresTransaction, ids: Collection[str]) -> frozenset[str]:
    """Returns those of the ids under which no notification is stored."""
    return frozenset(ids) - await find_stored_ids(tx, ids)


async def list_page(
    tx: PostgresTransaction,
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
    index = None if scan is None else await find_metadata_index(tx, tenant, filter)
    if scan is not None and index is None:
        compared = PostgresFilterQuery("FROM homing.messages AS m WHERE m.tenant = $1", (tenant,))
        compared = _beyond_id(compared, beyond, cursor).limited(f"m.id {order}", scan)
        last = await tx.one(
            f"SELECT id::text FROM (SELECT m.id {compared.text}) AS m OFFSET {scan - 1}",  # noqa: S608
            *compared.parameters,
        )
    found = await build_filter_query(tx, tenant, filter, filter.statuses, by_id=last is not None, index=index)
    found = _beyond_id(found, beyond, cursor)
    if last is not None:
        until = "<=" if oldest_first else ">="
        found = found.beyond(f"m.id {until} {{}}::text::uuid", last)
    found = found.limited(f"m.id {order}", _rows_to_choose(limit))
    page = await _page(
        tx, f"SELECT m.seq, m.id {found.text}", f"chosen.id {order}", *found.parameters, limit=limit
    )
    return end_scan(page, last)


def _rows_to_choose(limit: int) -> int:
    """Returns a number of rows that shows whether more follow than fit on a page.

    It is rounded up, because each number is another statement to prepare.
    """
    return next((number for number in _CHOSEN if number > limit), limit + 1)


def _beyond_id(found: PostgresFilterQuery, beyond: str, cursor: str | None) -> PostgresFilterQuery:
    """Returns the query for what comes after the cursor. None means from the beginning."""
    if cursor is None:
        return found
    place = "m.id {} {{}}::text::uuid" if is_id(cursor) else 'm.id::text COLLATE "C" {} {{}}'
    return found.beyond(place.format(beyond), cursor)


async def waiting(tx: PostgresTransaction, tenant: str | None, limit: int, ready: bool | None) -> Page:
    """Returns waiting notifications of one tenant, or of all if it is None, the earliest due first.

    `ready` selects those due now (True), those due later (False) or both (None).
    """
    first = tx.now if ready is False else -1
    last = tx.now if ready is True else _FOREVER
    sql = ALL_WAITING_ROWS if tenant is None else WAITING_ROWS
    page = await _page(tx, sql, "chosen.due_at, m.id", tenant, first, last, limit, limit=limit)
    return Page(items=page.items)


async def count_due(tx: PostgresTransaction, tenant: str | None) -> dict[Status, int]:
    """Returns the number of due notifications of one tenant, or of all if it is None, by status."""
    whose, parameters = _tenant_condition(tenant, 2)
    found = await tx.rows(
        _DUE_COUNTS.format(whose=f"q.{whose}" if parameters else whose), tx.now, *parameters
    )
    return {Status(status): number for status, number in found}


async def waiting_groups(
    tx: PostgresTransaction, tenant: str, step_ms: int | None, limit: int
) -> WaitingGroups:
    """Returns what waits, in groups. Counts at most `limit` notifications."""
    if step_ms is not None:
        [(own, total)] = await tx.rows(_WAITING_TOTALS, tenant)
        if own <= limit:
            scans = 2 * own > total
            await tx.run(_BY_SCAN if scans else _WITHOUT_SORTS)
            steps = await tx.rows(_STEPS_BY_SCAN if scans else _STEPS_BY_QUEUE, tenant, tx.now, step_ms)
            return build_waiting_groups(merge_steps(WaitingRow(*columns) for columns in steps), limit)
    found = await tx.rows(WAITING_GROUPS, tenant, tx.now, step_ms, limit + 1)
    return build_waiting_groups([WaitingRow(*columns) for columns in found], limit)


async def retrying(tx: PostgresTransaction, tenant: str, limit: int) -> Page:
    """Returns notifications that wait for a retry, that with the oldest last attempt first."""
    page = await _page(tx, RETRYING, "chosen.last_attempt_at, m.id", tenant, limit, limit=limit)
    return Page(items=page.items)


async def tallies(tx: PostgresTransaction, tenant: str | None) -> tuple[Tally, ...]:
    """Returns the number of notifications per status and number of attempts, in life-cycle order."""
    whose, parameters = _tenant_condition(tenant, 1)
    found = [
        Tally(Status(status), attempts, count, purged)
        for status, attempts, count, purged in await tx.rows(_TALLIES.format(whose=whose), *parameters)
    ]
    return tuple(sorted(found, key=lambda tally: (_ORDER[tally.status], tally.attempts)))


async def error_groups(
    tx: PostgresTransaction, tenant: str, limit: int, status: Status, newest: int | None = None
) -> tuple[ErrorGroup, ...]:
    """Returns the dead letters, or what waits for a retry, grouped by error, the largest group first."""
    text = ERROR_GROUPS if status is Status.FAILED else ERROR_GROUPS_OF_RETRIES
    found = await tx.rows(text, tenant, limit, tx.now, newest)
    return tuple(
        ErrorGroup(
            reason=None if reason is None else Reason(reason),
            error_code=code,
            last_error=text,
            count=count,
            unacknowledged=unacknowledged,
            newest_at=views.optional_moment(newest_at),
            example_id=example_id,
            last_hour=last_hour,
            hour_before=hour_before,
        )
        for reason, code, text, count, unacknowledged, newest_at, example_id, last_hour, hour_before in found
    )


async def roll_ups(tx: PostgresTransaction, tenant: str | None, since_ms: int) -> tuple[RollUp, ...]:
    """Returns the sums of the hours that overlap the last `since_ms` milliseconds, the oldest first."""
    whose, parameters = _tenant_condition(tenant, 2)
    found = await tx.rows(_ROLL_UPS.format(whose=whose), tx.now - since_ms - HOUR_MS, *parameters)
    return tuple(
        RollUp(
            hour_at=views.optional_moment(hour_at),
            tenant=whose_hour,
            channel=Channel(channel),
            provider=provider,
            **dict(zip(SUMS, sums, strict=True)),
        )
        for hour_at, whose_hour, channel, provider, *sums in found
    )


async def minute_roll_ups(
    tx: PostgresTransaction, tenant: str | None, since_ms: int, step_ms: int
) -> tuple[MinuteRollUp, ...]:
    """Returns the sums of the steps that overlap the last `since_ms` milliseconds, the oldest first."""
    whose, parameters = _tenant_condition(tenant, 3)
    first = first_minute(tx.now, since_ms, step_ms)
    found = await tx.rows(_MINUTES.format(whose=whose, step=2), first, step_ms, *parameters)
    return tuple(build_minute_roll_up(*columns) for columns in found)


async def last_attempts(
    tx: PostgresTransaction, tenant: str, per_provider: int, scan: int
) -> tuple[tuple[str, AttemptRecord], ...]:
    """Returns the last attempts of each provider, with the ids of their notifications."""
    found = await tx.rows(LAST_ATTEMPTS, tenant, per_provider, scan)
    return tuple((id, msgspec.convert(fields, StoredAttempt)) for id, *fields in found)


async def goal_roll_ups(tx: PostgresTransaction, tenant: str | None, since_ms: int) -> tuple[GoalRollUp, ...]:
    """Returns the punctuality of the hours that overlap the last `since_ms` milliseconds, oldest first."""
    whose, parameters = _tenant_condition(tenant, 2)
    found = await tx.rows(_GOALS.format(whose=whose), tx.now - since_ms - HOUR_MS, *parameters)
    return tuple(
        GoalRollUp(
            hour_at=views.optional_moment(hour_at), tenant=tenant, mode=Mode(mode), met=met, missed=missed
        )
        for hour_at, tenant, mode, met, missed in found
    )


async def unacknowledged(tx: PostgresTransaction, tenant: str | None) -> Unacknowledged:
    """Returns the number of unacknowledged dead letters, and the time of the oldest."""
    whose, parameters = _tenant_condition(tenant, 1)
    [(number, oldest)] = await tx.rows(_UNACKNOWLEDGED.format(whose=whose), *parameters)
    return Unacknowledged(count=number, oldest_at=views.optional_moment(oldest))


async def oldest_retry_at(tx: PostgresTransaction, tenant: str | None) -> datetime | None:
    """Returns the time of the oldest first failure of a retrying notification, or None if there is none."""
    whose, parameters = _tenant_condition(tenant, 1)
    at: int | None = await tx.one(OLDEST_RETRY.format(whose=whose), *parameters)
    return views.optional_moment(at)


async def silent(
    tx: PostgresTransaction, status: Status, providers: Collection[str], after: int, until: int, limit: int
) -> tuple[tuple[str, str], ...]:
    """Returns (tenant, id) of notifications with this status that last changed between `after` and `until`.

    Only notifications of these providers are returned, those unchanged for the longest time first.
    """
    found = await tx.rows(SILENT, status.value, after, until, list(providers), max(0, limit))
    return tuple((tenant, id) for tenant, id in found)


async def tenants(tx: PostgresTransaction) -> tuple[str, ...]:
    """Returns all tenants that have or had notifications."""
    return tuple(tenant for (tenant,) in await tx.rows(_TENANTS))


def _tenant_condition(tenant: str | None, number: int) -> tuple[str, tuple[str, ...]]:
    """Returns the SQL condition for one tenant, or for all if None, and its parameters."""
    return ("true", ()) if tenant is None else (f"tenant = ${number}", (tenant,))


async def _page(tx: PostgresTransaction, chosen: str, order: str, *parameters: Column, limit: int) -> Page:
    """Returns the selected notifications, as many as the limit and the maximum size of a page allow."""
    text = _PAGE.format(chosen=chosen, order=order, limit=len(parameters) + 1)
    records = await tx.rows(text, *parameters, limit)
    items = tuple(
        views.notification(row, decode_message(record[-1]))
        for (_, row), record in zip(rows_from(records), records, strict=True)
    )
    number = records[0][-2] if records else 0
    return Page(items=items, cursor=items[-1].id if len(items) < number else None)
