"""A Filter as SQL. What only `messages` knows is asked there; of the states, only the part that can match."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from homing.core.model import Filter, Status
from homing.core.states import LIVE
from homing.stores.codec import Column, first_ms, plain

_OF_MESSAGE = ("channel", "type", "batch_id", "address")
_OF_STATE = ("provider", "reason", "error_code")


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


def query(tenant: str, filter: Filter, statuses: Collection[Status]) -> Query:
    """What the filter finds among these statuses (none: all). `created_until` itself is outside.

    Statuses are written out: only so does PostgreSQL see that an index of the rare ones covers them.
    """
    found = Query(f"FROM homing.messages AS m{_states(filter, statuses)} WHERE m.tenant = $1", (tenant,))
    if statuses:
        named = ", ".join(f"'{status.value}'" for status in statuses)
        # The tenant once more, because the index of rare statuses starts with it.
        found = Query(f"{found.text} AND s.tenant = $1 AND s.status IN ({named})", found.parameters)
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


def _states(filter: Filter, statuses: Collection[Status]) -> str:
    """The join with the table that holds these statuses; none where nothing asks for a state."""
    if statuses:
        alive = [status in LIVE for status in statuses]
        table = "live" if all(alive) else "states" if any(alive) else "settled"
    elif filter.acknowledged is not None or any(getattr(filter, name) is not None for name in _OF_STATE):
        table = "states"
    else:
        return ""
    return f" JOIN homing.{table} AS s ON s.seq = m.seq"
