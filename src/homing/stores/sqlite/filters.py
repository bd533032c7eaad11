"""A Filter as SQL conditions. The texts are few, so SQLite finds its prepared statements again."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from homing.core.model import Filter, Status
from homing.stores.codec import Column, plain

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EQUAL = ("channel", "type", "provider", "batch_id", "address", "reason", "error_code")


def where(tenant: str, filter: Filter, statuses: Collection[Status]) -> tuple[str, list[Column]]:
    """Conditions on `n`, and their parameters. `created_until` itself is outside."""
    conditions, parameters = ["n.tenant = ?"], [plain(tenant)]
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
        parameters.append(_first_ms(filter.created_from))
    if filter.created_until is not None:
        conditions.append("n.created_at < ?")
        parameters.append(_first_ms(filter.created_until))
    return " AND ".join(conditions), parameters


def _first_ms(at: datetime) -> int:
    """The first whole millisecond that is not before."""
    return -((_EPOCH - at) // timedelta(milliseconds=1))
