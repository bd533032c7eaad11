"""Translates a `Filter` into SQL that uses the most selective index.

There are few different statement texts, so the prepared statements stay in SQLite's cache.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from homing.core.model import Filter, Status
from homing.stores.codec import Column, first_ms, plain
from homing.stores.sqlite.statements import Tx

_EQUAL = ("channel", "type", "provider", "batch_id", "address", "reason", "error_code")

RARE = "n.status <> 'pending' AND n.status <> 'sending' AND n.status <> 'sent' AND n.status <> 'delivered'"
"""Condition of the index `homing_rare`. SQLite uses the index only if a query repeats this text exactly."""
_COMMON = frozenset({Status.PENDING, Status.SENDING, Status.SENT, Status.DELIVERED})
_SUCCESSFUL = frozenset({Status.SENT, Status.DELIVERED})
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
_MOST_ARE_SUCCESSFUL = """
SELECT coalesce(sum(count) FILTER (WHERE status IN ('sent', 'delivered')) > 0.75 * sum(count), 0)
FROM homing_tallies WHERE tenant = ?
"""


class Query(Struct, frozen=True):
    """The FROM and WHERE clauses of a SELECT over notifications `n`, and their parameters."""

    text: str
    parameters: tuple[Column, ...]

    def beyond(self, condition: str, value: Column) -> Query:
        """Returns the query with one more condition."""
        return Query(f"{self.text} AND {condition}", (*self.parameters, value))


def query(tx: Tx, tenant: str, filter: Filter, statuses: Collection[Status]) -> Query:
    """Builds the query for a filter, restricted to these statuses. No statuses means all.

    `created_until` is exclusive.
    """
    conditions, parameters = ["n.tenant = ?1"], [plain(tenant)]
    source = _source(tx, tenant, filter, frozenset(statuses))
    if source.endswith("homing_rare"):
        conditions.append(RARE)
    if statuses:
        conditions.append(f"n.status IN ({', '.join('?' * len(statuses))})")
        parameters += [status.value for status in statuses]
    for name in _EQUAL:
        value = getattr(filter, name)
        if value is not None:
            conditions.append(f"n.{name} = ?")
            parameters.append(plain(value))
    if filter.acknowledged is not None:
        conditions.append(f"n.acknowledged_at IS {'NOT ' if filter.acknowledged else ''}NULL")
    if filter.created_from is not None:
        conditions.append("n.created_at >= ?")
        parameters.append(first_ms(filter.created_from))
    if filter.created_until is not None:
        conditions.append("n.created_at < ?")
        parameters.append(first_ms(filter.created_until))
    return Query(f"FROM {source} WHERE {' AND '.join(conditions)}", tuple(parameters))


def _source(tx: Tx, tenant: str, filter: Filter, statuses: frozenset[Status]) -> str:
    indexed = "homing_notifications AS n INDEXED BY "
    if filter.batch_id is not None:
        return indexed + "homing_batch"
    if statuses and not statuses & _COMMON:
        return indexed + "homing_rare"
    # A scan by id would read all the successful notifications to find the few others.
    if statuses and not statuses & _SUCCESSFUL and tx.one(_MOST_ARE_SUCCESSFUL, tenant):
        return _ALL_BUT_SUCCESSFUL
    return indexed + "homing_tenant"
