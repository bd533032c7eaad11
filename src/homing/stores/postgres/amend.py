"""Applies the commands of operators and callers to notifications, selected by ids or by a filter."""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.lifecycle.commands import AmendResult, Command, CommandName
from homing.core.lifecycle.row_commands import apply_command as commanded
from homing.core.lifecycle.row_commands import resent_row
from homing.core.lifecycle.states import COMMANDS
from homing.core.notifications import Filter
from homing.stores.common.command_targets import CommandTargets, allows_command, sort_command_targets
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.postgres.change_recorder import PostgresChangeRecorder
from homing.stores.postgres.new_rows import INSERT_MESSAGES, messages_of, number_rows, states_of
from homing.stores.postgres.reads import build_filter_query
from homing.stores.postgres.rows import rows_by_id, rows_by_seq, write_rows
from homing.stores.postgres.statements import PostgresTransaction, run_in_one_round_trip

_PAGE_ROWS = 1000

_MESSAGES = "SELECT seq, message FROM homing.messages WHERE seq = ANY($1::bigint[])"


async def amend(
    tx: PostgresTransaction, tenant: str, target: Sequence[str] | Filter, command: Command, limit: int
) -> AmendResult:
    """Applies the command to the notifications that allow it.

    If the target is a sequence of ids, the result also lists those that are missing or do not allow it.
    """
    if isinstance(target, Filter):
        asked = CommandTargets(await _find_matching(tx, tenant, target, command, limit))
    else:
        asked = sort_command_targets(target, await rows_by_id(tx, target, lock=True), tenant, command)
    asked.check_new_ids(command)
    if asked.possible:
        await _apply(tx, asked.possible, command)
    return asked.answer(command)


async def _apply(tx: PostgresTransaction, possible: Sequence[SeqAndRow], command: Command) -> None:
    """Applies the command to these rows and writes them."""
    recorder = PostgresChangeRecorder(tx)
    for seq, row in possible:
        change = commanded(row, command, tx.now)
        assert change is not None, "the row does not allow this command"
        recorder.record(seq, change)
    await write_rows(tx, dict(possible))
    if command.name is CommandName.RESEND:
        await _resend(tx, possible, command, recorder)
    await recorder.write()


async def _resend(
    tx: PostgresTransaction,
    originals: Sequence[SeqAndRow],
    command: Command,
    recorder: PostgresChangeRecorder,
) -> None:
    """Creates new notifications with the messages of the originals."""
    found = await tx.rows(_MESSAGES, [seq for seq, _ in originals])
    messages = {int(seq): str(message) for seq, message in found}
    changes = [resent_row(row, command, tx.now) for _, row in originals]
    texts = [messages[seq] for seq, _ in originals]
    rows = await number_rows(tx, list(zip(changes, texts, strict=True)))
    await run_in_one_round_trip(tx, [(INSERT_MESSAGES, messages_of(rows)), *await states_of(tx, rows)])
    for seq, change, _ in rows:
        recorder.record(seq, change)


async def _find_matching(
    tx: PostgresTransaction, tenant: str, filter: Filter, command: Command, limit: int
) -> list[SeqAndRow]:
    """Locks and returns the oldest rows that match the filter and allow the command, at most `limit`."""
    statuses = [s for s in COMMANDS[command.name] if not filter.statuses or s in filter.statuses]
    possible: list[SeqAndRow] = []
    if not statuses:
        return possible
    matching = await build_filter_query(tx, tenant, filter, statuses)
    page = matching
    while len(possible) < limit:
        size = min(_PAGE_ROWS, limit - len(possible))
        chosen = page.limited("m.id", size)
        found = await tx.rows(f"SELECT m.seq, m.id::text {chosen.text}", *chosen.parameters)
        # Another transaction may have changed some rows before they were locked.
        rows = await rows_by_seq(tx, [seq for seq, _ in found], lock=True)
        for seq, _ in found:
            row = rows.get(seq)
            if row is not None and row.status in statuses and allows_command(row, command):
                possible.append((seq, row))
        if len(found) < size:
            break
        page = matching.beyond("m.id > {}::text::uuid", found[-1][1])
    return possible
