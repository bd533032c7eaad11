"""The hot statements by name, for tests and benchmarks that inspect their query plans."""

from __future__ import annotations

from homing.stores.postgres import change_recorder, claim, leases, new_rows, rows, settle, upkeep


def hot_statements() -> dict[str, str]:
    """Returns the statements that run for each batch of accept, claim, reclaim and settle."""
    return {
        "accept: messages": new_rows.INSERT_MESSAGES.text,
        "accept: messages that may exist": new_rows.INSERT_UNKNOWN_MESSAGES.text,
        "accept: states": new_rows.INSERT_STATES["live"].text,
        "claim: sweep": claim.SWEEP,
        "claim: sweep with rows": claim.SWEEP_AND_TAKE,
        "claim: first due times": claim.FIRST_DUE,
        "claim: due rows": claim.DUE_ROWS,
        "claim: lease": leases.LEASE.text,
        "claim: turns": claim.TURNS,
        "reclaim: expired leases and deadlines": leases.EXPIRED_ROWS,
        "settle: rows by id": rows.LEASED,
        "settle: rows that keep waiting": settle.UPDATE_WAITING.text,
        "settle: rows that end": settle.MOVE_TO_SETTLED.text,
        "settle: attempts": change_recorder.WRITE_ATTEMPTS.text,
        "settle: early receipts": settle.HAS_EARLY_RECEIPTS,
        "upkeep: rows without a queue": upkeep.WITHOUT_QUEUE,
        "ledger": change_recorder.WRITE_LEDGER.text,
    }
