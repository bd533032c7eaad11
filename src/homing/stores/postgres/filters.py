"""A Filter as SQL, by the way that leads to the fewest rows: from the messages, or from the states."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from homing.core.model import Filter, Status
from homing.core.states import LIVE, WAITING
from homing.stores.codec import Column, first_ms, plain
from homing.stores.postgres.statements import Tx

_OF_MESSAGE = ("channel", "type", "batch_id", "address")
_OF_STATE = ("provider", "reason", "error_code")
_GOOD_ENDS = frozenset({Status.SENT, Status.DELIVERED})
_FEW = 20_000
_RARE = 20
"""One of so many, or fewer."""
_HOW_MANY = """
SELECT coalesce(sum(count) FILTER (WHERE status = ANY($2::text[])), 0), coalesce(sum(count), 0)
FROM homing.all_tallies WHERE tenant = $1
"""


class Query(Struct, frozen=True):
    """FROM and WHERE of a SELECT over messages `m`, and its parameters."""

    text: str
    parameters: tuple[Column, ...]

    def beyond(self, condition: str, value: Column) -> Query:
        """With one more condition; `{}` in it stands for the value."""
        place = f"${len(self.parameters) + 1}"
        return Query(f"{self.text} AND {condition.format(place)}", (*self.parameters, value))

    def limited(self, order: str, limit: int) -> Query:
        """The first so many in this order."""
        place = f"${len(self.parameters) + 1}"
        return Query(f"{self.text} ORDER BY {order} LIMIT {place}", (*self.parameters, limit))


async def query(tx: Tx, tenant: str, filter: Filter, statuses: Collection[Status]) -> Query:
    """What the filter finds among these statuses (none: all). `created_until` itself is outside.

    Statuses are written out: only so does PostgreSQL see that an index of the rare ones covers them.
    """
    wanted = frozenset(statuses)
    if filter.batch_id is None and await _are_few(tx, tenant, wanted):
        text = f"FROM {_states_alone(wanted)} AS s JOIN homing.messages AS m ON m.seq = s.seq"
    else:
        text = f"FROM homing.messages AS m{_states_joined(filter, wanted)}"
    found = Query(f"{text} WHERE m.tenant = $1", (tenant,))
    if wanted:
        found = Query(f"{found.text} AND s.status IN ({_named(wanted)})", found.parameters)
    for alias, names in (("m", _OF_MESSAGE), ("s", _OF_STATE)):
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
    """Whether it is cheaper to look at all rows of these statuses than at the messages in their order.

    In the order of ids, those that went well would all be passed over to find the few others.
    """
    if not statuses or statuses & _GOOD_ENDS:
        return False
    [(number, total)] = await tx.rows(_HOW_MANY, tenant, [status.value for status in statuses])
    return bool(number <= _FEW or number * _RARE <= total)


def _states_alone(statuses: frozenset[Status]) -> str:
    """The tenant's rows of these statuses by their own indexes. OFFSET 0: found first, joined afterwards."""
    columns = ", ".join(f"l.{name}" for name in ("seq", "status", "acknowledged_at", *_OF_STATE))
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
        ended = f"l.tenant = $1 AND l.status IN ({_named(statuses - LIVE)})"
        parts.append(f"SELECT {columns} FROM homing.settled AS l WHERE {ended}")  # noqa: S608
    return f"({' UNION ALL '.join(parts)} OFFSET 0)"


def _states_joined(filter: Filter, statuses: frozenset[Status]) -> str:
    """The join with the table that holds these statuses; none where nothing asks for a state."""
    if statuses:
        table = "live" if statuses <= LIVE else "states" if statuses & LIVE else "settled"
    elif filter.acknowledged is not None or any(getattr(filter, name) is not None for name in _OF_STATE):
        table = "states"
    else:
        return ""
    return f" JOIN homing.{table} AS s ON s.seq = m.seq"


def _named(statuses: frozenset[Status]) -> str:
    return ", ".join(f"'{status.value}'" for status in sorted(statuses))
