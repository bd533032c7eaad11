"""The flags that select notifications, and the filter that they make."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from homing.cli.common.exit_codes import CliError
from homing.cli.common.flag_groups import FlagGroup
from homing.cli.common.options import parse_choice
from homing.cli.common.units import parse_duration_ms, parse_time

if TYPE_CHECKING:
    from homing.core.notifications import Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFlags(FlagGroup):
    """The flags that select notifications. A command can leave some of them out."""

    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="NAME", help="Only notifications with this status; repeatable."),
    ] = None
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="NAME", help="Only on this channel.")
    ] = None
    type: Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only of this type.")] = None
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="NAME", help="Only through this provider.")
    ] = None
    batch: Annotated[str | None, typer.Option("--batch", metavar="ID", help="Only of this batch.")] = None
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason", metavar="NAME", help="Only those that ended for this reason, e.g. BAD_RECIPIENT."
        ),
    ] = None
    address: Annotated[
        str | None, typer.Option("--address", metavar="ADDRESS", help="Only to this address.")
    ] = None
    error_code: Annotated[
        str | None, typer.Option("--error-code", metavar="CODE", help="Only with this error code.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Accepted since: a time, or e.g. 2h for two hours ago."),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="Accepted before: a time, or e.g. 30m for 30 minutes ago."
        ),
    ] = None

    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="KEY=VALUE", help="Only with this value in the metadata; repeatable."
        ),
    ] = None

    def build(self) -> Filter:
        """Returns the filter. Raises CliError if a value is invalid."""
        from homing.core.notifications import Channel, Filter, Reason, Status
        from homing.core.send_request import provider_id

        statuses = [parse_choice(Status, name, "--status") for name in self.status or ()]
        return Filter(
            statuses=tuple(status for status in statuses if status is not None),
            channel=parse_choice(Channel, self.channel, "--channel"),
            type=self.type,
            provider=None if self.provider is None else provider_id(self.provider),
            batch_id=self.batch,
            address=self.address,
            reason=parse_choice(Reason, self.reason, "--reason"),
            error_code=self.error_code,
            created_from=_ago(self.since, "--since"),
            created_until=_ago(self.until, "--until"),
            metadata=dict(_pair(text) for text in self.metadata or ()),
        )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CliError(f"--metadata: is {text!r}; it must be KEY=VALUE, e.g. entry_id=42")
    return key, value


def _ago(text: str | None, flag: str) -> datetime | None:
    """Parses a point in time. A duration such as `2h` means that long ago."""
    if text is None:
        return None
    if "T" in text or text.count("-") >= 2:
        return parse_time(text, flag)
    allowed = "give a time like 2026-01-31T09:00:00Z, or how long ago, like 2h"
    return datetime.now(UTC) - timedelta(milliseconds=parse_duration_ms(text, flag, allowed=allowed))
