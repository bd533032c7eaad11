"""`homing retry`, `reschedule`, `cancel`, `resolve` and `purge`: change existing notifications."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

import typer

from homing.cli.common.exit_codes import CliError, ExitCode
from homing.cli.common.options import (
    DryRun,
    ForcedProvider,
    Json,
    NotificationId,
    Options,
    Who,
    Why,
    command,
    open_engine,
    record_audit,
)
from homing.cli.common.progress import ProgressBar
from homing.cli.common.screen import print_json, styled
from homing.cli.common.units import days_to_ms, format_count, format_local_time, parse_duration_ms
from homing.cli.root import app


@command(app, "retry")
async def retry(
    options: Options,
    id: NotificationId,
    provider: ForcedProvider = None,
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Make a notification due now. If it has ended, it gets one more attempt."""
    async with open_engine(options, existing=True) as homing:
        await homing.get(id)
        by = await record_audit(homing, "notification.retry", id, who=who, why=why, provider=provider)
        found = await homing.retry(id, who=by, why=why, provider=provider)
        hold = await homing.find_hold(found)
    if json:
        print_json(options.privacy.wire(found, found.recipient))
    else:
        options.screen.line(
            styled(found.status.value),
            id,
            f"is due now at {found.provider}; "
            + ("a worker or `homing process` sends it" if hold is None else hold.describe()),
        )
    return ExitCode.OK


@command(app, "reschedule")
async def reschedule(
    options: Options,
    id: NotificationId,
    delay: Annotated[
        str, typer.Argument(metavar="DELAY", help="When it is due, from now, such as 10m or 2h.")
    ],
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Change when a waiting notification is due."""
    later = timedelta(milliseconds=parse_duration_ms(delay, "DELAY"))
    async with open_engine(options, existing=True) as homing:
        await homing.get(id)
        by = await record_audit(homing, "notification.reschedule", id, who=who, why=why, delay=delay)
        await homing.reschedule(id, later, who=by, why=why)
        found = await homing.get(id)
    if json:
        print_json(options.privacy.wire(found, found.recipient))
    else:
        due = "now" if found.next_retry_at is None else format_local_time(found.next_retry_at)
        options.screen.line(styled(found.status.value), id, f"is due at {due}")
    return ExitCode.OK


@command(app, "cancel")
async def cancel(
    options: Options, id: NotificationId, who: Who = None, why: Why = "", json: Json = False
) -> int:
    """Cancel a notification that has not been sent."""
    async with open_engine(options, existing=True) as homing:
        await homing.get(id)
        by = await record_audit(homing, "notification.cancel", id, who=who, why=why)
        done = await homing.cancel(id, who=by, why=why)
    if json:
        print_json({"notificationId": id, "cancelled": done, "requested": not done})
    elif done:
        options.screen.line(styled("cancelled"), id)
    else:
        options.screen.line("requested", id, "an attempt is in flight; there will be no further attempt")
    return ExitCode.OK


@command(app, "resolve")
async def resolve(
    options: Options,
    id: NotificationId,
    status: Annotated[str, typer.Argument(metavar="sent|failed", help="The final status.")],
    who: Who = None,
    why: Why = "",
    json: Json = False,
) -> int:
    """Set the final status of an in_doubt notification."""
    from homing.core.notifications import Status

    chosen = {one.value: one for one in (Status.SENT, Status.FAILED)}.get(status.strip().lower())
    if chosen is None:
        raise CliError(f"status: is {status!r}; it must be sent or failed")
    async with open_engine(options, existing=True) as homing:
        await homing.get(id)
        by = await record_audit(homing, "notification.resolve", id, who=who, why=why, status=chosen.value)
        await homing.resolve(id, chosen, who=by, why=why)
    if json:
        print_json({"notificationId": id, "status": chosen.value})
    else:
        options.screen.line(styled(chosen.value), id)
    return ExitCode.OK


@command(app, "purge")
async def purge(
    options: Options,
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            metavar="N",
            help="Minimum age in days, for every status; default: the retention settings.",
        ),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Delete old ended notifications of all tenants. Works in batches; statistics keep their counts."""
    from homing.core.ports.stores import Retention

    retention = None if days is None else Retention.of_age(days_to_ms(days, "--days"))
    async with open_engine(options, existing=True) as homing:
        if not dry_run:
            await record_audit(homing, "purge.run", days=days)
        with ProgressBar(options, "counting" if dry_run else "purging") as bar:
            counts = await homing.purge(
                retention, lambda so_far: _show(bar, so_far, dry_run), dry_run=dry_run
            )
    if json:
        print_json({**counts, "dryRun": dry_run})
        return ExitCode.OK
    listed = ", ".join(format_count(count, kind.removesuffix("s")) for kind, count in counts.items())
    options.screen.line(f"{'would remove' if dry_run else 'removed'} {listed}")
    return ExitCode.OK


def _show(bar: ProgressBar, so_far: Mapping[str, int], dry_run: bool) -> None:
    done = sum(so_far.values())
    bar.at(done, f"{done:,} {'notifications' if dry_run else 'removed'}")
