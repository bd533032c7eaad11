"""`homing dead`: lists, groups, acknowledges and resends dead letters."""

from __future__ import annotations

from typing import Annotated

import typer

from homing.cli import filters
from homing.cli.exits import ExitCode
from homing.cli.root import group
from homing.cli.screen import print_json, styled
from homing.cli.shared import DryRun, Json, Options, Who, Why, Yes, command, engine, login
from homing.cli.words import local, relative

dead = group("dead", "List, group, acknowledge and resend dead letters.")

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of dead letters.")]
All = Annotated[bool, typer.Option("--all", help="All unacknowledged dead letters.")]
Rate = Annotated[
    str | None, typer.Option("--rate", metavar="RATE", help="Maximum rate, e.g. 20/s; default: no limit.")
]
Acknowledged = Annotated[
    bool | None,
    typer.Option(
        "--acknowledged/--unacknowledged", help="Show only these; default: both, unacknowledged first."
    ),
]


@command(dead, "list")
async def list_(
    options: Options,
    channel: filters.ChannelFlag = None,
    type: filters.TypeFlag = None,
    provider: filters.ProviderFlag = None,
    batch: filters.BatchFlag = None,
    reason: filters.ReasonFlag = None,
    error_code: filters.ErrorCodeFlag = None,
    since: filters.SinceFlag = None,
    until: filters.UntilFlag = None,
    acknowledged: Acknowledged = None,
    limit: filters.Limit = 50,
    cursor: filters.Cursor = None,
    json: Json = False,
) -> int:
    """List dead letters, unacknowledged first, then newest first."""
    import msgspec

    from homing.engine.dead_letters import dead_letters

    chosen = filters.build(
        channel=channel,
        type=type,
        provider=provider,
        batch=batch,
        reason=reason,
        error_code=error_code,
        since=since,
        until=until,
    )
    async with engine(options) as homing:
        page = await dead_letters(homing, chosen, acknowledged=acknowledged, limit=limit, cursor=cursor)
    items, more = page.items, page.cursor
    if json:
        print_json(options.privacy.wire(msgspec.to_builtins({"items": items, "cursor": more})))
        return ExitCode.OK
    if not items:
        options.notes.line("no dead letters")
        return ExitCode.OK
    options.screen.table(
        ("ID", "FAILED", "REASON", "ATTEMPTS>", "TYPE", "TO", "PROVIDER", "SEEN BY", "LAST ERROR~"),
        [
            (
                n.id,
                local(n.failed_at),
                styled(n.reason.value if n.reason else "", "red"),
                n.attempt_count,
                n.type,
                options.privacy.recipient(n),
                n.provider,
                n.acknowledged_by or styled("unseen", "yellow"),
                options.privacy.error(n.last_error, n.recipient),
            )
            for n in items
        ],
    )
    if more:
        options.notes.line(f"for more, add --cursor {more}")
    return ExitCode.OK


@command(dead, "groups")
async def groups(options: Options, limit: filters.Limit = 50, json: Json = False) -> int:
    """Group dead letters by error, largest group first."""
    import msgspec

    async with engine(options) as homing:
        found = await homing.error_groups(limit)
    if json:
        print_json(options.privacy.wire(msgspec.to_builtins(found)))
        return ExitCode.OK
    if not found:
        options.notes.line("no dead letters")
        return ExitCode.OK
    options.screen.table(
        ("COUNT>", "UNSEEN>", "REASON", "CODE", "NEWEST", "EXAMPLE", "ERROR~"),
        [
            (
                f"{g.count:,}",
                f"{g.unacknowledged:,}",
                styled(g.reason.value if g.reason else "", "red"),
                g.error_code,
                relative(g.newest_at),
                g.example_id,
                options.privacy.error(g.last_error),
            )
            for g in found
        ],
    )
    return ExitCode.OK


@command(dead, "ack")
async def ack(
    options: Options,
    ids: Ids = None,
    all_: All = False,
    channel: filters.ChannelFlag = None,
    type: filters.TypeFlag = None,
    provider: filters.ProviderFlag = None,
    batch: filters.BatchFlag = None,
    reason: filters.ReasonFlag = None,
    error_code: filters.ErrorCodeFlag = None,
    since: filters.SinceFlag = None,
    until: filters.UntilFlag = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Mark dead letters as seen, by id or by filter."""
    from homing.cli.dead_job import Job
    from homing.core.model import CommandName

    flags = {
        "channel": channel,
        "type": type,
        "provider": provider,
        "batch": batch,
        "reason": reason,
        "error_code": error_code,
        "since": since,
        "until": until,
    }
    job = Job(CommandName.ACKNOWLEDGE, "acknowledged", ids, flags, who or login(), why, rate, all_)
    return await job.run(options, dry_run=dry_run, yes=yes, json=json)


@command(dead, "resend")
async def resend(
    options: Options,
    ids: Ids = None,
    all_: All = False,
    channel: filters.ChannelFlag = None,
    type: filters.TypeFlag = None,
    provider: filters.ProviderFlag = None,
    batch: filters.BatchFlag = None,
    reason: filters.ReasonFlag = None,
    error_code: filters.ErrorCodeFlag = None,
    since: filters.SinceFlag = None,
    until: filters.UntilFlag = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Resend dead letters as new notifications, and mark the old ones as seen."""
    from homing.cli.dead_job import Job
    from homing.core.model import CommandName

    flags = {
        "channel": channel,
        "type": type,
        "provider": provider,
        "batch": batch,
        "reason": reason,
        "error_code": error_code,
        "since": since,
        "until": until,
    }
    job = Job(CommandName.RESEND, "resent", ids, flags, who or login(), why, rate, all_)
    return await job.run(options, dry_run=dry_run, yes=yes, json=json)
