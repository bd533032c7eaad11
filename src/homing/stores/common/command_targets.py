"""Sorts the notifications that a command targets by whether the command is allowed, and builds its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from homing.core.lifecycle.commands import AmendResult, Command, CommandName
from homing.core.lifecycle.rows import Row
from homing.core.lifecycle.states import after_command
from homing.core.notifications import Status
from homing.stores.common.leased_rows import SeqAndRow


class CommandTargets(Struct):
    """The notifications that a command targets, by whether they allow it."""

    possible: list[SeqAndRow] = field(default_factory=list)
    """Rows that the command can be applied to."""
    refused: dict[str, Status] = field(default_factory=dict)
    """Ids of notifications that do not allow the command, with their status."""
    missing: list[str] = field(default_factory=list)
    """Ids that do not exist or belong to another tenant."""

    def check_new_ids(self, command: Command) -> None:
        """Raises `ValueError` if a resend lacks the id of a notification that it is to create."""
        for _, row in self.possible if command.name is CommandName.RESEND else ():
            if row.id not in command.new_ids:
                raise ValueError(f"a resend of {row.id} needs an id for the new notification")

    def answer(self, command: Command) -> AmendResult:
        """Builds the result, after the command was applied to the possible rows.

        An attempt in flight is not interrupted, so a cancel of its row is only requested.
        """
        applied: list[str] = []
        requested: list[str] = []
        for _, row in self.possible:
            waits = command.name is CommandName.CANCEL and row.status is Status.SENDING
            (requested if waits else applied).append(row.id)
        resends = self.possible if command.name is CommandName.RESEND else ()
        return AmendResult(
            applied=tuple(applied),
            requested=tuple(requested),
            refused=self.refused,
            missing=tuple(self.missing),
            resent={row.id: command.new_ids[row.id] for _, row in resends},
        )


def sort_command_targets(
    ids: Sequence[str], found: Mapping[str, SeqAndRow], tenant: str, command: Command
) -> CommandTargets:
    """Sorts the targeted ids, ignoring repeated ones. An id of another tenant counts as missing."""
    asked = CommandTargets()
    for id in dict.fromkeys(ids):
        if id not in found or found[id][1].tenant != tenant:
            asked.missing.append(id)
        elif allows_command(found[id][1], command):
            asked.possible.append(found[id])
        else:
            asked.refused[id] = found[id][1].status
    return asked


def allows_command(row: Row, command: Command) -> bool:
    """Returns True if the row allows the command.

    This depends on its status, on its mode, and on whether it was resent already or never accepted.
    """
    resent, accepted = row.resent_as is not None, row.provider != ""
    return after_command(command, row.status, mode=row.mode, resent=resent, accepted=accepted) is not None
