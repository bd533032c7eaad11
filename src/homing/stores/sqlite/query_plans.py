"""The hot statements by name, for tests and benchmarks that inspect their query plans."""

from __future__ import annotations

from homing.stores.sqlite import accept, change_recorder, claim, leases, rows, settle


def hot_statements() -> dict[str, str]:
    """Returns the statements that run for each batch of accept, claim, reclaim and settle."""
    return {
        "accept: last seq, repeated ids": accept.LAST_SEQ_AND_KNOWN_IDS,
        "accept: known keys": accept.KNOWN_REQUESTS,
        "claim: due queues": claim.DUE_QUEUES,
        "claim: due rows of a queue": claim.DUE_ROWS,
        "claim: rows and messages": leases.WAITING_ROWS,
        "claim: lease": leases.UPDATE_LEASED.alike,
        "claim: update the queues": claim.UPDATE_FETCHED_QUEUES.text,
        "claim: next due": claim.NEXT_DUE_AT,
        "reclaim: expired rows": leases.EXPIRED_SEQS,
        "reclaim: rows and messages": leases.EXPIRED_ROWS,
        "settle: rows by id": rows.LEASED_BY_ID,
        "settle: rows": settle.UPDATE_SETTLED.each.text,
        "settle: rows with equal values": settle.UPDATE_SETTLED.alike,
        "queues that rows have left": change_recorder.UPDATE_LEFT_QUEUES.text,
        "sums: rows of another minute": change_recorder.STALE_MINUTES,
        "sums: keep a minute": change_recorder.KEEP_MINUTES,
        "sums: begin a minute": change_recorder.BEGIN_MINUTES,
    }
