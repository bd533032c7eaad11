"""Commands, before and after a store carries them out: whom they are possible for, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from homing.core.model import AmendResult, Command, CommandName, Status
from homing.core.rows import Row
from homing.core.states import after_command
from homing.stores.codec import StoredRow

Found = tuple[int, StoredRow]
"""(seq, row)."""


class Asked(Struct):
    """What a command was asked for, by whether it is possible there."""

    possible: list[Found] = field(default_factory=list)
    refused: dict[str, Status] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def check_new_ids(self, command: Command) -> None:
        """A resend needs an id for each of the notifications it makes."""
        for _, row in self.possible if command.name is CommandName.RESEND else ():
            if row.id not in command.new_ids:
                raise ValueError(f"a resend of {row.id} needs an id for the new notification")

    def answer(self, command: Command, applied: Sequence[str], requested: Sequence[str]) -> AmendResult:
        resends = self.possible if command.name is CommandName.RESEND else ()
        return AmendResult(
            applied=tuple(applied),
            requested=tuple(requested),
            refused=self.refused,
            missing=tuple(self.missing),
            resent={row.id: command.new_ids[row.id] for _, row in resends},
        )


def sort_out(ids: Sequence[str], found: Mapping[str, Found], tenant: str, command: Command) -> Asked:
    """Each id once; another tenant's is missing."""
    asked = Asked()
    for id in dict.fromkeys(ids):
        if id not in found or found[id][1].tenant != tenant:
            asked.missing.append(id)
        elif allows(found[id][1], command):
            asked.possible.append(found[id])
        else:
            asked.refused[id] = found[id][1].status
    return asked


def allows(row: Row, command: Command) -> bool:
    """Whether the command is possible in the state that the row is in."""
    return after_command(command, row.status, mode=row.mode, resent=row.resent_as is not None) is not None
