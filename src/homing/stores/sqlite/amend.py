"""Applies the commands of operators and callers to notifications, selected by ids or by a filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from homing.core.lifecycle.commands import AmendResult, Command, CommandName
from homing.core.lifecycle.row_commands import apply_command as commanded
from homing.core.lifecycle.row_commands import resent_row
from homing.core.lifecycle.states import COMMANDS
from homing.core.notifications import Filter
from homing.stores.common.codec import Column, decode_rows
from homing.stores.common.command_targets import CommandTargets, allows_command, sort_command_targets
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.sqlite.accept import NEW_ROWS
from homing.stores.sqlite.change_recorder import SqliteChangeRecorder, queue_of
from homing.stores.sqlite.columns import mutable_columns, own_columns, shared_columns
from homing.stores.sqlite.reads import build_filter_query
from homing.stores.sqlite.receipts import UPDATE_MUTABLE
from homing.stores.sqlite.rows import rows_by_id
from homing.stores.sqlite.statements import MultiRowStatement, SqliteTransaction, json_row

_COPY_MESSAGES = MultiRowStatement(
    "INSERT INTO homing_messages (seq, message) SELECT c.column1, m.message FROM (VALUES ",
    2,
    ") AS c CROSS JOIN homing_messages AS m ON m.seq = c.column2",
)

_PAGE_ROWS = 1000


def amend(
    tx: SqliteTransaction, tenant: str, target: Sequence[str] | Filter, command: Command, limit: int
) -> AmendResult:
    """Applies the command to the notifications that allow it.

    If the target is a sequence of ids, the result also lists those that are missing or do not allow it.
    """
    if isinstance(target, Filter):
        asked = CommandTargets(_find_matching(tx, tenant, target, command, limit))
    else:
        asked = sort_command_targets(target, rows_by_id(tx, target), tenant, command)
    asked.check_new_ids(command)
    if asked.possible:
        _apply(tx, asked.possible, command)
    return asked.answer(command)


def _apply(tx: SqliteTransaction, possible: Sequence[SeqAndRow], command: Command) -> None:
    """Applies the command to these rows and writes them."""
    recorder = SqliteChangeRecorder(tx)
    new: dict[tuple[Column, ...], list[Column]] = {}
    copies: list[tuple[int, int]] = []
    last: int = tx.one("SELECT coalesce(max(seq), 0) FROM homing_notifications")
    for seq, row in possible:
        was = queue_of(row)
        change = commanded(row, command, tx.now)
        assert change is not None, "the row does not allow this command"
        recorder.record(seq, change, was)
        if command.name is CommandName.RESEND:
            last += 1
            fresh = resent_row(row, command, tx.now)
            recorder.record(last, fresh)
            new.setdefault(shared_columns(fresh.row), []).extend((last, *own_columns(fresh.row)))
            copies.append((last, seq))
    UPDATE_MUTABLE.run(tx, {seq: mutable_columns(row) for seq, row in possible})
    NEW_ROWS.run(tx, new)
    _COPY_MESSAGES.run(tx, copies)
    recorder.write()


def _find_matching(
    tx: SqliteTransaction, tenant: str, filter: Filter, command: Command, limit: int
) -> list[SeqAndRow]:
    """Returns the oldest rows that match the filter and allow the command, at most `limit`."""
    possible: list[SeqAndRow] = []
    for found in _oldest_first(tx, tenant, filter, command):
        if len(possible) >= limit:
            break
        if allows_command(found[1], command):
            possible.append(found)
    return possible


def _oldest_first(
    tx: SqliteTransaction, tenant: str, filter: Filter, command: Command
) -> Iterator[SeqAndRow]:
    statuses = [s for s in COMMANDS[command.name] if not filter.statuses or s in filter.statuses]
    if not statuses:
        return
    matching = build_filter_query(tx, tenant, filter, statuses)
    after = ""
    while True:
        rest = matching.beyond("n.id > ?", after)
        sql = f"""
            SELECT json_group_array({json_row("n")})
            FROM (SELECT n.* {rest.text} ORDER BY n.id LIMIT {_PAGE_ROWS}) AS n
            """  # noqa: S608
        page = decode_rows(tx.one(sql, *rest.parameters))
        yield from page
        if len(page) < _PAGE_ROWS:
            return
        after = page[-1][1].id
