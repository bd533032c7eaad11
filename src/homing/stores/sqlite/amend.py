"""amend: commands of operators and callers, on ids or on whatever a filter finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from homing.core.model import AmendResult, Command, CommandName, Filter, Status
from homing.core.rows import command as commanded
from homing.core.rows import resent
from homing.core.states import COMMANDS, after_command
from homing.stores.codec import Column, decode_rows, mutable_columns, own_columns, shared_columns
from homing.stores.sqlite.accept import NEW_ROWS
from homing.stores.sqlite.changes import Book, queue_of
from homing.stores.sqlite.filters import query
from homing.stores.sqlite.receipts import MUTABLE
from homing.stores.sqlite.rows import Found, rows_by_id
from homing.stores.sqlite.statements import Many, Tx, json_row

_COPIES = Many(
    "INSERT INTO homing_messages (seq, message) SELECT c.column1, m.message FROM (VALUES ",
    2,
    ") AS c CROSS JOIN homing_messages AS m ON m.seq = c.column2",
)
_PAGE = 1000


def amend(tx: Tx, tenant: str, target: Sequence[str] | Filter, command: Command, limit: int) -> AmendResult:
    """Applies the command wherever it is possible, and says what became of the others."""
    missing: list[str] = []
    refused: dict[str, Status] = {}
    if isinstance(target, Filter):
        possible = _that_match(tx, tenant, target, command, limit)
    else:
        possible = []
        found = rows_by_id(tx, target)
        for id in dict.fromkeys(target):
            if id not in found or found[id][1].tenant != tenant:
                missing.append(id)
            elif _allows(found[id], command):
                possible.append(found[id])
            else:
                refused[id] = found[id][1].status
    if command.name is CommandName.RESEND:
        _check_new_ids(possible, command)
    applied, requested = _apply(tx, possible, command)
    resends = possible if command.name is CommandName.RESEND else ()
    return AmendResult(
        applied=applied,
        requested=requested,
        refused=refused,
        missing=tuple(missing),
        resent={row.id: command.new_ids[row.id] for _, row in resends},
    )


def _apply(tx: Tx, possible: Sequence[Found], command: Command) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(ids it was applied to, ids where it takes effect when the attempt ends)."""
    if not possible:
        return (), ()
    book = Book(tx)
    applied: list[str] = []
    requested: list[str] = []
    new: list[tuple[tuple[Column, ...], tuple[Column, ...]]] = []
    copies: list[tuple[int, int]] = []
    last: int = tx.one("SELECT coalesce(max(seq), 0) FROM homing_notifications")
    for seq, row in possible:
        was = queue_of(row)
        change = commanded(row, command, tx.now)
        assert change is not None, "only a command that is possible gets here"
        book.record(seq, change, was)
        waits = command.name is CommandName.CANCEL and row.status is Status.SENDING
        (requested if waits else applied).append(row.id)
        if command.name is CommandName.RESEND:
            last += 1
            fresh = resent(row, command, tx.now)
            book.record(last, fresh)
            new.append(((last, *own_columns(fresh.row)), shared_columns(fresh.row)))
            copies.append((last, seq))
    MUTABLE.run(tx, {seq: mutable_columns(row) for seq, row in possible})
    NEW_ROWS.run(tx, new)
    _COPIES.run(tx, copies)
    book.write()
    return tuple(applied), tuple(requested)


def _that_match(tx: Tx, tenant: str, filter: Filter, command: Command, limit: int) -> list[Found]:
    """The oldest that the filter finds and the command is possible for."""
    possible: list[Found] = []
    for found in _oldest_first(tx, tenant, filter, command):
        if len(possible) >= limit:
            break
        if _allows(found, command):
            possible.append(found)
    return possible


def _oldest_first(tx: Tx, tenant: str, filter: Filter, command: Command) -> Iterator[Found]:
    statuses = [s for s in COMMANDS[command.name] if not filter.statuses or s in filter.statuses]
    if not statuses:
        return
    matching = query(tx, tenant, filter, statuses)
    after = ""
    while True:
        rest = matching.beyond("n.id > ?", after)
        sql = f"""
            SELECT json_group_array({json_row("n")})
            FROM (SELECT n.* {rest.text} ORDER BY n.id LIMIT {_PAGE}) AS n
            """  # noqa: S608
        page = decode_rows(tx.one(sql, *rest.parameters))
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1][1].id


def _allows(found: Found, command: Command) -> bool:
    row = found[1]
    return after_command(command, row.status, mode=row.mode, resent=row.resent_as is not None) is not None


def _check_new_ids(possible: Sequence[Found], command: Command) -> None:
    for _, row in possible:
        if row.id not in command.new_ids:
            raise ValueError(f"a resend of {row.id} needs an id for the new notification")
