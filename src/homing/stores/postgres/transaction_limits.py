"""How long a transaction of a process that was suspended, or whose machine is gone, may hold its locks.

A worker that is suspended inside a transaction still holds the locks of that transaction, and its lease does
not help: only the server can end the transaction. So every connection asks the server to do so, well within a
lease. Each state in which a suspended process can leave its session has a setting of its own:

- the server waits for the next statement: `idle_in_transaction_session_timeout`;
- the server cannot send the rest of a large result, which the other settings do not end:
  `tcp_user_timeout` (ignored on a Unix-domain socket);
- a statement waits for the lock of another transaction: `lock_timeout`, longer than the first two, so that a
  call that waits for a suspended process succeeds as soon as the server has ended that process's session;
- the server waits for the rest of a statement: no setting before PostgreSQL 17, so the workers' upkeep ends
  such sessions (`upkeep.end_silent_sessions`);
- anything else, for example statements that arrive very slowly: `transaction_timeout`, from PostgreSQL 17 on.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from homing.core.retry.policy import DEFAULT_LEASE_MS

_SHORTEST_SILENCE_MS, _LONGEST_SILENCE_MS = 1_000, 5_000
"""Bounds of `silence_ms`.

A process that is only slow, for example because its event loop was blocked, must not lose its transactions.
"""

_SILENCES_PER_LEASE = 8

_SHORTEST_TOTAL_MS = 10_000

_FIRST_WITH_TRANSACTION_TIMEOUT = 17
"""The first major version of PostgreSQL that has `transaction_timeout`."""


class TransactionLimits(Struct, frozen=True, kw_only=True):
    """The limits of every transaction of one process, in milliseconds."""

    silence_ms: int
    """How long the process may neither send a statement nor read a result while a transaction is open."""
    lock_ms: int
    """How long a statement waits for one lock. Longer than `silence_ms`."""
    total_ms: int
    """How long a transaction that may write takes at most. 0 if that is not limited."""

    @classmethod
    def within_lease(cls, lease_ms: int) -> TransactionLimits:
        """Returns the limits for workers with leases of this length."""
        silence_ms = min(_LONGEST_SILENCE_MS, max(_SHORTEST_SILENCE_MS, lease_ms // _SILENCES_PER_LEASE))
        return cls(
            silence_ms=silence_ms, lock_ms=2 * silence_ms, total_ms=max(_SHORTEST_TOTAL_MS, 4 * silence_ms)
        )

    def settings(self, server_major: int) -> Mapping[str, str]:
        """Returns the settings of a connection to a server of this major version, in milliseconds."""
        found = {
            "idle_in_transaction_session_timeout": str(self.silence_ms),
            "tcp_user_timeout": str(self.silence_ms),
            "lock_timeout": str(self.lock_ms),
        }
        if server_major >= _FIRST_WITH_TRANSACTION_TIMEOUT:
            found["transaction_timeout"] = str(self.total_ms)
        return found


DEFAULT_LIMITS = TransactionLimits.within_lease(DEFAULT_LEASE_MS)
