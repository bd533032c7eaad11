"""The hot statements by name, for tests and benchmarks that inspect their query plans."""

from __future__ import annotations

from homing.stores.postgres import changes, claim, leases, new_rows, rows, settle


def hot_statements() -> dict[str, str]:
    """Returns the statements that run for each batch of accept, claim, reclaim and settle."""
    return {
        "accept: messages": new_rows.MESSAGES.text,
        "accept: messages that may be there": new_rows.MESSAGES_ONCE.text,
        "accept: states": new_rows.STATES["live"].text,
        "claim: sweep": claim.SWEEP,
        "claim: sweep and take": claim.SWEEP_AND_TAKE,
        "claim: look": claim.LOOK,
        "claim: due rows": claim.DUE_ROWS,
        "claim: lease": leases.LEASE.text,
        "claim: turns": claim.TURNS,
        "reclaim: what has passed": leases.PASSED,
        "settle: rows by id": rows.LEASED,
        "settle: what waits on": settle.WAITS_ON.text,
        "settle: what ends": settle.ENDS.text,
        "settle: attempts": changes.WRITE_ATTEMPTS.text,
        "settle: early receipts": settle.EARLY,
        "ledger": changes.WRITE_LEDGER.text,
    }
