"""Flags that select notifications, and the engine's `Filter` built from them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from homing.cli.exits import Refused
from homing.cli.words import delay, moment

if TYPE_CHECKING:
    from enum import StrEnum

    from homing.core.model import Filter

    E = TypeVar("E", bound=StrEnum)

Statuses = Annotated[
    list[str] | None,
    typer.Option("--status", metavar="NAME", help="Only notifications with this status; repeatable."),
]
ChannelFlag = Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Only on this channel.")]
TypeFlag = Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only of this type.")]
ProviderFlag = Annotated[
    str | None, typer.Option("--provider", metavar="NAME", help="Only through this provider.")
]
BatchFlag = Annotated[str | None, typer.Option("--batch", metavar="ID", help="Only of this batch.")]
AddressFlag = Annotated[
    str | None, typer.Option("--address", metavar="ADDRESS", help="Only to this address.")
]
ReasonFlag = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="NAME", help="Only those that ended for this reason, e.g. BAD_RECIPIENT."
    ),
]
ErrorCodeFlag = Annotated[
    str | None, typer.Option("--error-code", metavar="CODE", help="Only with this error code.")
]
SinceFlag = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Accepted since: a time, or e.g. 2h for two hours ago."),
]
UntilFlag = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Accepted before: a time, or e.g. 30m for 30 minutes ago."),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="Maximum number.")]
PageLimit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Maximum number.")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="TEXT", help="The cursor that the previous page printed.")
]


def one_of(kind: type[E], name: str | None, flag: str) -> E | None:
    """Returns the member with this name in any case. None stays None; an unknown name raises Refused."""
    if name is None:
        return None
    for member in kind:
        if member.value.lower() == name.strip().lower().replace("-", "_"):
            return member
    allowed = ", ".join(member.value for member in kind)
    raise Refused(f"{flag}: is {name!r}; must be one of {allowed}")


def build(
    *,
    statuses: Sequence[str] | None = None,
    channel: str | None = None,
    type: str | None = None,
    provider: str | None = None,
    batch: str | None = None,
    address: str | None = None,
    reason: str | None = None,
    error_code: str | None = None,
    acknowledged: bool | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Filter:
    """Builds a filter from the flags. Raises Refused if a value is invalid."""
    from homing.core.model import Channel, Filter, Reason, Status
    from homing.core.request import provider_id

    found = [one_of(Status, name, "--status") for name in statuses or ()]
    return Filter(
        statuses=tuple(status for status in found if status is not None),
        channel=one_of(Channel, channel, "--channel"),
        type=type,
        provider=None if provider is None else provider_id(provider),
        batch_id=batch,
        address=address,
        reason=one_of(Reason, reason, "--reason"),
        error_code=error_code,
        acknowledged=acknowledged,
        created_from=_ago(since, "--since"),
        created_until=_ago(until, "--until"),
    )


def _ago(text: str | None, flag: str) -> datetime | None:
    """Parses a time, or a duration and subtracts it from now."""
    if text is None:
        return None
    if "T" in text or text.count("-") >= 2:
        return moment(text, flag)
    back = delay(text, flag)
    assert back is not None, "text is not None"
    return datetime.now(UTC) - back
