"""Applies the commands of operators and callers to notifications, selected by ids or by a filter."""

from __future__ import annotations

from collections.abc import Sequence

from pymongo import UpdateOne

from homing.core.lifecycle.commands import AmendResult, Command, CommandName
from homing.core.lifecycle.row_commands import apply_command as commanded
from homing.core.lifecycle.row_commands import resent_row
from homing.core.lifecycle.rows import Row
from homing.core.lifecycle.states import COMMANDS
from homing.core.notifications import Filter, Status
from homing.stores.common.command_targets import CommandTargets, allows_command, sort_command_targets
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.mongo.change_recorder import MongoChangeRecorder
from homing.stores.mongo.documents import Document, by_id, mutable_update, row_document
from homing.stores.mongo.schema import MESSAGES, NOTIFICATIONS
from homing.stores.mongo.search import search_for
from homing.stores.mongo.transaction import MongoTransaction

_PAGE_ROWS = 1000


async def amend(
    tx: MongoTransaction, tenant: str, target: Sequence[str] | Filter, command: Command, limit: int
) -> AmendResult:
    """Applies the command to the notifications that allow it.

    If the target is a sequence of ids, the result also lists those that are missing or do not allow it.
    """
    if isinstance(target, Filter):
        asked = CommandTargets(await _find_matching(tx, tenant, target, command, limit))
    else:
        found = by_id(await tx.db.find(NOTIFICATIONS, {"_id": {"$in": list(dict.fromkeys(target))}}))
        asked = sort_command_targets(target, found, tenant, command)
    asked.check_new_ids(command)
    if asked.possible:
        await _apply(tx, asked.possible, command)
    return asked.answer(command)


async def _apply(tx: MongoTransaction, possible: Sequence[SeqAndRow], command: Command) -> None:
    """Applies the command to these rows and writes them."""
    recorder = MongoChangeRecorder(tx)
    await recorder.read_and_count_leases([row.id for _, row in possible if row.status is Status.SENDING])
    new: dict[str, Row] = {}
    for _, row in possible:
        change = commanded(row, command, tx.now)
        assert change is not None, "the row does not allow this command"
        await recorder.record(change)
        if command.name is CommandName.RESEND:
            fresh = resent_row(row, command, tx.now)
            new[row.id] = fresh.row
            await recorder.record(fresh)
    await tx.db.bulk_write(
        NOTIFICATIONS,
        [UpdateOne({"_id": row.id}, mutable_update(row)) for _, row in possible],
    )
    if new:
        await tx.db.insert(NOTIFICATIONS, [row_document(row) for row in new.values()])
        messages = await tx.db.find(MESSAGES, {"_id": {"$in": list(new)}})
        await tx.db.insert(MESSAGES, [_copied_message(one, new[one["_id"]]) for one in messages])
    await recorder.write()


def _copied_message(message: Document, row: Row) -> Document:
    """Returns the message of a new row, given the one that it was copied from."""
    return {**message, "_id": row.id, "batch_id": row.batch_id, "address": row.address}


async def _find_matching(
    tx: MongoTransaction, tenant: str, filter: Filter, command: Command, limit: int
) -> list[SeqAndRow]:
    """Returns the oldest rows that match the filter and allow the command, at most `limit`."""
    statuses = [s for s in COMMANDS[command.name] if not filter.statuses or s in filter.statuses]
    if not statuses:
        return []
    search = await search_for(tx, tenant, filter, statuses)
    possible: list[SeqAndRow] = []
    async for ids in search.pages(tx, _PAGE_ROWS, oldest_first=True):
        page = by_id(await tx.db.find(NOTIFICATIONS, {"_id": {"$in": ids}}, sort=(("_id", 1),)))
        possible += [found for found in page.values() if allows_command(found[1], command)]
        if len(possible) >= limit:
            break
    return possible[:limit]
