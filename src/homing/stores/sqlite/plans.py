"""The hot statements by name, for tests and benchmarks that inspect their query plans."""

from __future__ import annotations

from homing.stores.sqlite import accept, changes, leases, rows, settle


def hot_statements() -> dict[str, str]:
    """Returns the statements that run for each batch of accept, claim, reclaim and settle."""
    return {
        "accept: last seq, repeated ids": accept.BEFORE,
        "accept: known keys": accept.KNOWN_REQUESTS,
        "claim: due queues": leases.DUE_QUEUES,
        "claim: due rows of a queue": leases.DUE_ROWS,
        "claim: rows and messages": leases.WAITING_ROWS,
        "claim: lease": leases.LEASED.alike,
        "claim: queues after it": leases.LOOKED_AT.text,
        "claim: next due": leases.NEXT_DUE_AT,
        "reclaim: what has passed": leases.PASSED,
        "reclaim: rows and messages": leases.PASSED_ROWS,
        "settle: rows by id": rows.LEASED_BY_ID,
        "settle: rows": settle.SETTLED.each.text,
        "settle: rows that end alike": settle.SETTLED.alike,
        "queues that rows have left": changes.LEFT.text,
    }
