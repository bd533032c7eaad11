"""Translates a `Filter` into SQL that starts from the messages or the states, whichever reads fewer rows."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from homing.core.model import Filter, Status
from homing.core.states import LIVE, WAITING
from homing.stores.codec import Column, first_ms, plain
from homing.stores.postgres.statements import Tx

_MESSAGE_FIELDS = ("channel", "type", "batch_id", "address")
_STATE_FIELDS = ("provider", "reason", "error_code")
_SUCCESSFUL = frozenset({Status.SENT, Status.DELIVERED})
_FEW_ROWS = 20_000
"""Up to this many rows with the wanted statuses, the query starts from the states."""
_RARE_FACTOR = 20
"""The query also starts from the states if at most one row in this many has one of the wanted statuses."""
_COUNTS = """
SELECT coalesce(sum(count) FILTER (WHERE status = ANY($2::text[])), 0), coalesce(sum(count), 0)
FROM homing.all_tallies WHERE tenant = $1
"""


class Query(Struct, frozen=True):
    """The FROM and WHERE clauses of a SELECT over messages `m`, and their parameters."""

    text: str
    parameters: tuple[Column, ...]

    def beyond(self, condition: str, value: Column) -> Query:
        """Returns the query with one more condition, in which `{}` stands for the value."""
        place = f"${len(self.parameters) + 1}"
        return Query(f"{self.text} AND {condition.format(place)}", (*self.parameters, value))

    def limited(self, order: str, limit: int) -> Query:
        """Returns the query for the first `limit` rows in this order."""
        place = f"${len(self.parameters) + 1}"
        return Query(f"{self.text} ORDER BY {order} LIMIT {place}", (*self.parameters, limit))


async def query(tx: Tx, tenant: str, filter: Filter, statuses: Collection[Status]) -> Query:
    """Builds the query for a filter, restricted to these statuses. No statuses means all.

    `created_until` is exclusive. The statuses are literals, not parameters, because otherwise PostgreSQL
    cannot use a partial index for them.
    """
    wanted = frozenset(statuses)
    if filter.batch_id is None and await _are_few(tx, tenant, wanted):
        text = f"FROM {_states_alone(wanted)} AS s JOIN homing.messages AS m ON m.seq = s.seq"
    else:
        text = f"FROM homing.messages AS m{_states_joined(filter, wanted)}"
    found = Query(f"{text} WHERE m.tenant = $1", (tenant,))
    if wanted:
        found = Query(f"{found.text} AND s.status IN ({_literals(wanted)})", found.parameters)
    for alias, names in (("m", _MESSAGE_FIELDS), ("s", _STATE_FIELDS)):
        for name in names:
            value = getattr(filter, name)
            if value is not None:
                found = found.beyond(f"{alias}.{name} = {{}}", plain(value))
    if filter.acknowledged is not None:
        is_set = "NOT NULL" if filter.acknowledged else "NULL"
        found = Query(f"{found.text} AND s.acknowledged_at IS {is_set}", found.parameters)
    if filter.created_from is not None:
        found = found.beyond("m.created_at >= {}", first_ms(filter.created_from))
    if filter.created_until is not None:
        found = found.beyond("m.created_at < {}", first_ms(filter.created_until))
    return found


async def _are_few(tx: Tx, tenant: str, statuses: frozenset[Status]) -> bool:
    """Returns True if reading all rows with these statuses is cheaper than scanning the messages by id.

    A scan by id would read all the successful notifications to find the few others.
    """
    if not statuses or statuses & _SUCCESSFUL:
        return False
    [(number, total)] = await tx.rows(_COUNTS, tenant, [status.value for status in statuses])
    return bool(number <= _FEW_ROWS or number * _RARE_FACTOR <= total)


def _states_alone(statuses: frozenset[Status]) -> str:
    """Returns a subquery for the tenant's rows with these statuses, by the indexes of the state tables.

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
        ended = f"l.tenant = $1 AND l.status IN ({_literals(statuses - LIVE)})"
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


def _literals(statuses: frozenset[Status]) -> str:
    return ", ".join(f"'{status.value}'" for status in sorted(statuses))
